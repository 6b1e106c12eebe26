//! `skein status`: this machine's agent, now or once something has come about.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Context,
    context::interruptible,
    values::{self, Wait},
};
use crate::{
    control::{Client, Command, no_agent},
    error::{Code, Error, Result},
    objects::{Peer, Status},
    output,
};

/// How often to look while waiting.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Show this machine's agent
///
/// With --wait, returns once it has come about; an agent that is yet to start is waited for too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein status --wait peers=2 --timeout 30s")]
pub struct StatusArgs {
    /// Wait for `ready`, `peers=N` (other members in sight) or `serving=MODEL`
    #[arg(long, value_name = "WHAT")]
    wait: Option<Wait>,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::duration)]
    timeout: Duration,
}

impl StatusArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let status = match &self.wait {
            None => context.call(Command::Status).await?,
            Some(wait) => interruptible(until(context, wait, self.timeout)).await?,
        };
        context.show(&status, output::status);
        Ok(())
    }
}

/// Looks until `wait` is met or `limit` is over.
async fn until(context: &Context, wait: &Wait, limit: Duration) -> Result<Status> {
    let deadline = Instant::now() + limit;
    let mut seen_an_agent = false;
    loop {
        let look = async {
            let Some(client) = Client::connect(&context.home).await? else {
                return Ok(None);
            };
            seen_an_agent = true;
            let status: Status = client.call(Command::Status, |_| Ok(())).await?;
            let met = match wait {
                Wait::Ready => status.is_ready(),
                Wait::Serving(model) => status.is_serving(model),
                Wait::Peers(count) => {
                    let Some(client) = Client::connect(&context.home).await? else {
                        return Ok(None);
                    };
                    let peers: Vec<Peer> = client.call(Command::Peers, |_| Ok(())).await?;
                    peers.iter().filter(|peer| peer.is_in_sight()).count() >= *count
                }
            };
            Ok::<_, Error>(met.then_some(status))
        };
        match tokio::time::timeout_at(deadline, look).await {
            Ok(Ok(Some(status))) => return Ok(status),
            // An agent that is starting or ending may break off; only the time limit ends the wait.
            Ok(Err(error)) if error.code != Code::Failed => return Err(error),
            _ => {}
        }
        if Instant::now() + LOOK_AGAIN >= deadline {
            return Err(if seen_an_agent {
                Error::new(
                    Code::TimedOut,
                    format_args!("not within {} s: {}", limit.as_secs_f64(), describe(wait)),
                )
                .hint("`skein status` shows how far it is")
            } else {
                no_agent(&context.home)
            });
        }
        sleep(LOOK_AGAIN).await;
    }
}

fn describe(wait: &Wait) -> String {
    match wait {
        Wait::Ready => "the agent is ready".into(),
        Wait::Peers(count) => format!("{count} other members are in sight"),
        Wait::Serving(model) => format!("a line serves {model}"),
    }
}
