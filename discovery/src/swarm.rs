//! The network of one agent: an event loop that owns libp2p's swarm, behind a [`Handle`] that anybody may clone.
//!
//! [`Swarm::spawn`] starts the loop as a task. The handle sends it commands over a bounded queue and reads what it
//! learns from a shared directory; things that happen unasked arrive as [`Event`]s. Only members of the own fleet are
//! ever seen here: everybody else fails at the [`gate`](crate::gate).
//!
//! How members find each other: mDNS on the local network, the addresses in an invite, those in the address book
//! (`peers.cbor` in the agent's folder), those other members tell (identify, Kademlia, adverts). Known members that are
//! not connected are dialled again and again, with growing waits of up to a minute. Across NATs, where the
//! configuration allows it: AutoNAT finds out, other members relay, DCUtR makes the connection direct.
//!
//! # Protocols on a connection
//! | protocol | what |
//! |---|---|
//! | (none, first substream) | the gate |
//! | `/ipfs/id/1.0.0`, `/ipfs/id/push/1.0.0` | identify; protocol version `skein/1`, agent version from the configuration |
//! | `/ipfs/ping/1.0.0` | round-trip times |
//! | `/skein/kad/1/<fleet id>` | Kademlia, peer routing only; records are refused |
//! | `/meshsub/…` | gossipsub 1.1+, strictly signed, topic `skein/advert/1/<fleet id>` |
//! | `/skein/advert/1`, `/skein/rpc/1` | see [`rpc`](crate::rpc) and [`advert`](crate::advert) |
//! | `/libp2p/autonat/1.0.0`, `/libp2p/circuit/relay/0.2.0/…`, `/libp2p/dcutr` | where `wide_area` is on |
//! | any other | see [`streams`](crate::streams) |

mod behaviour;
mod driver;
mod handle;

pub use handle::{
    DialError, Event, Events, Handle, InviteError, RequestError, Responder, SwarmError,
};

use crate::{Identity, fleet::SharedMembership};
use libp2p::Multiaddr;
use std::{path::PathBuf, time::Duration};

/// Commands that may wait for the event loop; a caller that finds the queue full waits with them.
const COMMAND_QUEUE: usize = 256;
/// Events that may wait for the agent. Beyond it requests are refused and notices are dropped, both with a log line.
const EVENT_QUEUE: usize = 1_024;

/// How to run a network.
#[derive(Debug, Clone)]
pub struct SwarmConfig {
    /// Where to listen; port 0 takes any free port. May be empty.
    pub listen: Vec<Multiaddr>,
    /// Addresses at which the owner knows this machine to be reachable from outside, such as a forwarded port.
    pub external: Vec<Multiaddr>,
    /// Find members on the local network.
    pub mdns: bool,
    /// Help members through NATs and be helped: AutoNAT, relay, hole punching. Of no use on loopback.
    pub wide_area: bool,
    /// What to tell other members about this build, such as `skein/0.1.0`.
    pub agent_version: String,
    /// The agent's folder, for the address book; `None` keeps it in memory.
    pub home: Option<PathBuf>,
    /// How often an unchanged advert is repeated.
    pub advert_every: Duration,
    /// How long an advert lives at its receivers.
    pub advert_lifetime: Duration,
}

impl Default for SwarmConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            external: Vec::new(),
            mdns: true,
            wide_area: false,
            agent_version: concat!("skein/", env!("CARGO_PKG_VERSION")).to_owned(),
            home: None,
            advert_every: Duration::from_secs(5),
            advert_lifetime: Duration::from_secs(20),
        }
    }
}

/// The entry point; the running network is its [`Handle`].
#[derive(Debug)]
pub struct Swarm;

impl Swarm {
    /// Starts the event loop on the current tokio runtime. Returns once every configured listener has an address, or
    /// with what keeps one from listening.
    pub async fn spawn(
        identity: Identity,
        membership: SharedMembership,
        config: SwarmConfig,
    ) -> Result<(Handle, Events), SwarmError> {
        driver::spawn(identity, membership, config).await
    }
}
