//! The agent's side of a worker process: start it, load a stage into it, feed it, notice its end and say why.
//!
//! Not here: what the bytes mean (`skein_pipeline::frame`) and what runs inside the worker (`crate::worker`).

mod stderr;

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::wire::{self, kind};
use crate::worker::{LoadReport, LoadSpec, ProbeReport};
use stderr::StderrTail;

/// Compiling a large stage on a slow machine takes minutes, not more.
const LOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// A worker answers the end of its input within one step; after that it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Listing and measuring devices loads every plugin once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a worker is of no use.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the worker process could not be started: {0}")]
    Start(std::io::Error),
    #[error("the stage could not be loaded: {0}")]
    Load(String),
    #[error("the worker did not finish loading within {} s", LOAD_TIMEOUT.as_secs())]
    LoadTimeout,
    #[error("{0}")]
    Ended(String),
    #[error("the worker did not answer the device probe: {0}")]
    Probe(String),
}

/// A worker with its stage loaded.
#[derive(Debug)]
pub struct Worker {
    /// Step frames go in here.
    pub input: ChildStdin,
    /// Step, sampled, logits and fault messages come out here.
    pub output: ChildStdout,
    /// The process itself.
    pub process: WorkerProcess,
}

/// The process of a worker; dropping it kills the process.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    stderr: StderrTail,
    /// Process id, also after the process ended.
    pub pid: u32,
}

/// Whether workers write down how long each step took: only where somebody will read it.
pub fn reports_steps() -> bool {
    tracing::enabled!(target: "skein::steps", tracing::Level::TRACE)
}

impl Worker {
    /// Starts `executable worker` and loads `spec` into it.
    pub async fn load(
        executable: &Path,
        spec: &LoadSpec,
    ) -> Result<(Worker, LoadReport), WorkerError> {
        let mut child = Command::new(executable)
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(WorkerError::Start)?;
        let (input, output, pid) = (child.stdin.take(), child.stdout.take(), child.id());
        let (Some(mut input), Some(mut output), Some(errors), Some(pid)) =
            (input, output, child.stderr.take(), pid)
        else {
            return Err(WorkerError::Start(std::io::Error::other(
                "its pipes are missing",
            )));
        };
        let mut process = WorkerProcess {
            child,
            stderr: StderrTail::follow(errors),
            pid,
        };

        let talk = async {
            wire::send(&mut input, kind::LOAD, spec).await?;
            wire::receive_raw(&mut output, wire::MAX_CONTROL).await
        };
        match tokio::time::timeout(LOAD_TIMEOUT, talk).await {
            Err(_) => Err(WorkerError::LoadTimeout),
            Ok(Err(_)) => Err(WorkerError::Ended(process.end_reason().await)),
            Ok(Ok((kind::LOADED, body))) => {
                let report: LoadReport = wire::decode(&body).map_err(|error| {
                    WorkerError::Load(format!("its report is unreadable: {error}"))
                })?;
                Ok((
                    Worker {
                        input,
                        output,
                        process,
                    },
                    report,
                ))
            }
            Ok(Ok((kind::LOAD_FAILED, body))) => Err(WorkerError::Load(
                String::from_utf8_lossy(&body).into_owned(),
            )),
            Ok(Ok((other, _))) => Err(WorkerError::Load(format!(
                "it answered with message kind {other}"
            ))),
        }
    }
}

impl WorkerProcess {
    /// Waits for the process to end and says how: exit code or signal, and its last lines on stderr.
    pub async fn end_reason(&mut self) -> String {
        let status = match tokio::time::timeout(END_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) => describe(status),
            Ok(Err(error)) => format!("cannot be waited for ({error})"),
            Err(_) => "closed its pipe but did not end".to_owned(),
        };
        let tail = self.stderr.last_lines().await;
        let said = if tail.is_empty() {
            String::new()
        } else {
            format!("; it last said: {tail}")
        };
        format!("worker {} {status}{said}", self.pid)
    }

    /// Waits until the process ends by itself.
    pub async fn ended(&mut self) -> String {
        let status = match self.child.wait().await {
            Ok(status) => describe(status),
            Err(error) => format!("cannot be waited for ({error})"),
        };
        let tail = self.stderr.last_lines().await;
        let said = if tail.is_empty() {
            String::new()
        } else {
            format!("; it last said: {tail}")
        };
        format!("worker {} {status}{said}", self.pid)
    }

    /// Ends the process: its input is closed by the caller, so it gets a moment, then it is killed.
    pub async fn end(mut self) {
        if tokio::time::timeout(END_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            let _ = self.child.kill().await;
        }
    }

    /// Ends the process at once.
    pub async fn kill(mut self) {
        let _ = self.child.kill().await;
    }
}

/// Asks a fresh worker which devices there are; with `calibrate`, how fast each is.
pub async fn probe(
    executable: &Path,
    libs_dir: &Path,
    cache_dir: &Path,
    calibrate: bool,
) -> Result<ProbeReport, WorkerError> {
    let mut command = Command::new(executable);
    command
        .arg("worker")
        .arg("--probe")
        .arg("--libs")
        .arg(libs_dir)
        .arg("--cache")
        .arg(cache_dir);
    if calibrate {
        command.arg("--calibrate");
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(WorkerError::Start)?;
    let (Some(mut output), Some(errors), Some(pid)) =
        (child.stdout.take(), child.stderr.take(), child.id())
    else {
        return Err(WorkerError::Probe("its pipes are missing".into()));
    };
    // Held open: the worker takes the end of its input as the end of its agent.
    let input = child.stdin.take();
    let mut process = WorkerProcess {
        child,
        stderr: StderrTail::follow(errors),
        pid,
    };
    let mut text = Vec::new();
    let mut bounded = (&mut output).take(wire::MAX_CONTROL as u64);
    let read = bounded.read_to_end(&mut text);
    match tokio::time::timeout(PROBE_TIMEOUT, read).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(WorkerError::Probe(error.to_string())),
        Err(_) => {
            return Err(WorkerError::Probe(format!(
                "no answer within {} s",
                PROBE_TIMEOUT.as_secs()
            )));
        }
    }
    drop(input);
    match serde_json::from_slice(&text) {
        Ok(report) => Ok(report),
        Err(_) => Err(WorkerError::Ended(process.end_reason().await)),
    }
}

/// The program that workers are started from: this very executable.
pub fn executable() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// Closes a worker's input so that it ends by itself.
pub async fn close(mut input: ChildStdin) {
    let _ = input.shutdown().await;
}

fn describe(status: ExitStatus) -> String {
    if let Some(signal) = crate::platform::exit_signal(status) {
        return format!("was ended by signal {signal}");
    }
    match status.code() {
        Some(0) => "ended".to_owned(),
        Some(code) => format!("ended with exit code {code}"),
        None => "ended abnormally".to_owned(),
    }
}
