//! The line protocol `/skein/line/1`: what the head of a line and each of its stages say to each other.
//!
//! The head opens one control stream to every stage and keeps it for the life of the line. Messages are CBOR in the
//! envelope of `crate::wire`, kind `CONTROL`:
//!
//! ```text
//! head                      stage
//!   Offer            →               which layers of which model, with what KV pool
//!                    ←  Reserved     the memory is set aside until the expiry   (or Refused, and the stream ends)
//!   Commit           →
//!                    ←  Progress*    pulling, cutting, compiling
//!                    ←  Loaded       the worker holds the stage                 (or Failed, and the stream ends)
//!   Connect          →               open your hop to the next stage (the tail: to the head)
//!                    ←  Connected
//!   Ping             ↔  Pong         every few seconds; silence ends the line
//!   Release          →               (or the stream's end) the worker ends, the memory is free
//!                    ←  Gone         the stage has to leave, and why
//! ```
//!
//! A hop is a stream `/skein/step/1` that begins with one `Hello` and then carries step frames one way.

use serde::{Deserialize, Serialize};

/// What the head says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToStage {
    Offer(Box<Offer>),
    Commit,
    Connect,
    Ping,
    Release,
}

/// What a stage says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToHead {
    Reserved {
        bytes: u64,
        expires_s: u32,
    },
    Refused {
        reason: String,
        free_bytes: u64,
        needed_bytes: u64,
    },
    Progress(Progress),
    Loaded(StageReport),
    Failed {
        reason: String,
    },
    Connected,
    Pong {
        steps: u64,
        resident_bytes: u64,
    },
    Gone {
        reason: String,
    },
}

/// One stage of a line, as the planner wants it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Random id of the line.
    pub line: u64,
    /// Epoch that the first frame will carry.
    pub epoch: u64,
    /// The model's id: BLAKE3 of its manifest.
    #[serde(with = "serde_bytes")]
    pub model: [u8; 32],
    /// The head's name for the model, for people.
    pub model_name: String,
    /// Position in the line, from 0.
    pub stage: u32,
    /// Stages in the line.
    pub stages: u32,
    /// First layer, and one past the last.
    pub layers: (u32, u32),
    /// Context in tokens that the KV pool is sized for.
    pub context: u32,
    /// KV pool in blocks of 32 slots.
    pub blocks: u32,
    /// `exact` numerics.
    pub exact: bool,
    /// Device of the stage's machine.
    pub device: String,
    /// Memory that the planner expects the stage to need, headroom included.
    pub needed_bytes: u64,
    /// Peer id of the stage before; of the head itself for the first. Its hop alone is let in.
    pub previous: String,
    /// Peer id of the next stage; of the head itself for the tail.
    pub next: String,
    /// Peer id of the head.
    pub head: String,
    /// The head asks for logits (debugging); refused unless the stage's owner allows it.
    pub logits: bool,
}

/// How far a stage is with becoming ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub phase: Phase,
    /// Bytes done, where the phase counts bytes.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Peer that the bytes come from, where there is one.
    pub from: Option<String>,
}

/// What a stage is doing before it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Pulling,
    Cutting,
    Compiling,
}

impl Phase {
    /// One word for people.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Pulling => "pulling",
            Phase::Cutting => "cutting",
            Phase::Compiling => "compiling",
        }
    }
}

/// What a stage became.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    pub name: String,
    pub device: String,
    pub worker_pid: u32,
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub resident_bytes: u64,
    /// Segment bytes that had to come from other peers.
    pub pulled_bytes: u64,
    /// Which peer gave how many of them.
    pub pulled_from: Vec<(String, u64)>,
    pub compile_ms: u64,
}

/// First message of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hello {
    pub line: u64,
    pub epoch: u64,
    /// Stage that the frames are for; the number of stages means the head itself.
    pub to: u32,
}

/// Name of the control protocol.
pub const LINE_PROTOCOL: &str = "/skein/line/1";
/// Name of the hop protocol.
pub const STEP_PROTOCOL: &str = "/skein/step/1";
