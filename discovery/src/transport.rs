//! How bytes reach another machine: TCP (noise, yamux) and QUIC, with DNS names, and relayed circuits.
//!
//! [`direct`] is bare: whoever uses it has to keep the [`gate`](crate::gate) itself. [`gated`] is what the swarm gets.

mod toll;

pub(crate) use toll::Barrier;

use crate::{
    Identity,
    gate::{Connection, Gate},
};
use futures::{AsyncRead, AsyncWrite};
use libp2p::{
    PeerId, Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, timeout::TransportTimeout},
        upgrade::Version,
    },
    dns, noise, quic, relay, tcp, yamux,
};
use std::{io, time::Duration};
use toll::{TolledMuxer, TolledYamux};

/// Dialling or accepting, encryption and the gate together.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// What a peer may have in flight to us on one QUIC connection; also what a stranger can make us hold before the
/// gate. 4 MiB keep a 300 Mbit/s link of 100 ms busy.
const QUIC_CONNECTION_BYTES: u32 = 4 * 1024 * 1024;
/// Substreams of one connection: shard transfers, step streams and requests of one peer.
const MAX_SUBSTREAMS: u32 = 256;

/// TCP and QUIC with host names; authenticated, not gated.
pub(crate) fn direct(identity: &Identity) -> io::Result<Boxed<Connection>> {
    match dns::tokio::Transport::system(numeric(identity)?) {
        Ok(named) => Ok(named.boxed()),
        Err(error) => {
            // Numeric addresses do not need a resolver.
            tracing::debug!(%error, "host names cannot be resolved here");
            numeric(identity)
        }
    }
}

/// Everything, behind the gate.
pub(crate) fn gated(
    identity: &Identity,
    circuits: Option<relay::client::Transport>,
    gate: Gate,
) -> io::Result<Boxed<(PeerId, StreamMuxerBox)>> {
    let direct = direct(identity)?;
    let ungated = match circuits {
        None => direct,
        Some(circuits) => circuits
            .upgrade(Version::V1Lazy)
            .authenticate(noise_config(identity)?)
            .multiplex(yamux())
            .map(|(peer, muxer), _| tolled(peer, muxer))
            .or_transport(direct)
            .map(|either, _| either.into_inner())
            .boxed(),
    };
    let gated = ungated.and_then(move |connection, point| gate.pass(connection, point));
    Ok(TransportTimeout::new(gated, CONNECT_TIMEOUT).boxed())
}

fn numeric(identity: &Identity) -> io::Result<Boxed<Connection>> {
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise_config(identity)?)
        .multiplex(yamux())
        .map(|(peer, muxer), _| tolled(peer, muxer));
    let mut config = quic::Config::new(identity.keypair());
    config.max_connection_data = QUIC_CONNECTION_BYTES;
    config.max_stream_data = QUIC_CONNECTION_BYTES;
    config.max_concurrent_stream_limit = MAX_SUBSTREAMS;
    let quic = quic::tokio::Transport::new(config).map(|(peer, muxer), _| Connection {
        peer,
        muxer: StreamMuxerBox::new(muxer),
        barrier: None,
    });
    Ok(quic
        .or_transport(tcp)
        .map(|either, _| either.into_inner())
        .boxed())
}

fn noise_config(identity: &Identity) -> io::Result<noise::Config> {
    noise::Config::new(identity.keypair()).map_err(io::Error::other)
}

fn yamux() -> TolledYamux {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(MAX_SUBSTREAMS as usize);
    TolledYamux(config)
}

fn tolled<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    peer: PeerId,
    muxer: TolledMuxer<S>,
) -> Connection {
    Connection {
        peer,
        barrier: Some(muxer.barrier.clone()),
        muxer: StreamMuxerBox::new(muxer),
    }
}
