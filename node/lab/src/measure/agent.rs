//! Agents of this machine that talk over loopback.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::process::{self, Guarded};

/// For commands that only ask.
pub const SHORT: Duration = Duration::from_secs(120);
/// For an import, and for an answer or logits of a large model on a busy machine.
pub const LONG: Duration = Duration::from_secs(3_600);

/// One Skein with a home of its own.
#[derive(Debug)]
pub struct Skein {
    program: PathBuf,
    home: PathBuf,
}

/// A running agent; ended when this is dropped.
#[derive(Debug)]
pub struct Agent {
    process: Guarded,
    /// What it logs.
    pub log: PathBuf,
}

impl Skein {
    /// The home is made where it does not exist.
    pub fn new(program: &Path, home: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make {home:?}"))?;
        Ok(Skein {
            program: program.to_owned(),
            home,
        })
    }

    /// Writes the home's settings; an agent reads them when it starts.
    pub fn set(&self, settings: &str) -> anyhow::Result<()> {
        let file = self.home.join("settings.toml");
        std::fs::write(&file, settings).with_context(|| format!("cannot write {file:?}"))
    }

    /// Runs a command with `--json` and reads its object.
    pub fn call<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
        most: Duration,
    ) -> anyhow::Result<T> {
        // A prompt or hundreds of ids would drown the message.
        let what = format!("`skein {}`", arguments[..arguments.len().min(3)].join(" "));
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .arg("--json")
            .env("SKEIN_HOME", &self.home);
        let output = process::run(&what, &mut command, most)?;
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

    /// Starts the agent and waits until it has its devices.
    pub fn start(&self, flags: &[&str]) -> anyhow::Result<Agent> {
        // It would answer in the new one's place, with other settings.
        let another = self.call::<Value>(&["status"], SHORT).is_ok();
        ensure!(!another, "an agent runs in {:?} already", self.home);
        let log = self.home.join("measure.log");
        let stderr = File::create(&log).with_context(|| format!("cannot write {log:?}"))?;
        let mut command = Command::new(&self.program);
        command
            .args(["agent", "--no-mdns", "--listen", "/ip4/127.0.0.1/tcp/0"])
            .args(flags)
            .env("SKEIN_HOME", &self.home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let process = Guarded::spawn("an agent", &mut command)?;
        let agent = Agent { process, log };
        self.call::<Value>(
            &["status", "--wait", "ready", "--timeout", "180s"],
            Duration::from_secs(200),
        )
        .with_context(|| agent.last_words())?;
        Ok(agent)
    }
}

impl Agent {
    /// The end of its log, for an error message.
    pub fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        format!("its log ends with:\n    {}", process::last_lines(&log))
    }

    /// Ends it now.
    pub fn stop(mut self) {
        self.process.end();
    }
}
