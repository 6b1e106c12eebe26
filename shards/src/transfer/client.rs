//! One stream to one source: requests out, answers in, with patience that ends.

use std::fmt::Display;
use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, timeout, timeout_at};

use super::wire::{Answer, Header, MAX_ANSWER_BYTES, Reason, Request, read_header, write_header};
use super::{Blame, Patience};
use crate::hash::ModelId;
use crate::store::Runs;

/// Grown by no more than this ahead of what has arrived.
const READ_STEP: usize = 256 << 10;

pub(super) struct Link<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    patience: Patience,
}

/// An answer with its body.
pub(super) enum Got {
    Body(Vec<u8>),
    Have(Vec<Runs>),
    Refused(Reason, String),
}

impl<S: AsyncRead + AsyncWrite> Link<S> {
    /// Waits for `opening` to give a stream.
    pub async fn open<E: Display>(
        opening: impl Future<Output = Result<S, E>>,
        patience: Patience,
    ) -> Result<Self, Blame> {
        let stream = timeout(patience.open, opening)
            .await
            .map_err(|_| Blame::Stalled(patience.open))?
            .map_err(|error| Blame::Unreachable(error.to_string()))?;
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self {
            reader,
            writer,
            patience,
        })
    }

    /// Sends `requests` and reads the next answer, whose body has at most `limit` bytes. Both go on
    /// at once: the source may be unable to take a request before we take an answer.
    pub async fn exchange(&mut self, requests: &[Request], limit: u64) -> Result<Got, Blame> {
        let patience = self.patience;
        let deadline = Instant::now() + patience.answer;
        let writer = &mut self.writer;
        let sending = async {
            for request in requests {
                write_header(writer, request).await.map_err(broken)?;
            }
            writer.flush().await.map_err(broken)
        };
        let reader = &mut self.reader;
        let reading = async {
            let header = read_header(reader, MAX_ANSWER_BYTES);
            let header = timeout(patience.byte, header)
                .await
                .map_err(|_| Blame::Stalled(patience.byte))?
                .map_err(broken)?;
            match header {
                Header::Message(Answer::Body { length }) if length > limit => {
                    let what = format!("an answer of {length} bytes where {limit} are the most");
                    Err(Blame::Protocol(what))
                }
                Header::Message(Answer::Body { length }) => Ok(Got::Body(
                    read_body(reader, length as usize, patience).await?,
                )),
                Header::Message(Answer::Have { segments }) => {
                    Ok(Got::Have(super::wire::unlisted(&segments)))
                }
                Header::Message(Answer::Refused { reason, message }) => {
                    // Another machine's words end up in logs and on screens.
                    let message = message.chars().filter(|char| !char.is_control()).take(200);
                    Ok(Got::Refused(reason, message.collect()))
                }
                Header::End => Err(Blame::Broken("it was closed".to_owned())),
                Header::Nonsense(what) => Err(Blame::Protocol(what)),
            }
        };
        let both = async { tokio::try_join!(sending, reading) };
        let ((), got) = timeout_at(deadline, both)
            .await
            .map_err(|_| Blame::Stalled(patience.answer))??;
        Ok(got)
    }

    /// What the source holds of a model with this many segments.
    pub async fn have(&mut self, model: ModelId, segments: usize) -> Result<Vec<Runs>, Blame> {
        match self.exchange(&[Request::Have { model }], 0).await? {
            Got::Have(held) if held.len() == segments => Ok(held),
            Got::Have(held) => Err(Blame::Protocol(format!(
                "a list of {} segments where the model has {segments}",
                held.len()
            ))),
            Got::Refused(_, message) => Err(Blame::Refused(message)),
            Got::Body(_) => Err(Blame::Protocol("a body nobody asked for".to_owned())),
        }
    }

    /// The body that answers `request`.
    pub async fn body(&mut self, request: Request, limit: u64) -> Result<Vec<u8>, Blame> {
        match self.exchange(&[request], limit).await? {
            Got::Body(bytes) => Ok(bytes),
            Got::Refused(_, message) => Err(Blame::Refused(message)),
            Got::Have(_) => Err(Blame::Protocol("a list nobody asked for".to_owned())),
        }
    }

    /// Says that nothing more will be asked.
    pub async fn close(mut self) {
        // The source finds out anyway when the stream is dropped.
        let _ = timeout(self.patience.byte, self.writer.shutdown()).await;
    }
}

async fn read_body<R: AsyncRead + Unpin>(
    reader: &mut R,
    length: usize,
    patience: Patience,
) -> Result<Vec<u8>, Blame> {
    let mut body = Vec::new();
    while body.len() < length {
        let start = body.len();
        body.resize(length.min(start + READ_STEP), 0);
        let read = timeout(patience.byte, reader.read(&mut body[start..]))
            .await
            .map_err(|_| Blame::Stalled(patience.byte))?
            .map_err(broken)?;
        if read == 0 {
            return Err(Blame::Broken(
                "it ended in the middle of an answer".to_owned(),
            ));
        }
        body.truncate(start + read);
    }
    Ok(body)
}

fn broken(error: io::Error) -> Blame {
    Blame::Broken(error.to_string())
}
