//! Who would carry what.

use serde::{Deserialize, Serialize};

/// `skein plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Model id.
    pub model: String,
    /// Context the caches are planned for, in tokens.
    pub ctx: u32,
    /// Stages, first to last.
    pub stages: Vec<PlanStage>,
    /// Expected speed of one request, where every peer in the plan has measured its own.
    pub est_tokens_per_s: Option<f64>,
    /// Peers that are not in it.
    pub left_out: Vec<LeftOut>,
}

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanStage {
    /// Peer id.
    pub peer: String,
    /// The machine's name.
    pub name: String,
    /// OpenVINO's device id.
    pub device: String,
    /// Half-open layer range.
    pub layers: [u32; 2],
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// Bytes of KV cache at this context.
    pub kv_bytes: u64,
    /// What stays free of the memory on offer.
    pub headroom_bytes: u64,
    /// Expected milliseconds a step.
    pub est_step_ms: Option<f64>,
}

/// A peer that is not in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Peer id.
    pub peer: String,
    /// The machine's name.
    pub name: String,
    /// Why not.
    pub reason: String,
}
