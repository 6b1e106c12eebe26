//! Small questions and answers between members: bytes out, bytes back.
//!
//! # On the wire
//! A substream per request. Request and response are each one frame: `[u32 little-endian length][bytes]`. The protocol
//! `/skein/rpc/1` carries whatever the agent puts in, up to [`MAX_MESSAGE_BYTES`]; `/skein/advert/1` exchanges adverts
//! (see [`advert`](crate::advert)) when two members connect. An answer must come within [`TIMEOUT`]. A request that is
//! dropped unanswered closes the substream.

use crate::wire;
use futures::{AsyncRead, AsyncWrite, AsyncWriteExt};
use libp2p::{StreamProtocol, request_response};
use std::{io, time::Duration};

/// Longest request or response: a plan, a manifest, a list of segments. Larger things go over a stream.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// From sending a request to having its answer. Work that takes longer is started by one request and asked for by
/// another.
pub const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const PROTOCOL: StreamProtocol = StreamProtocol::new("/skein/rpc/1");
pub(crate) const ADVERT_PROTOCOL: StreamProtocol = StreamProtocol::new("/skein/advert/1");

/// Requests of one connection that may be open at once, either way.
const MAX_CONCURRENT: usize = 64;

/// Frames of at most `limit` bytes.
#[derive(Debug, Clone)]
pub(crate) struct Codec {
    limit: usize,
}

pub(crate) type Behaviour = request_response::Behaviour<Codec>;

pub(crate) fn behaviour(protocol: StreamProtocol, limit: usize) -> Behaviour {
    request_response::Behaviour::with_codec(
        Codec { limit },
        [(protocol, request_response::ProtocolSupport::Full)],
        request_response::Config::default()
            .with_request_timeout(TIMEOUT)
            .with_max_concurrent_streams(MAX_CONCURRENT),
    )
}

impl request_response::Codec for Codec {
    type Protocol = StreamProtocol;
    type Request = Vec<u8>;
    type Response = Vec<u8>;

    async fn read_request<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        wire::read_frame(io, self.limit).await
    }

    async fn read_response<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        wire::read_frame(io, self.limit).await
    }

    async fn write_request<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        request: Vec<u8>,
    ) -> io::Result<()> {
        wire::write_frame(io, &request, self.limit).await?;
        io.close().await
    }

    async fn write_response<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        response: Vec<u8>,
    ) -> io::Result<()> {
        wire::write_frame(io, &response, self.limit).await?;
        io.close().await
    }
}
