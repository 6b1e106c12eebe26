//! `skein demo`: a fleet on one machine, from nothing to an answer, played with real agents.
//!
//! Every agent is a process of this executable with a home of its own; what they share is the OpenVINO runtime. The
//! demo speaks to them as the command line does and looks at nothing else.

mod agents;
mod story;

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::objects;

pub use story::Narrator;

/// What the demo plays.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Stages of the line.
    pub nodes: u32,
    /// A GGUF file; the default model otherwise.
    pub model: Option<PathBuf>,
}

/// Plays the demo. Whatever happens, Ctrl-C included, its agents are ended and its files removed.
///
/// # Errors
/// What failed, in one sentence; an answer that differs from a single node's is not an error here (see
/// [`verdict`]).
pub async fn run(options: DemoOptions, narrator: &mut Narrator) -> Result<objects::Demo> {
    let stage = agents::Stage::new()?;
    let outcome = tokio::select! {
        outcome = story::play(&options, &stage, narrator) => outcome,
        () = crate::platform::termination() => Err(Error::interrupted()),
    };
    narrator.say("cleaning up");
    stage.clear().await;
    outcome
}

/// Whether what the demo saw is what it promises.
pub fn verdict(demo: &objects::Demo) -> Result<()> {
    let worked = demo.workers_that_stepped;
    if !demo.identical_to_single_node {
        return Err(Error::failed(
            "the line's tokens differ from a single node's",
        ));
    }
    if worked < demo.nodes.len() {
        return Err(Error::failed(format_args!(
            "only {worked} of {} worker processes took steps",
            demo.nodes.len()
        )));
    }
    Ok(())
}
