//! `skein worker`: one stage on one device, started by the agent. The only process that loads
//! OpenVINO.

use std::path::PathBuf;

use crate::{
    error::{Error, Result},
    worker,
};

/// Run one stage; started by the agent
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "Example:\n  skein worker --libs /path/to/openvino/libs --cache DIR --probe"
)]
pub struct WorkerArgs {
    /// Folder of libopenvino
    #[arg(long, value_name = "DIR")]
    pub libs: Option<PathBuf>,
    /// Folder for files that outlive the worker
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Print the runtime's version and devices as one JSON object, and end
    #[arg(long)]
    pub probe: bool,
    /// With --probe: measure each device as well
    #[arg(long, requires = "probe")]
    pub calibrate: bool,
}

impl WorkerArgs {
    pub(super) fn handle(self) -> Result<()> {
        if !self.probe {
            return worker::serve();
        }
        match (self.libs, self.cache) {
            (Some(libs), Some(cache)) => worker::probe(&libs, &cache, self.calibrate),
            _ => Err(Error::usage("--probe needs --libs and --cache")),
        }
    }
}
