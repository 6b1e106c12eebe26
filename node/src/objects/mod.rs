//! What `--json` prints and the control channel carries: one file per noun, no behaviour.
//!
//! Field names and shapes are the command line's contract (docs/cli.md). Optional fields are
//! printed as `null`, never left out. Ids are full hex or base58 text; bytes and milliseconds are
//! named in the field.

mod agent;
mod ask;
mod fleet;
mod model;
mod plan;
mod stage;
mod status;

pub use agent::{AgentEvent, Stopped};
pub use ask::{Ask, FinishReason, Numerics};
pub use demo::{Demo, DemoModel};
pub use doctor::{Check, CheckStatus, Doctor};
pub use fleet::{FleetId, Invite, Joined};
pub use model::{Model, Removed, Segment, Tokenized, Weights};
pub use plan::{LeftOut, Plan, PlanStage};
pub use stage::{PulledFrom, Stage};
pub use status::{
    Budget, Device, FleetRole, HeldModel, HeldSegments, Line, LineState, Peer, Role, Status,
};

mod demo;
mod doctor;
