//! Moves whole messages from a stream to a worker or back, without reading what is in them.

use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::wire::{self, kind};

/// Longest message of a hop: a debug chunk or a prefill chunk of hidden states, with room to spare.
pub const MAX_MESSAGE: usize = 64 << 20;

/// Copies messages until `from` ends. Counts those of kind STEP and SAMPLED in `steps`.
///
/// # Errors
/// `InvalidData` for a kind that has no place on a hop or a length over [`MAX_MESSAGE`]; otherwise the stream's own.
pub async fn relay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    steps: &AtomicU64,
) -> std::io::Result<()> {
    let mut message = Vec::new();
    loop {
        let kind = match receive_whole(&mut from, &mut message).await {
            Ok(kind) => kind,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        match kind {
            kind::STEP | kind::SAMPLED => {
                steps.fetch_add(1, Ordering::Relaxed);
            }
            kind::LOGITS | kind::FAULT => {}
            other => {
                let error = format!("message kind {other} on a hop");
                return Err(Error::new(ErrorKind::InvalidData, error));
            }
        }
        to.write_all(&message).await?;
        to.flush().await?;
    }
}

/// Reads one message with its envelope, so that it leaves in one piece: one write, one frame of the muxer.
async fn receive_whole(
    from: &mut (impl AsyncRead + Unpin),
    message: &mut Vec<u8>,
) -> std::io::Result<u8> {
    let mut header = [0; 5];
    from.read_exact(&mut header).await?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if length == 0 || length > MAX_MESSAGE {
        let error = format!("a hop message announces {length} bytes");
        return Err(Error::new(ErrorKind::InvalidData, error));
    }
    message.clear();
    message.extend_from_slice(&header);
    wire::append_announced(from, length - 1, message).await?;
    Ok(header[4])
}

/// Writes one message whose payload is already encoded.
pub async fn send_payload(
    to: &mut (impl AsyncWrite + Unpin),
    kind: u8,
    payload: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(payload.len() + 1).map_err(Error::other)?;
    let mut header = [0; 5];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4] = kind;
    to.write_all(&header).await?;
    to.write_all(payload).await?;
    to.flush().await
}

/// The tail's answers are small: a full frame of samples, or a chunk of logits.
pub const MAX_ANSWER: usize = 2 << 20;

/// Reads one message that the tail sends to the head into `payload`.
pub async fn receive_answer(
    from: &mut (impl AsyncRead + Unpin),
    payload: &mut Vec<u8>,
) -> std::io::Result<u8> {
    wire::receive_into(from, MAX_ANSWER, payload).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whole_messages_pass_and_steps_are_counted() {
        let (mut a, a2) = tokio::io::duplex(1 << 16);
        let (b, mut b2) = tokio::io::duplex(1 << 16);
        send_payload(&mut a, kind::STEP, b"one").await.unwrap();
        send_payload(&mut a, kind::FAULT, b"two").await.unwrap();
        drop(a);
        let steps = AtomicU64::new(0);
        relay(a2, b, &steps).await.unwrap();
        let mut payload = Vec::new();
        assert_eq!(
            receive_answer(&mut b2, &mut payload).await.unwrap(),
            kind::STEP
        );
        assert_eq!(payload, b"one");
        assert_eq!(
            receive_answer(&mut b2, &mut payload).await.unwrap(),
            kind::FAULT
        );
        assert_eq!(steps.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_load_message_from_a_peer_never_reaches_a_worker() {
        let (mut a, a2) = tokio::io::duplex(1 << 16);
        let (b, _b2) = tokio::io::duplex(1 << 16);
        send_payload(&mut a, kind::LOAD, b"x").await.unwrap();
        let error = relay(a2, b, &AtomicU64::new(0)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
