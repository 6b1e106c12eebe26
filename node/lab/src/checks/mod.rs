//! What is checked, and what each check needs before it can run.

use std::path::PathBuf;

use crate::outcome::Report;

#[cfg(target_os = "linux")]
mod needs;
#[cfg(target_os = "linux")]
mod net;

/// What the command line says.
#[derive(Debug)]
pub struct Setup {
    pub skein: Option<PathBuf>,
    pub model: Option<PathBuf>,
}

/// Agents in network namespaces.
#[cfg(target_os = "linux")]
pub fn net(setup: &Setup) -> Report {
    net::check(setup)
}

/// Agents in network namespaces.
#[cfg(not(target_os = "linux"))]
pub fn net(setup: &Setup) -> Report {
    let _ = setup;
    Report::without("net", "network namespaces exist on Linux only")
}
