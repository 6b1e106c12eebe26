//! `skein peers`: the other members this agent sees.

use super::Context;
use crate::{control::Command, error::Result, objects::Peer, output};

/// Show the other members of the fleet
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein peers --json")]
pub struct PeersArgs {}

impl PeersArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let peers: Vec<Peer> = context.call(Command::Peers).await?;
        context.show(&peers, |peers| output::peers(peers));
        Ok(())
    }
}
