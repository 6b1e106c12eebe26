//! Agents and commands of the program under test, as its command line's contract has them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::interrupt;
use crate::network::Machine;
use crate::process::{self, Guarded};

/// Until an agent says it is ready; its first start measures the device.
const READY: Duration = Duration::from_secs(90);
/// For commands that only ask or store.
pub const SHORT: Duration = Duration::from_secs(60);
/// For a first answer: plan, pull, compile on every stage, and compute, on a busy machine.
pub const LONG: Duration = Duration::from_secs(240);
/// Lines of an agent's events kept until they are read; later ones are dropped.
const MAX_EVENTS: usize = 4_096;

/// One Skein on one machine: a home, and what is hidden from it.
#[derive(Debug)]
pub struct Skein<'a> {
    pub name: &'a str,
    program: &'a Path,
    machine: &'a Machine,
    home: PathBuf,
    hidden: Vec<Hidden>,
}

/// Something that processes on a machine must not see.
#[derive(Debug, Clone)]
pub enum Hidden {
    /// The file is there but empty.
    File(PathBuf),
    /// The folder is there but empty.
    Folder(PathBuf),
}

/// Mounts over each hidden path in a mount namespace of its own, makes sure that it worked, and
/// becomes the program.
const HIDE: &str = r#"
while [ "$1" != -- ]; do
    case "$1" in
        file) mount --bind /dev/null "$2"; test ! -s "$2" ;;
        folder) mount -t tmpfs none "$2"; test -z "$(ls -A "$2")" ;;
    esac
    shift 2
done
shift
exec "$@"
"#;

impl<'a> Skein<'a> {
    /// A Skein with an empty home below `homes`.
    pub fn new(
        name: &'a str,
        program: &'a Path,
        machine: &'a Machine,
        homes: &Path,
    ) -> anyhow::Result<Self> {
        let home = homes.join(name);
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make {home:?}"))?;
        Ok(Skein {
            name,
            program,
            machine,
            home,
            hidden: Vec::new(),
        })
    }

    /// Its processes see none of these.
    pub fn without(mut self, hidden: &[Hidden]) -> Self {
        self.hidden = hidden.to_vec();
        self
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = if self.hidden.is_empty() {
            self.machine.namespace.command(self.program)
        } else {
            let mut command = self.machine.namespace.command("unshare");
            command.args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-ec",
                HIDE,
                "sh",
            ]);
            for hidden in &self.hidden {
                match hidden {
                    Hidden::File(path) => command.arg("file").arg(path),
                    Hidden::Folder(path) => command.arg("folder").arg(path),
                };
            }
            command.arg("--").arg(self.program);
            command
        };
        command.args(arguments).env("SKEIN_HOME", &self.home);
        command
    }

    /// Runs a command with `--json` and reads its object.
    pub fn call<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
        most: Duration,
    ) -> anyhow::Result<T> {
        let what = format!("`skein {}` on {}", arguments.join(" "), self.name);
        let arguments = [arguments, &["--json"]].concat();
        let output = process::run(&what, &mut self.command(&arguments), most)?;
        ensure!(
            output.status.success(),
            "{what} ended with {}: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stdout).trim(),
            process::last_lines(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).with_context(|| {
            let text = String::from_utf8_lossy(&output.stdout);
            format!("{what} printed something unexpected: {}", text.trim())
        })
    }

    /// Starts the agent and waits until it is ready.
    pub fn start(&self, flags: &[&str]) -> anyhow::Result<Agent> {
        let log = self.home.with_extension("log");
        let stderr = File::options().create(true).append(true).open(&log);
        let stderr = stderr.with_context(|| format!("cannot write {log:?}"))?;
        let mut command = self.command(&[&["agent", "--json", "--threads", "1"], flags].concat());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let what = format!("agent {}", self.name);
        let mut process = Guarded::spawn(&what, &mut command)?;
        let events = follow(process.child().stdout.take().context("no stdout")?);
        let mut agent = Agent {
            process,
            events,
            what,
            log,
            peer: String::new(),
        };
        agent.peer = agent.ready().map_err(|error| agent.explain(error))?;
        Ok(agent)
    }
}

/// A running agent; ended when this is dropped.
#[derive(Debug)]
pub struct Agent {
    process: Guarded,
    events: Receiver<String>,
    what: String,
    log: PathBuf,
    pub peer: String,
}

impl Agent {
    fn ready(&mut self) -> anyhow::Result<String> {
        let line = interrupt::wait_for("an agent to be ready", READY, || {
            match self.events.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => Ok(Some(line)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => match self.process.ended()? {
                    Some(status) => bail!("it ended with {status}"),
                    None => Ok(None),
                },
            }
        })?;
        let event: Value = serde_json::from_str(&line)
            .with_context(|| format!("its first event is no JSON: {line}"))?;
        ensure!(event["event"] == "ready", "its first event is {line}");
        let peer = event["peer"].as_str();
        Ok(peer.context("the ready event names no peer")?.to_owned())
    }

    /// Adds the end of the agent's log to an error.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let log = std::fs::read(&self.log).unwrap_or_default();
        anyhow!(
            "{error:#}\n    the log of {} ends with:\n    {}",
            self.what,
            process::last_lines(&log)
        )
    }
}

fn follow(stdout: std::process::ChildStdout) -> Receiver<String> {
    let (sender, receiver) = sync_channel(MAX_EVENTS);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.try_send(line);
        }
    });
    receiver
}

/// What `ask --json` prints, as far as checks look at it.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish_reason: String,
    pub pipeline: Vec<Stage>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Stage {
    pub peer: String,
    pub layers: [u32; 2],
    pub pulled_bytes: u64,
}

impl Answer {
    /// The answer came whole, from stages on so many different peers that cover the model.
    pub fn check(&self, stages: usize) -> anyhow::Result<()> {
        ensure!(
            ["stop", "length"].contains(&self.finish_reason.as_str()),
            "the answer ended with `{}`",
            self.finish_reason
        );
        ensure!(!self.tokens.is_empty(), "the answer is empty");
        let peers: std::collections::BTreeSet<&str> = self
            .pipeline
            .iter()
            .map(|stage| stage.peer.as_str())
            .collect();
        ensure!(
            self.pipeline.len() == stages && peers.len() == stages,
            "{} stages on {} peers took part instead of {stages}",
            self.pipeline.len(),
            peers.len()
        );
        let mut next = 0;
        for stage in &self.pipeline {
            let [first, end] = stage.layers;
            ensure!(first == next && end > first, "a gap before layer {first}");
            next = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stages: &[(&str, [u32; 2])]) -> Answer {
        Answer {
            text: "geese".to_owned(),
            tokens: vec![1, 2],
            finish_reason: "length".to_owned(),
            pipeline: stages
                .iter()
                .map(|(peer, layers)| Stage {
                    peer: (*peer).to_owned(),
                    layers: *layers,
                    pulled_bytes: 0,
                })
                .collect(),
        }
    }

    #[test]
    fn an_answer_of_the_wished_line_passes() {
        let whole = answer(&[("a", [0, 3]), ("b", [3, 4])]);
        assert!(whole.check(2).is_ok());
    }

    #[test]
    fn an_answer_is_refused_with_a_gap_a_repeated_peer_or_another_number_of_stages() {
        for (stages, wanted) in [
            (&[("a", [0, 3]), ("b", [4, 5])][..], 2),
            (&[("a", [0, 3]), ("a", [3, 4])][..], 2),
            (&[("a", [0, 4])][..], 2),
            (&[("a", [1, 4])][..], 1),
        ] {
            assert!(answer(stages).check(wanted).is_err(), "{stages:?}");
        }
    }

    #[test]
    fn an_answer_that_broke_off_or_is_empty_is_refused() {
        let mut broken = answer(&[("a", [0, 3])]);
        broken.finish_reason = "error".to_owned();
        assert!(broken.check(1).is_err());
        let mut empty = answer(&[("a", [0, 3])]);
        empty.tokens.clear();
        assert!(empty.check(1).is_err());
    }
}
