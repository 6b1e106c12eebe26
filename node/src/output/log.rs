//! Where log lines go: stderr, so that stdout stays for data, and a file of the agent's home.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::error::{Context, Error, Result};

/// Logs of libraries that speak of every packet; a filter that names them wins.
const QUIET: &str =
    "libp2p=warn,quinn=warn,multistream_select=warn,yamux=warn,hickory_resolver=warn,netlink=warn";
/// A log file is put aside when it reaches this size; the one put aside before is dropped.
const MAX_BYTES: u64 = 8 << 20;

/// Logs to stderr, and to `agent.log` in `folder`, at a level or filter such as `info` or `skein=debug`.
pub fn log_agent(filter: &str, folder: &Path) -> Result<()> {
    let parsed = || {
        EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|error| {
            Error::usage(format_args!(
                "`{filter}` is not a log level or filter: {error}"
            ))
        })
    };
    crate::platform::create_private_folder(folder)
        .context(format_args!("cannot make {}", folder.display()))?;
    let file = LogFile::open(folder.join("agent.log")).context("cannot open the log")?;
    tracing_subscriber::registry()
        .with(
            fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal())
                .with_filter(parsed()?),
        )
        .with(
            fmt::layer()
                .with_writer(file)
                .with_ansi(false)
                .with_filter(parsed()?),
        )
        .try_init()
        .map_err(Error::failed)
}

/// A file that is put aside when it is full, so that at most two of [`MAX_BYTES`] exist.
struct LogFile {
    path: PathBuf,
    open: Mutex<(File, u64)>,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let open = Mutex::new(append_to(&path)?);
        Ok(LogFile { path, open })
    }
}

fn append_to(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// One log line on its way to the file.
struct Line<'a> {
    path: &'a Path,
    open: MutexGuard<'a, (File, u64)>,
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            path: &self.path,
            open: self.open.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.open.1 > 0 && self.open.1 + bytes.len() as u64 > MAX_BYTES {
            std::fs::rename(self.path, self.path.with_extension("log.1"))?;
            *self.open = append_to(self.path)?;
        }
        let written = self.open.0.write(bytes)?;
        self.open.1 += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_put_aside_and_only_one_such_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let log = LogFile::open(path.clone()).unwrap();
        let line = vec![b'x'; (MAX_BYTES / 2) as usize + 1];
        for _ in 0..5 {
            log.make_writer().write_all(&line).unwrap();
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
