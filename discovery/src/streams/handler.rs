//! The streams of one connection.

use super::{Accepted, Reply, Stream, StreamError};
use libp2p::{
    PeerId, StreamProtocol,
    core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo},
    swarm::{
        ConnectionHandler, ConnectionHandlerEvent, StreamUpgradeError, SubstreamProtocol,
        handler::{
            ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
        },
    },
};
use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    io,
    task::{Context, Poll},
};
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Streams of one connection that may be on their way to being open. Each is one round trip; a line opens one per
/// neighbour, a transfer a few.
const MAX_OPENING: usize = 128;

/// A stream to open.
pub(crate) struct Order {
    pub(super) protocol: StreamProtocol,
    pub(super) reply: Reply,
}

impl Order {
    pub(super) fn fail(self, error: io::Error) {
        let _ = self.reply.send(Err(error.into()));
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Order").field(&self.protocol).finish()
    }
}

/// Accepts any of these protocols and hands the bare stream on.
#[derive(Debug)]
pub(crate) struct Bare(Vec<StreamProtocol>);

impl UpgradeInfo for Bare {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<libp2p::Stream> for Bare {
    type Output = (libp2p::Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: libp2p::Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<libp2p::Stream> for Bare {
    type Output = libp2p::Stream;
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: libp2p::Stream, _: StreamProtocol) -> Self::Future {
        ready(Ok(stream))
    }
}

/// One connection's part of the streams behaviour.
#[derive(Debug)]
pub(crate) struct Handler {
    peer: PeerId,
    accepted: Accepted,
    waiting: VecDeque<Order>,
    opening: usize,
}

impl Handler {
    pub(super) fn new(peer: PeerId, accepted: Accepted) -> Self {
        Self {
            peer,
            accepted,
            waiting: VecDeque::new(),
            opening: 0,
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Order;
    type ToBehaviour = Infallible;
    type InboundProtocol = Bare;
    type OutboundProtocol = Bare;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Order;

    fn listen_protocol(&self) -> SubstreamProtocol<Bare> {
        SubstreamProtocol::new(Bare(self.accepted.names()), ())
    }

    /// Members stay connected while idle: the next request must not wait for a handshake.
    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Bare, Order, Infallible>> {
        match self.waiting.pop_front() {
            Some(order) => Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                protocol: SubstreamProtocol::new(Bare(vec![order.protocol.clone()]), order),
            }),
            None => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, order: Order) {
        if self.opening >= MAX_OPENING {
            let _ = order.reply.send(Err(StreamError::Busy));
            return;
        }
        self.opening += 1;
        self.waiting.push_back(order);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Bare, Bare, (), Order>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (stream, protocol),
                ..
            }) => self.accepted.deliver(self.peer, &protocol, stream),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: stream,
                info,
            }) => {
                self.opening -= 1;
                let _ = info.reply.send(Ok(Stream(stream.compat())));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                self.opening -= 1;
                let error = match error {
                    StreamUpgradeError::NegotiationFailed => {
                        StreamError::Unsupported(info.protocol.to_string())
                    }
                    StreamUpgradeError::Timeout => io::Error::from(io::ErrorKind::TimedOut).into(),
                    StreamUpgradeError::Io(error) => error.into(),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                let _ = info.reply.send(Err(error));
            }
            _ => {}
        }
    }
}
