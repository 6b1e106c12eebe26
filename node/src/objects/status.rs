//! An agent and the peers it sees.

use serde::{Deserialize, Serialize};

use super::Stage;

/// `skein status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Peer id of this agent.
    pub peer: String,
    /// This machine's name.
    pub name: String,
    /// `starting` until the agent can serve, then `available` or what keeps it from it.
    pub state: String,
    /// Why it is in that state, where there is something to say.
    pub reason: Option<String>,
    /// The fleet it belongs to.
    pub fleet: Option<FleetRole>,
    /// What it computes on.
    pub devices: Vec<Device>,
    /// Memory it may plan with and has given out, in bytes.
    pub memory: Budget,
    /// Disk it may fill and has filled, in bytes.
    pub disk: Budget,
    /// The models it knows.
    pub models: Vec<HeldModel>,
    /// The lines it heads or takes part in.
    pub lines: Vec<Line>,
    /// Where the HTTP API listens, once there is one.
    pub api: Option<String>,
}

impl Status {
    /// Whether the agent has finished starting.
    pub fn is_ready(&self) -> bool {
        self.state != "starting"
    }

    /// Whether a line for this model (id, start of an id, or name) takes requests.
    pub fn is_serving(&self, model: &str) -> bool {
        self.lines
            .iter()
            .filter(|line| line.state == LineState::Serving)
            .any(|line| {
                let name = self
                    .models
                    .iter()
                    .find(|m| m.id == line.model)
                    .map(|m| m.name.as_str());
                name == Some(model) || (!model.is_empty() && line.model.starts_with(model))
            })
    }
}

/// An agent's place in its fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetRole {
    /// Fleet id.
    pub id: String,
    /// Fleet name.
    pub name: String,
    /// What this machine may do in it.
    pub role: Role,
}

/// What a machine may do in its fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Holds the fleet's key: invites and signs.
    Root,
    /// Holds a certificate.
    Member,
}

/// A device of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// OpenVINO's id, such as `CPU`, `GPU.1`, `NPU`.
    pub id: String,
    /// What its maker calls it.
    pub name: String,
    /// Memory it can use.
    pub memory_bytes: u64,
    /// Whether its speed has been measured.
    pub calibrated: bool,
}

/// A cap and how much of it is used, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The most it may be.
    pub cap: u64,
    /// What it is.
    pub used: u64,
}

/// A model in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldModel {
    /// Model id.
    pub id: String,
    /// Model name.
    pub name: String,
    /// Segments that are here, whole and verified.
    pub segments_held: u32,
    /// Segments the model has.
    pub segments: u32,
}

/// A line this agent heads or takes part in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Model id.
    pub model: String,
    /// Its epoch.
    pub epoch: u64,
    /// How far it is.
    pub state: LineState,
    /// Its stages, first to last.
    pub stages: Vec<Stage>,
    /// Requests in it now.
    pub requests: u32,
}

/// How far a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineState {
    /// Machines are being reserved, or pull, or compile.
    Building,
    /// It takes requests.
    Serving,
    /// It takes no new requests and ends.
    Draining,
    /// A stage was lost.
    Failed,
    /// It is over.
    Ended,
}

/// One entry of `skein peers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Peer id.
    pub peer: String,
    /// The machine's name.
    pub name: String,
    /// As in [`Status::state`], from its advert; `offline` without a connection, `unknown` without a
    /// recent advert.
    pub state: String,
    /// Why.
    pub reason: Option<String>,
    /// Round trip, once measured.
    pub rtt_ms: Option<f64>,
    /// Multiaddrs it can be reached at.
    pub addresses: Vec<String>,
    /// What it computes on.
    pub devices: Vec<Device>,
    /// Memory it still offers, in bytes.
    pub memory_free: u64,
    /// Models it holds something of.
    pub held: Vec<HeldSegments>,
    /// Protocol generation it speaks.
    pub generation: u32,
    /// Seconds since its last advert.
    pub last_seen_s: f64,
}

impl Peer {
    /// Whether it is connected and has said lately how it is.
    pub fn is_in_sight(&self) -> bool {
        !matches!(self.state.as_str(), "offline" | "unknown")
    }
}

/// How much of a model a peer holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSegments {
    /// Model id.
    pub model: String,
    /// How many of its segments the peer holds.
    pub segments: u32,
}
