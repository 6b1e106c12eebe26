//! `skein doctor`: a check-up of this machine.

use super::{Context, context::interruptible};
use crate::{error::Result, local, output};

/// Check this machine: OpenVINO, devices, memory, disk, fleet
///
/// Works without OpenVINO and without an agent, and changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein doctor")]
pub struct DoctorArgs {}

impl DoctorArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let report = interruptible(async { Ok(local::doctor::check(&context.home).await) }).await?;
        context.show(&report, output::doctor);
        Ok(())
    }
}
