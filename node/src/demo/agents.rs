//! The demo's agents: started, asked, and ended whatever happens.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command as Process};

use crate::control::{self, Command, Event};
use crate::error::{Context, Error, Result};
use crate::objects::{AgentEvent, Status};
use crate::paths::Home;

/// An agent says that it is ready within a second or so.
const READY: Duration = Duration::from_secs(30);
/// Finding and measuring the devices takes a few seconds on an idle machine.
const AVAILABLE: Duration = Duration::from_secs(180);
/// Gossip and pings settle within seconds.
const PEERS: Duration = Duration::from_secs(60);
/// How often an agent is asked meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// An agent that was asked to stop ends within this time, or is killed.
const END: Duration = Duration::from_secs(10);

/// Everything that has to be cleared away at the end.
#[derive(Debug)]
pub struct Stage {
    folder: tempfile::TempDir,
    children: Arc<Mutex<Vec<Child>>>,
}

/// One agent process.
#[derive(Debug, Clone)]
pub struct Agent {
    pub name: String,
    pub home: Home,
    pub peer: String,
    pub addresses: Vec<String>,
}

impl Stage {
    /// A temporary folder for the homes.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("skein-demo-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        Ok(Stage {
            folder,
            children: Arc::default(),
        })
    }

    /// The home of an agent that may not have been started yet.
    pub fn home(&self, name: &str) -> Result<Home> {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).context("cannot make a home")?;
        std::fs::write(path.join("settings.toml"), format!("name = \"{name}\"\n"))
            .context("cannot write settings")?;
        Home::resolve(Some(&path))
    }

    /// Starts an agent on loopback and waits until it can be reached.
    pub async fn start(&self, name: &str, bootstrap: Option<&str>) -> Result<Agent> {
        let home = self.home(name)?;
        let folder: PathBuf = self.folder.path().join(name);
        let log = std::fs::File::create(folder.join("agent.log")).context("cannot write a log")?;
        let mut process = Process::new(crate::host::executable()?);
        process.arg("--home").arg(&folder).args([
            "--json",
            "agent",
            "--no-mdns",
            "--listen",
            "/ip4/127.0.0.1/tcp/0",
            "--until-stdin-closes",
        ]);
        if let Some(address) = bootstrap {
            process.args(["--bootstrap", address]);
        }
        let mut child = process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context(format_args!("cannot start the agent {name}"))?;
        let output = child.stdout.take();
        self.lock().push(child);
        let Some(output) = output else {
            return Err(Error::failed(format_args!(
                "the agent {name} has no output"
            )));
        };
        let mut lines = BufReader::new(output).lines();
        let first = tokio::time::timeout(READY, lines.next_line()).await;
        let Ok(Ok(Some(first))) = first else {
            return Err(Error::failed(format_args!(
                "the agent {name} did not start: {}",
                last_line(&folder)
            )));
        };
        let ready: AgentEvent = serde_json::from_str(&first)
            .map_err(|_| Error::failed(format_args!("the agent {name} did not start: {first}")))?;
        // What it says later is its log's business, but its pipe must not fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        match ready {
            AgentEvent::Ready {
                peer, addresses, ..
            } => Ok(Agent {
                name: name.to_owned(),
                home,
                peer,
                addresses,
            }),
            other => Err(Error::failed(format_args!(
                "the agent {name} began with {other:?}"
            ))),
        }
    }

    /// Ends every agent and removes every file.
    pub async fn clear(self) {
        let children = std::mem::take(&mut *self.lock());
        let ending = children.into_iter().map(|mut child| async move {
            // Its parent's pipe closes: that is how it knows.
            drop(child.stdin.take());
            if tokio::time::timeout(END, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        });
        futures::future::join_all(ending).await;
        if let Err(error) = self.folder.close() {
            tracing::warn!(%error, "the demo's folder could not be removed");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Child>> {
        self.children
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Agent {
    /// Asks something, without looking at what happens on the way.
    pub async fn call<T: DeserializeOwned>(&self, command: Command) -> Result<T> {
        self.follow(command, |_| ()).await
    }

    /// Asks something and shows what happens on the way.
    pub async fn follow<T: DeserializeOwned>(
        &self,
        command: Command,
        mut show: impl FnMut(Event),
    ) -> Result<T> {
        let answer = control::call(&self.home, command, |event| {
            show(event);
            Ok(())
        });
        answer.await.map_err(|error| Error {
            message: format!("{}: {}", self.name, error.message),
            ..error
        })
    }

    /// Waits until the agent knows its devices.
    pub async fn available(&self) -> Result<()> {
        self.wait("its devices", AVAILABLE, |status| {
            match (status.state.as_str(), &status.reason) {
                ("starting", _) => Ok(false),
                ("unavailable", reason) => Err(Error::failed(format_args!(
                    "{}: {}",
                    self.name,
                    reason.as_deref().unwrap_or("unavailable")
                ))),
                _ => Ok(true),
            }
        })
        .await
    }

    /// Waits until the agent hears from these peers, and from what they advertise that they can compute.
    pub async fn sees(&self, peers: &[&Agent]) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PEERS;
        loop {
            let seen: Vec<crate::objects::Peer> = self.call(Command::Peers).await?;
            let there = |wanted: &&Agent| {
                let usable = |peer: &crate::objects::Peer| {
                    matches!(peer.state.as_str(), "available" | "working")
                };
                seen.iter()
                    .any(|peer| peer.peer == wanted.peer && usable(peer))
            };
            if peers.iter().all(there) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Error::failed(format_args!(
                    "{} does not see all its peers",
                    self.name
                )));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn wait(
        &self,
        what: &str,
        within: Duration,
        done: impl Fn(&Status) -> Result<bool>,
    ) -> Result<()> {
        let deadline = tokio::time::Instant::now() + within;
        while !done(&self.call(Command::Status).await?)? {
            if tokio::time::Instant::now() > deadline {
                return Err(Error::failed(format_args!(
                    "{} waited {} s for {what}",
                    self.name,
                    within.as_secs()
                )));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

/// The last line of an agent's log, to say why it did not start.
fn last_line(folder: &std::path::Path) -> String {
    let log = std::fs::read_to_string(folder.join("agent.log")).unwrap_or_default();
    log.lines().last().unwrap_or("it said nothing").to_owned()
}
