//! One stage of a line: which machine carries which layers, and what that costs it.

use serde::{Deserialize, Serialize};

/// A stage as the machine that runs it reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Peer id.
    pub peer: String,
    /// The machine's name.
    pub name: String,
    /// Half-open layer range `[first, end)`.
    pub layers: [u32; 2],
    /// OpenVINO's device id, such as `CPU` or `GPU.1`.
    pub device: String,
    /// Process id of the worker on that machine.
    pub worker_pid: u32,
    /// Bytes of the weights of this range.
    pub weights_bytes: u64,
    /// Bytes of the KV cache that was allocated.
    pub kv_bytes: u64,
    /// What the worker process really has resident.
    pub resident_bytes: u64,
    /// Segment bytes pulled from other peers for this stage.
    pub pulled_bytes: u64,
    /// Where they came from.
    pub pulled_from: Vec<PulledFrom>,
    /// Steps that its worker has taken, as last heard.
    #[serde(default)]
    pub steps: u64,
}

/// How much came from one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledFrom {
    /// Peer id.
    pub peer: String,
    /// Segment bytes.
    pub bytes: u64,
}
