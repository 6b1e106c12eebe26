//! The handle that the rest of the agent holds.

use crate::{
    Identity, PeerEntry,
    advert::AdvertBody,
    directory::Directory,
    fleet::{Certificate, Invite, InviteTerms, MembershipError, Refusal, SharedMembership},
    gate::unix_now,
    join::{self, JoinError},
    rpc,
    streams::{Incoming, Stream, StreamError},
};
use libp2p::{Multiaddr, PeerId};
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};
use tokio::sync::{mpsc, oneshot, watch};

/// Addresses of other members that an invite carries at most.
const INVITE_OTHERS: usize = 4;

/// Why the network could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SwarmError {
    /// A socket or key could not be set up.
    #[error("cannot set up the network: {0}")]
    Setup(#[from] std::io::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// As given.
        address: Multiaddr,
        /// What the system says.
        why: String,
    },
    /// The swarm has shut down.
    #[error("the network has been shut down")]
    ShutDown,
}

/// Why a dial failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    /// The other side did not let us in.
    #[error("the other side refused: {0}")]
    RefusedByPeer(Refusal),
    /// We did not let the other side in.
    #[error("the machine there is no member of this fleet: {0}")]
    Refused(Refusal),
    /// Nobody answers, or somebody who is not meant.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The swarm has shut down.
    #[error("the network has been shut down")]
    ShutDown,
}

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// The request exceeds [`rpc::MAX_MESSAGE_BYTES`].
    #[error("a request of {0} bytes is too large")]
    TooLarge(usize),
    /// There is no connection and none could be made.
    #[error("peer {0} cannot be reached: {1}")]
    NotConnected(PeerId, String),
    /// No answer within [`rpc::TIMEOUT`].
    #[error("peer {0} did not answer in time")]
    TimedOut(PeerId),
    /// The other side dropped the request, or its answer was too large.
    #[error("peer {0} did not answer: {1}")]
    Failed(PeerId, String),
    /// The swarm has shut down.
    #[error("the network has been shut down")]
    ShutDown,
}

/// Why there is no invite.
#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    /// The membership does not allow it.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// Nobody could follow the invite.
    #[error("this machine listens nowhere, so nobody could follow an invite")]
    NoAddress,
}

/// Something that happened unasked.
#[derive(Debug)]
pub enum Event {
    /// A listener has a new address.
    Listening(Multiaddr),
    /// A member connected.
    Connected {
        /// Who.
        peer: PeerId,
        /// What its certificate calls it.
        name: String,
        /// The address of its end of the connection.
        address: Multiaddr,
    },
    /// The last connection to a member is gone.
    Disconnected {
        /// Who.
        peer: PeerId,
    },
    /// A member asks something.
    Request {
        /// Who.
        peer: PeerId,
        /// What it asks.
        body: Vec<u8>,
        /// Where the answer goes.
        responder: Responder,
    },
}

/// What happens unasked, in order. `None` after the swarm has shut down.
#[derive(Debug)]
pub struct Events(pub(super) mpsc::Receiver<Event>);

impl Events {
    /// The next event.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The next event if there is one now.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_recv().ok()
    }
}

/// Takes the answer to one request. Dropping it tells the asker that there is none.
#[derive(Debug)]
pub struct Responder(pub(super) oneshot::Sender<Vec<u8>>);

impl Responder {
    /// Answers. An answer above [`rpc::MAX_MESSAGE_BYTES`] is dropped with a log line.
    pub fn reply(self, body: Vec<u8>) {
        // The asker may be gone.
        let _ = self.0.send(body);
    }
}

pub(super) enum Command {
    Listen(Multiaddr, oneshot::Sender<Result<Multiaddr, SwarmError>>),
    Dial(Multiaddr, oneshot::Sender<Result<PeerId, DialError>>),
    Learn(Vec<Multiaddr>),
    Open {
        peer: PeerId,
        protocol: String,
        reply: oneshot::Sender<Result<Stream, StreamError>>,
    },
    Accept(String, oneshot::Sender<Result<Incoming, StreamError>>),
    Request {
        peer: PeerId,
        body: Vec<u8>,
        reply: oneshot::Sender<Result<Vec<u8>, RequestError>>,
    },
    Publish(Box<AdvertBody>),
    ShutDown(oneshot::Sender<()>),
}

/// What the loop learns and every handle may read.
pub(super) struct Shared {
    pub identity: Identity,
    pub membership: SharedMembership,
    pub directory: Mutex<Directory>,
    pub addresses: Mutex<Vec<Multiaddr>>,
    pub changed: watch::Sender<u64>,
}

impl Shared {
    pub(super) fn directory(&self) -> std::sync::MutexGuard<'_, Directory> {
        self.directory.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// A running network. Cloning is cheap; the network ends with [`shutdown`](Self::shutdown) or with the last clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    /// This machine.
    pub fn peer(&self) -> PeerId {
        self.shared.identity.peer()
    }

    /// This machine's membership.
    pub fn membership(&self) -> &SharedMembership {
        &self.shared.membership
    }

    /// Listens on one more address and returns the first address that this gives.
    pub async fn listen(&self, address: Multiaddr) -> Result<Multiaddr, SwarmError> {
        self.ask(|reply| Command::Listen(address, reply))
            .await
            .unwrap_or(Err(SwarmError::ShutDown))
    }

    /// Where this machine can be reached as far as it knows, each ending in `/p2p/<peer id>`: confirmed external
    /// addresses first, then those it listens on, loopback last.
    pub fn addresses(&self) -> Vec<Multiaddr> {
        self.shared
            .addresses
            .lock()
            .unwrap_or_else(|p| p.into_inner())
            .clone()
    }

    /// Connects to whoever is at `address`, or only to the peer it names. At once where that peer is connected.
    pub async fn dial(&self, address: Multiaddr) -> Result<PeerId, DialError> {
        self.ask(|reply| Command::Dial(address, reply))
            .await
            .unwrap_or(Err(DialError::ShutDown))
    }

    /// All members that are known, connected or not, by peer id. This machine is not among them.
    pub fn peers(&self) -> Vec<PeerEntry> {
        self.shared.directory().snapshot(Instant::now())
    }

    /// Changes whenever [`peers`](Self::peers) says something new about who is there or what they advertise. Round-trip
    /// times and unchanged repetitions do not count.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Opens a stream for `protocol` (such as `/skein/step/1`) to a member, connecting first if need be.
    pub async fn open_stream(&self, peer: PeerId, protocol: &str) -> Result<Stream, StreamError> {
        let protocol = protocol.to_owned();
        self.ask(|reply| Command::Open {
            peer,
            protocol,
            reply,
        })
        .await
        .unwrap_or(Err(StreamError::ShutDown))
    }

    /// Accepts streams for `protocol` until the result is dropped.
    pub async fn accept(&self, protocol: &str) -> Result<Incoming, StreamError> {
        let protocol = protocol.to_owned();
        self.ask(|reply| Command::Accept(protocol, reply))
            .await
            .unwrap_or(Err(StreamError::ShutDown))
    }

    /// Asks a member something, connecting first if need be.
    pub async fn request(&self, peer: PeerId, body: Vec<u8>) -> Result<Vec<u8>, RequestError> {
        if body.len() > rpc::MAX_MESSAGE_BYTES {
            return Err(RequestError::TooLarge(body.len()));
        }
        self.ask(|reply| Command::Request { peer, body, reply })
            .await
            .unwrap_or(Err(RequestError::ShutDown))
    }

    /// Says something new about this machine to the fleet: at once, and again until it is replaced. Changes that
    /// follow each other within half a second go out together.
    pub async fn publish(&self, body: AdvertBody) {
        // Nobody is left to be told after a shutdown.
        let _ = self.commands.send(Command::Publish(Box::new(body))).await;
    }

    /// Signs an invite that carries this machine's addresses and those of some other members. `expires` in unix
    /// seconds.
    pub async fn invite(&self, expires: u64, uses: u32) -> Result<Invite, InviteError> {
        let mut addresses = self.addresses();
        if addresses.is_empty() {
            return Err(InviteError::NoAddress);
        }
        addresses.truncate(crate::fleet::MAX_INVITE_ADDRESSES - INVITE_OTHERS);
        let others = self.peers().into_iter().filter(|entry| entry.connected);
        addresses.extend(
            others
                .filter_map(|entry| with_peer(entry.addresses.first()?.clone(), entry.peer))
                .take(INVITE_OTHERS),
        );
        let membership = self.shared.membership.clone();
        let terms = InviteTerms {
            expires,
            uses,
            addresses,
        };
        let signed = tokio::task::spawn_blocking(move || {
            membership.change(|membership| membership.invite(&terms, unix_now()))
        });
        match signed.await {
            Ok(invite) => Ok(invite?),
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Redeems an invite with its issuer: see [`join::redeem`]. Then hand the certificate to
    /// [`Membership::adopt`](crate::fleet::Membership::adopt) and the invite's addresses to [`learn`](Self::learn).
    pub async fn redeem(&self, invite: &Invite, name: &str) -> Result<Certificate, JoinError> {
        join::redeem(&self.shared.identity, invite, name, unix_now()).await
    }

    /// Tells where members can be reached; each address ends in `/p2p/<peer id>`. They are dialled in the background
    /// and remembered.
    pub async fn learn(&self, addresses: Vec<Multiaddr>) {
        let _ = self.commands.send(Command::Learn(addresses)).await;
    }

    /// Closes all connections and ends the event loop; returns when both is done.
    pub async fn shutdown(&self) {
        self.ask(Command::ShutDown).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// `address` with `/p2p/<peer>` at its end; `None` where it names another peer.
pub(super) fn with_peer(address: Multiaddr, peer: PeerId) -> Option<Multiaddr> {
    address.with_p2p(peer).ok()
}
