//! Holds back what a TCP peer sends before it has passed the gate.
//!
//! yamux grants every new substream a window of 256 KiB and cannot be told to grant less, so a stranger could make us
//! buffer many megabytes in the seconds before the gate times out. Beneath yamux, this lets [`BEFORE_THE_GATE`] bytes
//! through and then stops reading until the gate opens: TCP's own flow control holds the rest back at the sender.
//! (QUIC's windows are configured instead.)

use futures::{AsyncRead, AsyncWrite, future, task::AtomicWaker};
use libp2p::{
    core::{
        StreamMuxer, UpgradeInfo,
        muxing::StreamMuxerEvent,
        upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade},
    },
    yamux,
};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

/// The gate's longest messages and yamux's frames around them fit twice.
const BEFORE_THE_GATE: usize = 16 * 1024;

/// Opened by whoever let the peer in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier(Arc<State>);

#[derive(Debug, Default)]
struct State {
    open: AtomicBool,
    waiting: AtomicWaker,
}

impl Barrier {
    /// Lets everything through from now on.
    pub(crate) fn open(&self) {
        self.0.open.store(true, Ordering::Release);
        self.0.waiting.wake();
    }

    fn poll_open(&self, cx: &Context<'_>) -> bool {
        if self.0.open.load(Ordering::Acquire) {
            return true;
        }
        self.0.waiting.register(cx.waker());
        // It may have opened between the look and the registration.
        self.0.open.load(Ordering::Acquire)
    }
}

/// A connection that reads [`BEFORE_THE_GATE`] bytes and then waits for its barrier.
#[derive(Debug)]
pub(crate) struct Toll<S> {
    io: S,
    left: usize,
    barrier: Barrier,
}

impl<S: AsyncRead + Unpin> AsyncRead for Toll<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        // Once everything may pass, the barrier is not looked at again.
        if this.left == usize::MAX || this.left == 0 && this.barrier.poll_open(cx) {
            this.left = usize::MAX;
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        if this.left == 0 {
            return Poll::Pending;
        }
        let length = buffer.len().min(this.left);
        let read = Pin::new(&mut this.io).poll_read(cx, &mut buffer[..length]);
        if let Poll::Ready(Ok(count)) = read {
            this.left -= count;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Toll<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

/// yamux over a [`Toll`].
#[derive(Debug, Clone)]
pub(super) struct TolledYamux(pub yamux::Config);

impl UpgradeInfo for TolledYamux {
    type Info = <yamux::Config as UpgradeInfo>::Info;
    type InfoIter = <yamux::Config as UpgradeInfo>::InfoIter;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.protocol_info()
    }
}

type Upgrading<S> = future::Ready<io::Result<TolledMuxer<S>>>;

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<S>
    for TolledYamux
{
    type Output = TolledMuxer<S>;
    type Error = io::Error;
    type Future = Upgrading<S>;

    fn upgrade_inbound(self, io: S, info: Self::Info) -> Self::Future {
        let (toll, barrier) = toll(io);
        let upgraded = self.0.upgrade_inbound(toll, info).into_inner();
        future::ready(upgraded.map(|muxer| TolledMuxer { muxer, barrier }))
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<S>
    for TolledYamux
{
    type Output = TolledMuxer<S>;
    type Error = io::Error;
    type Future = Upgrading<S>;

    fn upgrade_outbound(self, io: S, info: Self::Info) -> Self::Future {
        let (toll, barrier) = toll(io);
        let upgraded = self.0.upgrade_outbound(toll, info).into_inner();
        future::ready(upgraded.map(|muxer| TolledMuxer { muxer, barrier }))
    }
}

fn toll<S>(io: S) -> (Toll<S>, Barrier) {
    let barrier = Barrier::default();
    let toll = Toll {
        io,
        left: BEFORE_THE_GATE,
        barrier: barrier.clone(),
    };
    (toll, barrier)
}

/// A muxer and the barrier beneath it.
pub(super) struct TolledMuxer<S> {
    muxer: yamux::Muxer<Toll<S>>,
    pub barrier: Barrier,
}

type Inner<S> = yamux::Muxer<Toll<S>>;

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> StreamMuxer for TolledMuxer<S> {
    type Substream = <Inner<S> as StreamMuxer>::Substream;
    type Error = <Inner<S> as StreamMuxer>::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.muxer).poll_inbound(cx)
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.muxer).poll_outbound(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Pin::new(&mut self.muxer).poll_close(cx)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.muxer).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{AsyncReadExt, FutureExt};

    #[tokio::test]
    async fn bytes_beyond_the_allowance_wait_for_the_barrier() {
        let data = vec![7; BEFORE_THE_GATE + 1000];
        let (mut toll, barrier) = toll(data.as_slice());
        let mut first = vec![0; BEFORE_THE_GATE];
        toll.read_exact(&mut first).await.unwrap();
        let mut rest = Vec::new();
        assert!(toll.read_to_end(&mut rest).now_or_never().is_none());
        let reading = async {
            toll.read_to_end(&mut rest).await.unwrap();
            rest.len()
        };
        let opening = async {
            tokio::task::yield_now().await;
            barrier.open();
        };
        assert_eq!(tokio::join!(reading, opening).0, 1000);
    }
}
