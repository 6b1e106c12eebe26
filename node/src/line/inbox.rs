//! The read half of a control stream: a task that reads whole messages, ended together with whoever listens.
//!
//! Reading a message must not be interrupted half-way, so it cannot be a branch of a select.

use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::wire;

/// Messages that wait to be looked at.
const QUEUE: usize = 64;

/// Messages as they come. Dropping it gives the read half of the stream up.
#[derive(Debug)]
pub struct Inbox<T> {
    messages: mpsc::Receiver<T>,
    reader: JoinHandle<()>,
}

impl<T: DeserializeOwned + Send + 'static> Inbox<T> {
    /// Starts reading.
    pub fn read(mut from: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let (sender, messages) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(async move {
            while let Ok(message) = wire::receive::<T>(&mut from).await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        });
        Inbox { messages, reader }
    }

    /// The next message; `None` when the other side is gone or speaks nonsense.
    pub async fn recv(&mut self) -> Option<T> {
        self.messages.recv().await
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
