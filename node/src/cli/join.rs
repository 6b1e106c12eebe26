//! `skein join`: makes this machine a member of a fleet.

use super::Context;
use crate::{control::Command, error::Result, objects::Joined, output};

/// What everybody should know before they join.
const PRIVACY: &str = "The first and the last machine of a line see the text of a request; those in between see \
numbers from which it can be reconstructed. Join a fleet only if you trust its machines that far.";

/// Join a fleet with an invite
///
/// The first and the last machine of a line see the text of a request; those in between see numbers
/// from which it can be reconstructed. Join a fleet only if you trust its machines that far.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein join skein1abc…")]
pub struct JoinArgs {
    /// The text that `skein fleet invite` printed
    invite: String,
}

impl JoinArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        if !context.json {
            output::aside(PRIVACY);
        }
        let joined: Joined = context
            .call(Command::Join {
                invite: self.invite,
            })
            .await?;
        context.show(&joined, |joined| {
            format!(
                "joined {} ({})",
                joined.fleet.name,
                output::short(&joined.fleet.id)
            )
        });
        Ok(())
    }
}
