//! Fleets and invites.

use serde::{Deserialize, Serialize};

/// `skein fleet new`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetId {
    /// Fleet id.
    pub id: String,
    /// Fleet name.
    pub name: String,
}

/// `skein fleet invite`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// The text to hand over.
    pub invite: String,
    /// Unix time, in seconds, after which it is refused.
    pub expires: u64,
    /// How many machines may join with it.
    pub uses: u32,
}

/// `skein join`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The fleet that was joined.
    pub fleet: FleetId,
    /// This machine's peer id.
    pub peer: String,
}
