//! What a running agent says about itself, line by line.

use serde::{Deserialize, Serialize};

/// One JSON line of `skein agent --json`. The first is always `ready`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum AgentEvent {
    /// The agent can be reached.
    Ready {
        /// Peer id.
        peer: String,
        /// Multiaddrs it listens on, with real ports.
        addresses: Vec<String>,
        /// Path or name of the control socket.
        control: String,
    },
    /// A member came or changed.
    Peer {
        /// Peer id.
        peer: String,
        /// The machine's name.
        name: String,
        /// Its state.
        state: String,
    },
    /// A line changed.
    Line {
        /// Model id.
        model: String,
        /// Its epoch.
        epoch: u64,
        /// How far it is.
        state: super::LineState,
    },
    /// Something worth telling, in words.
    Note {
        /// One sentence.
        message: String,
    },
    /// The agent ends.
    Stopped,
}

/// `skein stop`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Always true: anything else is an error.
    pub stopped: bool,
}
