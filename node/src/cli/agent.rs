//! `skein agent`: runs this machine's agent in the foreground.

use super::{
    Context,
    values::{self, DeviceChoice},
};
use crate::{
    agent,
    error::Result,
    settings::{AgentFlags, AgentOptions, Settings},
};

/// Run this machine's agent in the foreground
///
/// It serves this machine alone until it belongs to a fleet. With --json, events are JSON lines on
/// stdout; the first is {"event":"ready",…}.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein agent --memory 8GiB --listen /ip4/0.0.0.0/tcp/4810")]
pub struct AgentArgs {
    /// Listen here; may be given again, and port 0 takes a free one
    #[arg(long, value_name = "MULTIADDR", value_parser = values::multiaddr)]
    listen: Vec<String>,
    /// Most memory to plan with (weights, caches, working space)
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Most disk to fill
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    disk: Option<u64>,
    /// Threads a worker may use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Use this device (CPU, GPU, GPU.1, NPU or auto); may be given again
    #[arg(long = "device", value_name = "DEVICE", value_parser = values::device)]
    devices: Vec<DeviceChoice>,
    /// Do not look for peers on the local network
    #[arg(long)]
    no_mdns: bool,
    /// How much to log: error, warn, info, debug, trace, or a filter
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Let debug logits leave this machine
    #[arg(long)]
    allow_logits: bool,
    /// Dial this member first; may be given again
    #[arg(long, value_name = "MULTIADDR", value_parser = values::multiaddr)]
    bootstrap: Vec<String>,
    /// End when stdin closes; for agents that a program starts
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

impl AgentArgs {
    /// The options that these flags and the home's settings make.
    pub fn options(self, context: &Context) -> Result<AgentOptions> {
        let settings = Settings::load(&context.home)?;
        let flags = AgentFlags {
            listen: self.listen,
            memory: self.memory,
            disk: self.disk,
            threads: self.threads.map(usize::from),
            devices: self.devices,
            no_mdns: self.no_mdns,
            log: self.log,
            json: context.json,
        };
        AgentOptions::resolve(context.home.clone(), settings, flags)
    }

    pub(super) async fn handle(mut self, context: &Context) -> Result<()> {
        let extra = agent::run::Extra {
            bootstrap: std::mem::take(&mut self.bootstrap),
            allow_logits: self.allow_logits,
            until: agent::run::Until {
                stdin_closes: self.until_stdin_closes,
            },
        };
        let mut options = self.options(context)?;
        if options.listen.is_empty() {
            options.listen = agent::run::default_listen();
        }
        crate::output::log_agent(&options.log, &options.home.logs_dir())?;
        agent::run::run(options, extra).await
    }
}
