//! A machine's check-up.

use serde::{Deserialize, Serialize};

use super::Device;

/// `skein doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doctor {
    /// What was looked at, in the order of a reader's interest.
    pub checks: Vec<Check>,
    /// The devices the runtime sees; empty where there is no runtime.
    pub devices: Vec<Device>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name: `openvino`, `devices`, `memory`, `disk`, `cache`, `home`, `agent`, `fleet`, `ports`.
    pub name: String,
    /// How it looks.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Something will not work, or not well.
    Warning,
    /// It could not be looked at.
    Unknown,
}
