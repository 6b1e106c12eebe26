//! Answering a peer's requests from a store.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::blocking;
use super::wire::{
    Answer, Header, MAX_GROUPS, MAX_REQUEST_BYTES, Reason, Request, listed, read_header,
    write_header,
};
use crate::store::{Store, StoreError};

/// A peer that asks nothing for so long has forgotten the stream.
const MAX_IDLE: Duration = Duration::from_secs(300);
/// For a peer to take an answer of at most a few mebibytes, or a blob.
const MAX_SEND: Duration = Duration::from_secs(300);

/// Why a stream was closed before the peer closed it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the stream broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer was silent or did not read for too long")]
    Idle,
    #[error("the peer sent no request: {0}")]
    Nonsense(String),
}

/// What to send after a header.
struct Reply {
    answer: Answer,
    body: Vec<u8>,
}

/// Answers requests until the peer closes its direction. One request at a time is worked on, and
/// at most one answer is in memory.
pub async fn serve<S>(store: Store, io: S) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(io);
    loop {
        let header = read_header(&mut reader, MAX_REQUEST_BYTES);
        let header = timeout(MAX_IDLE, header)
            .await
            .map_err(|_| ServeError::Idle)??;
        let request = match header {
            Header::Message(request) => request,
            Header::End => return Ok(writer.shutdown().await?),
            Header::Nonsense(what) => {
                let reply = refusal(Reason::BadRequest, what.clone());
                send(&mut writer, reply).await?;
                writer.shutdown().await?;
                return Err(ServeError::Nonsense(what));
            }
        };
        let store = store.clone();
        let reply = match blocking(move || Ok(answer(&store, request))).await {
            Ok(reply) => reply,
            Err(error) => refusal(Reason::Failed, error.to_string()),
        };
        let last = matches!(
            reply.answer,
            Answer::Refused {
                reason: Reason::BadRequest,
                ..
            }
        );
        send(&mut writer, reply).await?;
        if last {
            writer.shutdown().await?;
            return Err(ServeError::Nonsense("a request out of range".to_owned()));
        }
    }
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, reply: Reply) -> Result<(), ServeError> {
    let sending = async {
        write_header(writer, &reply.answer).await?;
        writer.write_all(&reply.body).await?;
        writer.flush().await
    };
    timeout(MAX_SEND, sending)
        .await
        .map_err(|_| ServeError::Idle)?
        .map_err(ServeError::Io)
}

fn answer(store: &Store, request: Request) -> Reply {
    let body = match request {
        Request::Manifest { model } => store.manifest(model).map(|manifest| manifest.encode()),
        Request::Blob { model, kind } => store.blob(model, kind),
        Request::Have { model } => match store.held_groups(model) {
            Ok(held) => {
                let segments = listed(&held);
                return Reply {
                    answer: Answer::Have { segments },
                    body: Vec::new(),
                };
            }
            Err(error) => Err(error),
        },
        Request::Groups { count, .. } if count > MAX_GROUPS => {
            return refusal(Reason::BadRequest, format!("{count} groups at once"));
        }
        Request::Groups {
            model,
            segment,
            first,
            count,
        } => store.encode_groups(model, segment as usize, first..first.saturating_add(count)),
    };
    match body {
        Ok(body) => Reply {
            answer: Answer::Body {
                length: body.len() as u64,
            },
            body,
        },
        Err(error) => refusal(reason(&error), said(&error)),
    }
}

fn refusal(reason: Reason, message: String) -> Reply {
    Reply {
        answer: Answer::Refused { reason, message },
        body: Vec::new(),
    }
}

fn reason(error: &StoreError) -> Reason {
    match error {
        StoreError::NotFound(_) => Reason::UnknownModel,
        StoreError::NotHeld { .. } => Reason::NotHeld,
        StoreError::Damaged { .. } => Reason::Damaged,
        StoreError::OutOfRange { .. } => Reason::BadRequest,
        _ => Reason::Failed,
    }
}

/// What a peer is told of an error: nothing about our files.
fn said(error: &StoreError) -> String {
    match reason(error) {
        Reason::Failed => {
            tracing::warn!("a request could not be answered: {error}");
            "the store could not be read".to_owned()
        }
        _ => error.to_string(),
    }
}
