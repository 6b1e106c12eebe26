//! `skein demo`: a fleet on one machine, from nothing to an answer.

use std::path::PathBuf;

use super::Context;
use crate::{demo, error::Result, output};

/// Form a fleet of agents on this machine and answer a prompt across them
///
/// Each agent has a temporary home of its own and pulls its share of the model from the others. All
/// is removed at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein demo --nodes 3")]
pub struct DemoArgs {
    /// Agents in the line
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub nodes: u32,
    /// A GGUF file; the default model otherwise
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
}

impl DemoArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let mut narrator = demo::Narrator::new(true);
        let options = demo::DemoOptions {
            nodes: self.nodes,
            model: self.model,
        };
        let seen = demo::run(options, &mut narrator).await?;
        context.show(&seen, output::demo);
        demo::verdict(&seen)
    }
}
