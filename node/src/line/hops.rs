//! Where an incoming hop finds the stage that waits for it.
//!
//! A stage says which hop it expects before it reports itself loaded, so that a hop can never come too early. A hop
//! that nobody expects is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::messages::Hello;
use crate::wire::{self, kind};

/// Any two-way byte stream: a libp2p stream, or a pipe inside this process.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for T {}

/// A hop or control stream, local or remote.
pub type BoxIo = Box<dyn Io>;

/// A peer says hello at once; one that does not is dropped.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// In-process pipes hold a step frame without making the writer wait.
const LOCAL_PIPE_BYTES: usize = 1 << 18;

/// The hops that stages on this machine wait for.
#[derive(Clone, Default)]
pub struct Hops(Arc<Mutex<BTreeMap<Hello, Waiting>>>);

struct Waiting {
    /// The peer whose hop it is.
    from: String,
    arrives: oneshot::Sender<BoxIo>,
}

/// Withdraws the expectation when dropped.
pub struct Expected {
    hops: Hops,
    hello: Hello,
    arrives: oneshot::Receiver<BoxIo>,
}

impl Hops {
    /// Waits for the hop that begins with `hello` and comes from the peer `from`.
    pub fn expect(&self, hello: Hello, from: &str) -> Expected {
        let (sender, arrives) = oneshot::channel();
        let waiting = Waiting {
            from: from.to_owned(),
            arrives: sender,
        };
        self.lock().insert(hello, waiting);
        Expected {
            hops: self.clone(),
            hello,
            arrives,
        }
    }

    /// Hands a hop to whoever expects it from that peer; false where nobody does.
    pub fn deliver(&self, hello: Hello, from: &str, stream: BoxIo) -> bool {
        let mut table = self.lock();
        if table.get(&hello).is_none_or(|waiting| waiting.from != from) {
            return false;
        }
        match table.remove(&hello) {
            Some(waiting) => waiting.arrives.send(stream).is_ok(),
            None => false,
        }
    }

    /// Opens a hop within this process.
    pub fn open_local(&self, hello: Hello, own: &str) -> std::io::Result<BoxIo> {
        let (near, far) = tokio::io::duplex(LOCAL_PIPE_BYTES);
        if self.deliver(hello, own, Box::new(far)) {
            Ok(Box::new(near))
        } else {
            Err(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "no stage on this machine expects that hop",
            ))
        }
    }

    /// Takes an incoming stream, reads its hello and hands it on.
    pub async fn accept(&self, from: &str, mut stream: impl Io) {
        match tokio::time::timeout(HELLO_TIMEOUT, wire::receive::<Hello>(&mut stream)).await {
            Ok(Ok(hello)) => {
                if !self.deliver(hello, from, Box::new(stream)) {
                    tracing::debug!(?hello, %from, "a hop came that nobody expects");
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "a hop did not begin with a hello"),
            Err(_) => tracing::debug!("a hop stayed silent"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Hello, Waiting>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Expected {
    /// Resolves when the hop is there; an error when the expectation was replaced.
    pub async fn arrived(mut self) -> std::io::Result<BoxIo> {
        (&mut self.arrives).await.map_err(std::io::Error::other)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        // A hop that was delivered is no longer in the table, and a replacement has its own sender.
        self.arrives.close();
        let mut table = self.hops.lock();
        if table
            .get(&self.hello)
            .is_some_and(|waiting| waiting.arrives.is_closed())
        {
            table.remove(&self.hello);
        }
    }
}

/// Begins a hop on a fresh stream.
pub async fn say_hello(stream: &mut BoxIo, hello: Hello) -> std::io::Result<()> {
    wire::send(stream, kind::CONTROL, &hello).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const HELLO: Hello = Hello {
        line: 1,
        epoch: 1,
        to: 2,
    };

    #[tokio::test]
    async fn a_local_hop_reaches_the_stage_that_expects_it() {
        let hops = Hops::default();
        let expected = hops.expect(HELLO, "me");
        let mut near = hops.open_local(HELLO, "me").unwrap();
        near.write_all(b"x").await.unwrap();
        let mut far = expected.arrived().await.unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"x");
    }

    #[tokio::test]
    async fn a_hop_of_another_peer_does_not_take_the_place_of_the_one_expected() {
        let hops = Hops::default();
        let expected = hops.expect(HELLO, "me");
        let (_near, far) = tokio::io::duplex(16);
        assert!(!hops.deliver(HELLO, "stranger", Box::new(far)));
        hops.open_local(HELLO, "me").unwrap();
        expected.arrived().await.unwrap();
    }

    #[test]
    fn a_hop_that_nobody_expects_is_refused() {
        let hops = Hops::default();
        drop(hops.expect(HELLO, "me"));
        assert!(hops.open_local(HELLO, "me").is_err());
    }
}
