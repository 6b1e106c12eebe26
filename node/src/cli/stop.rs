//! `skein stop`: ends the agent and waits until it is gone.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Context, context::interruptible};
use crate::{
    control::Command,
    error::{Code, Error, Result},
    objects::Stopped,
};

/// How long an agent may take to end its workers and leave its lines.
const ENDING: Duration = Duration::from_secs(30);

/// End this home's agent
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein stop")]
pub struct StopArgs {}

impl StopArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let stopped: Stopped = context.call(Command::Stop).await?;
        interruptible(async {
            let deadline = Instant::now() + ENDING;
            while context.home.is_locked() {
                if Instant::now() > deadline {
                    let seconds = ENDING.as_secs();
                    return Err(Error::new(
                        Code::TimedOut,
                        format_args!("the agent has not ended within {seconds} s"),
                    ));
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
        .await?;
        context.show(&stopped, |_| "the agent has ended".into());
        Ok(())
    }
}
