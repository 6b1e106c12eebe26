//! A peer that might take a stage. Not in here: how the figures came to be known.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// One peer, with what it advertised and what this agent knows about the way to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Peer id; the deterministic order of the planner is the order of these strings.
    pub peer: String,
    /// What people call the machine.
    pub name: String,
    /// Its devices. One stage runs on one device.
    pub devices: Vec<DeviceOffer>,
    /// Free bytes of the pool that all its devices share.
    pub memory_free: u64,
    /// Free bytes on disk for segments that it has to pull.
    pub disk_free: u64,
    /// Whether it may be used now.
    pub standing: Standing,
    /// Round trip between it and the asker in milliseconds; 0 for the asker itself.
    pub rtt_ms: f64,
    /// The segments of this model that it holds already.
    pub held: Held,
}

/// A device that a peer offers for one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOffer {
    /// Device id as its runtime names it, for example `CPU` or `GPU.1`.
    pub id: String,
    /// Device class: within one class `exact` numerics are bit-equal.
    pub class: String,
    /// Free bytes of the device's own memory; at most the pool for a device that shares it.
    pub memory_free: u64,
    /// Measured weight bytes per second at one row a step; 0 when it was never measured.
    pub bytes_per_s: u64,
}

/// Whether a peer may be used now, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    Available,
    /// Its owner or its rules keep it out; the reason is the peer's own word (`user-active`, …).
    Unavailable {
        reason: String,
    },
    /// It speaks another generation of the protocol.
    OtherGeneration {
        theirs: u32,
        ours: u32,
    },
}

/// Which segments of the model a peer holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub common: bool,
    pub embedding: bool,
    pub layers: BTreeSet<u32>,
    pub head: bool,
}

impl Held {
    /// A peer that holds the whole model of `layers` layers, as its importer does.
    pub fn everything(layers: u32) -> Self {
        Held {
            common: true,
            embedding: true,
            layers: (0..layers).collect(),
            head: true,
        }
    }
}
