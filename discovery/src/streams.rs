//! Raw streams between members, by protocol name.
//!
//! A stream is a substream of the connection, negotiated with multistream-select under its protocol name (such as
//! `/skein/step/1`); after that it carries the agents' bytes and nothing of ours. Inbound streams wait in a bounded
//! queue per protocol; one that finds it full is dropped, which the opener sees as a closed stream, and logged.
//!
//! This behaviour also keeps connections between members open while they are idle. It never dials: the
//! [`swarm`](crate::swarm) does.

mod handler;

use handler::{Handler, Order};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{Endpoint, transport::PortUse},
    swarm::{
        ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour,
        NotifyHandler, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
        behaviour::ConnectionEstablished,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::Pin,
    sync::{Arc, RwLock},
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, oneshot},
};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

/// Inbound streams of one protocol that may wait to be taken. A burst from a whole fleet fits.
pub const INCOMING_QUEUE: usize = 64;

/// A stream to or from another member. Dropping it resets it; `shutdown` ends one direction cleanly.
pub struct Stream(Compat<libp2p::Stream>);

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// There is no connection and none could be made.
    #[error("peer {0} cannot be reached: {1}")]
    NotConnected(PeerId, String),
    /// The other side does not speak the protocol now.
    #[error("the peer does not speak {0}")]
    Unsupported(String),
    /// The name is no protocol name: it has to begin with a slash.
    #[error("\"{0}\" is no protocol name")]
    NoProtocol(String),
    /// Somebody here accepts that protocol already.
    #[error("{0} is being accepted already")]
    AlreadyAccepted(String),
    /// Too many streams of that connection are being opened.
    #[error("too many streams are being opened at once")]
    Busy,
    /// The connection failed or the other side was too slow.
    #[error("the stream could not be opened: {0}")]
    Io(#[from] io::Error),
    /// The swarm has shut down.
    #[error("the network has been shut down")]
    ShutDown,
}

/// Inbound streams of one protocol. Dropping it ends the acceptance.
#[derive(Debug)]
pub struct Incoming(mpsc::Receiver<(PeerId, Stream)>);

impl Incoming {
    /// The next stream and who opened it; `None` after the swarm has shut down.
    pub async fn next(&mut self) -> Option<(PeerId, Stream)> {
        self.0.recv().await
    }
}

type Reply = oneshot::Sender<Result<Stream, StreamError>>;

/// The protocols accepted now; shared with every connection's handler.
#[derive(Debug, Clone, Default)]
struct Accepted(Arc<RwLock<BTreeMap<String, Arrivals>>>);

/// Where the streams of one protocol go.
type Arrivals = mpsc::Sender<(PeerId, Stream)>;

impl Accepted {
    fn names(&self) -> Vec<StreamProtocol> {
        let table = self.0.read().unwrap_or_else(|p| p.into_inner());
        table
            .iter()
            .filter(|(_, queue)| !queue.is_closed())
            .filter_map(|(name, _)| StreamProtocol::try_from_owned(name.clone()).ok())
            .collect()
    }

    fn deliver(&self, peer: PeerId, protocol: &StreamProtocol, stream: libp2p::Stream) {
        let table = self.0.read().unwrap_or_else(|p| p.into_inner());
        let delivered = match table.get(protocol.as_ref()) {
            Some(queue) => queue
                .try_send((peer, Stream(stream.compat())))
                .map_err(|error| match error {
                    mpsc::error::TrySendError::Full(_) => "its queue is full",
                    mpsc::error::TrySendError::Closed(_) => "nobody accepts it any more",
                }),
            None => Err("nobody accepts it any more"),
        };
        if let Err(why) = delivered {
            tracing::warn!(target: "skein::streams", %peer, %protocol, "dropped an inbound stream: {why}");
        }
    }
}

/// Opens and accepts streams over the connections there are.
#[derive(Default)]
pub(crate) struct Behaviour {
    accepted: Accepted,
    connections: BTreeMap<PeerId, Vec<Connection>>,
    orders: VecDeque<(PeerId, ConnectionId, Order)>,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    relayed: bool,
}

impl Behaviour {
    /// Starts to accept `protocol`.
    pub(crate) fn accept(&mut self, protocol: &str) -> Result<Incoming, StreamError> {
        StreamProtocol::try_from_owned(protocol.to_owned())
            .map_err(|_| StreamError::NoProtocol(protocol.to_owned()))?;
        let mut table = self.accepted.0.write().unwrap_or_else(|p| p.into_inner());
        table.retain(|_, queue| !queue.is_closed());
        if table.contains_key(protocol) {
            return Err(StreamError::AlreadyAccepted(protocol.to_owned()));
        }
        let (queue, incoming) = mpsc::channel(INCOMING_QUEUE);
        table.insert(protocol.to_owned(), queue);
        Ok(Incoming(incoming))
    }

    /// Opens a stream over the best connection to `peer`: a direct one rather than a relayed one, then the oldest.
    pub(crate) fn open(&mut self, peer: PeerId, protocol: &str, reply: Reply) {
        let Ok(name) = StreamProtocol::try_from_owned(protocol.to_owned()) else {
            let _ = reply.send(Err(StreamError::NoProtocol(protocol.to_owned())));
            return;
        };
        let best = self
            .connections
            .get(&peer)
            .and_then(|open| open.iter().min_by_key(|connection| connection.relayed));
        match best {
            Some(connection) => self.orders.push_back((
                peer,
                connection.id,
                Order {
                    protocol: name,
                    reply,
                },
            )),
            None => {
                let error = StreamError::NotConnected(peer, "no connection".into());
                let _ = reply.send(Err(error));
            }
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = std::convert::Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(peer, self.accepted.clone()))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(peer, self.accepted.clone()))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            }) => self
                .connections
                .entry(peer_id)
                .or_default()
                .push(Connection {
                    id: connection_id,
                    relayed: endpoint.is_relayed(),
                }),
            FromSwarm::ConnectionClosed(ConnectionClosed {
                peer_id,
                connection_id,
                ..
            }) => {
                if let Some(open) = self.connections.get_mut(&peer_id) {
                    open.retain(|connection| connection.id != connection_id);
                    if open.is_empty() {
                        self.connections.remove(&peer_id);
                    }
                }
                // Orders for a connection that is gone would be lost without a word.
                let (lost, kept): (VecDeque<_>, _) = std::mem::take(&mut self.orders)
                    .into_iter()
                    .partition(|(_, id, _)| *id == connection_id);
                self.orders = kept;
                for (_, _, order) in lost {
                    order.fail(io::ErrorKind::ConnectionReset.into());
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // `open` is called by the swarm's own loop, which polls again afterwards.
        match self.orders.pop_front() {
            Some((peer_id, connection, event)) => Poll::Ready(ToSwarm::NotifyHandler {
                peer_id,
                handler: NotifyHandler::One(connection),
                event,
            }),
            None => Poll::Pending,
        }
    }
}
