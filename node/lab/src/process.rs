//! Child processes that end with the bench.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;

/// What a process gets between SIGTERM and SIGKILL to clean up.
const GRACE: Duration = Duration::from_secs(10);
/// Output kept of one command, per stream.
const MAX_OUTPUT: u64 = 16 << 20;

/// Puts the process into a group of its own, so that a Ctrl-C meant for the bench reaches only the
/// bench, which then ends its children in order.
pub fn apart(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// A process that is ended, by its id, when this is dropped.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
    what: String,
}

impl Guarded {
    pub fn spawn(what: &str, command: &mut Command) -> anyhow::Result<Self> {
        let child = apart(command)
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        Ok(Guarded {
            child,
            what: what.to_owned(),
        })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its status once it has ended by itself.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("cannot look after {}", self.what))
    }

    /// SIGTERM, and SIGKILL if that is ignored.
    pub fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < GRACE {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!(
            "warning: {} ignored SIGTERM for {} s",
            self.what,
            GRACE.as_secs()
        );
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command to its end and collects what it writes; ended early after `most` or a signal.
pub fn run(what: &str, command: &mut Command, most: Duration) -> anyhow::Result<Output> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut guarded = Guarded::spawn(what, command)?;
    let stdout = collect(guarded.child().stdout.take());
    let stderr = collect(guarded.child().stderr.take());
    let status = interrupt::wait_for(&format!("{what} to end"), most, || guarded.ended());
    drop(guarded);
    let stdout = stdout.join().unwrap_or_default();
    let stderr = stderr.join().unwrap_or_default();
    match status {
        Ok(status) => Ok(Output {
            status,
            stdout,
            stderr,
        }),
        Err(error) => Err(error.context(format!("stderr: {}", last_lines(&stderr)))),
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.by_ref().take(MAX_OUTPUT).read_to_end(&mut bytes);
            // Keep the pipe flowing, or the process would stall instead of ending.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
        bytes
    })
}

/// The end of a log, for an error message.
pub fn last_lines(bytes: &[u8]) -> String {
    const LINES: usize = 12;
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(LINES);
    lines[from..].join("\n    ")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::process::test_kill_process;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_guarded_process_is_gone_when_its_guard_is() {
        let mut guarded = Guarded::spawn("a sleeper", &mut shell("exec sleep 60")).unwrap();
        let pid = Pid::from_child(guarded.child());
        assert!(test_kill_process(pid).is_ok());
        drop(guarded);
        assert!(test_kill_process(pid).is_err());
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended_and_its_last_words_are_told() {
        let begun = Instant::now();
        let mut command = shell("echo stuck >&2; exec sleep 60");
        let error = run("a sleeper", &mut command, Duration::from_millis(300)).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10));
        let message = format!("{error:#}");
        assert!(
            message.contains("stuck") && message.contains("a sleeper"),
            "{message}"
        );
    }

    #[test]
    fn output_and_status_come_back_apart() {
        let mut command = shell("echo out; echo err >&2; exit 3");
        let output = run("a shell", &mut command, Duration::from_secs(10)).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (&output.stdout[..], &output.stderr[..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
    }
}
