//! The agent: the daemon on every machine. It holds the store, the membership and the network, takes part in lines,
//! and answers the command line.
//!
//! | module | what it holds |
//! |---|---|
//! | [`run`] | start, wait, end |
//! | [`service`] | what the command line may ask |
//! | [`ask`] | a request: model, line, tokens, text |
//! | [`remote`] | a request whose line has its head on another machine |
//! | [`lines`] | the lines this machine heads: find one, plan one, build one |
//! | [`prepare`] | what a stage needs before it can take steps: bytes, graph, worker |
//! | [`rehearse`] | one stage outside any line, for checks |
//! | [`content`] | manifests and segments, from the store or from peers |
//! | [`candidates`] | what peers advertise, as the planner wants it |
//! | [`announce`] | what this machine advertises |
//! | [`devices`] | the runtime, the devices and how fast they are |
//! | [`memory`], [`serving`] | what is set aside, and for which stages |

pub mod announce;
pub mod ask;
pub mod candidates;
pub mod content;
pub mod devices;
pub mod lines;
pub mod memory;
pub mod prepare;
pub mod rehearse;
pub mod remote;
pub mod run;
pub mod service;
pub mod serving;

use std::sync::{Arc, RwLock};

use skein_discovery::{Handle, PeerEntry, PeerId};
use skein_shards::store::Store;
use tokio::sync::{Notify, watch};

use crate::line::head::Lines;
use crate::line::hops::{BoxIo, Hops};
use crate::objects::AgentEvent;
use crate::settings::AgentOptions;
use devices::Machine;
use memory::MemoryAccount;
use serving::Serving;

/// What every part of a running agent shares.
pub struct Shared {
    /// This machine's peer id.
    pub peer: String,
    /// This machine's name in the fleet.
    pub name: String,
    pub options: AgentOptions,
    pub store: Store,
    pub network: Handle,
    pub memory: MemoryAccount,
    /// Hops that stages on this machine wait for.
    pub hops: Hops,
    /// Stages that this machine carries.
    pub serving: Serving,
    /// Lines that this machine heads.
    pub lines: Lines,
    /// One line is planned and built at a time, so that two requests do not build the same.
    pub building: tokio::sync::Mutex<()>,
    /// The runtime and the devices, once they are known.
    pub machine: RwLock<Machine>,
    pub tokenizers: content::Tokenizers,
    /// Something changed that peers should hear of.
    pub changed: Notify,
    /// Says why this machine withdraws from its lines, when it does.
    pub withdrawal: watch::Sender<Option<String>>,
    /// Told once when the agent has to end.
    pub stop: watch::Sender<bool>,
    /// The owner lets logits leave this machine in debug chunks.
    pub allow_logits: bool,
}

impl Shared {
    /// Why this machine takes no new stage, or nothing where it does.
    pub fn unavailable(&self) -> Option<String> {
        if *self.stop.borrow() {
            return Some("it is stopping".into());
        }
        match &*self
            .machine
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
        {
            Machine::Starting => Some("it is still starting".into()),
            Machine::Without { reason } => Some(reason.clone()),
            Machine::Ready { .. } => None,
        }
    }

    /// Resolves with the reason when this machine has to leave its lines.
    pub fn withdrawn(&self) -> Withdrawn {
        Withdrawn(self.withdrawal.subscribe())
    }

    /// The members that are known, by peer id.
    pub fn peers(&self) -> Vec<PeerEntry> {
        self.network.peers()
    }

    /// Opens a stream to a member.
    pub async fn open_stream(&self, peer: &str, protocol: &str) -> Result<BoxIo, String> {
        let peer: PeerId = peer
            .parse()
            .map_err(|_| format!("{peer} is not a peer id"))?;
        match self.network.open_stream(peer, protocol).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A member's name, or the start of its id where it has none.
    pub fn name_of(&self, peer: &str) -> String {
        if peer == self.peer {
            return self.name.clone();
        }
        let named = self
            .peers()
            .into_iter()
            .find(|entry| entry.peer.to_string() == peer);
        match named {
            Some(entry) if !entry.name.is_empty() => entry.name,
            _ => peer
                .chars()
                .rev()
                .take(8)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect(),
        }
    }

    /// Tells whoever started the agent in `--json` that something happened.
    pub fn tell(&self, event: &AgentEvent) {
        if self.options.json {
            crate::output::json(event);
        }
    }
}

/// Waits for a withdrawal.
pub struct Withdrawn(watch::Receiver<Option<String>>);

impl Withdrawn {
    /// The reason, once there is one.
    pub async fn changed(&mut self) -> String {
        match self.0.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "its agent ended".into(),
        }
    }
}

/// A random 64-bit id that is not zero.
pub fn random_id() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Keyed by the system's randomness and different each time; a name that does not collide, not a secret.
    RandomState::new().build_hasher().finish().max(1)
}

/// An agent that runs.
pub type Agent = Arc<Shared>;
