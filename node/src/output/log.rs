//! Where log lines go: stderr, so that stdout stays for data.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::error::{Error, Result};

/// Logs of libraries that speak of every packet; a filter that names them wins.
const QUIET: &str =
    "libp2p=warn,quinn=warn,multistream_select=warn,yamux=warn,hickory_resolver=warn,netlink=warn";

/// Logs to stderr at a level or filter such as `info` or `skein=debug`.
pub fn log_to_stderr(filter: &str) -> Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|error| {
        Error::usage(format_args!(
            "`{filter}` is not a log level or filter: {error}"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init()
        .map_err(Error::failed)
}
