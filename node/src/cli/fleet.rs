//! `skein fleet`: founds a fleet and invites machines to it.

use std::time::Duration;

use super::{Context, values};
use crate::{
    control::Command,
    error::Result,
    objects::{FleetId, Invite},
    output,
};

/// Found a fleet and invite machines to it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  skein fleet new attic && skein agent &\n  skein fleet invite --uses 3",
    arg_required_else_help = true
)]
pub struct FleetArgs {
    #[command(subcommand)]
    verb: FleetVerb,
}

#[derive(Debug, clap::Subcommand)]
enum FleetVerb {
    /// Found a fleet with this machine at its root
    #[command(after_help = "Example:\n  skein fleet new attic")]
    New {
        /// What to call it; this machine's name otherwise
        name: Option<String>,
    },
    /// Sign an invite; this machine's agent must be reachable when it is used
    #[command(after_help = "Example:\n  skein fleet invite --expires 7d --uses 3")]
    Invite {
        /// How long it may be used
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = values::duration)]
        expires: Duration,
        /// How many machines may join with it
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        uses: u32,
    },
}

impl FleetArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        match self.verb {
            FleetVerb::New { name } => {
                let fleet: FleetId = context.call(Command::FleetNew { name }).await?;
                context.show(&fleet, |fleet| {
                    format!("fleet {} ({})", fleet.name, output::short(&fleet.id))
                });
            }
            FleetVerb::Invite { expires, uses } => {
                let expires_s = expires.as_secs().max(1);
                let invite: Invite = context
                    .call(Command::FleetInvite { expires_s, uses })
                    .await?;
                if !context.json {
                    output::aside(&format!(
                        "for {uses} machine{}, within {}; on the other machine: skein join INVITE",
                        if uses == 1 { "" } else { "s" },
                        output::duration(expires),
                    ));
                }
                context.show(&invite, |invite| invite.invite.clone());
            }
        }
        Ok(())
    }
}
