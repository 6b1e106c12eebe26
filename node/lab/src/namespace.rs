//! One network namespace, deleted with its value.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process;

/// Where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";

/// A network namespace with only its loopback interface up.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Its name is `stem` with a random end, so benches do not meet.
    pub fn create(stem: &str) -> anyhow::Result<Self> {
        let namespace = Namespace {
            name: format!("skein-lab-{stem}-{:08x}", random()?),
        };
        ip(&["netns", "add", &namespace.name])?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// `ip` inside.
    pub fn ip(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let inside = ["-n", &self.name];
        ip(&[&inside, arguments].concat())
    }

    /// `program` inside; arguments are yet to be added.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` on a thread of its own inside; sockets and devices opened there stay there.
    pub fn enter<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let path = PathBuf::from(NAMES).join(&self.name);
        let inside = File::open(&path).with_context(|| format!("cannot open {path:?}"))?;
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("cannot enter a network namespace")?;
                work()
            });
            match worker.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread in namespace {} panicked", self.name),
            }
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            eprintln!("warning: namespace {} stays: {error:#}", self.name);
        }
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    let done = process::apart(command.args(arguments))
        .output()
        .context("cannot run `ip`")?;
    ensure!(
        done.status.success(),
        "`ip {}` failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}

fn random() -> anyhow::Result<u32> {
    use std::io::Read;
    let mut bytes = [0; 4];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(u32::from_le_bytes(bytes))
}
