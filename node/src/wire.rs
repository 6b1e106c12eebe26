//! Length-prefixed messages as they cross pipes and streams: `[u32 LE length of what follows][u8 kind][payload]`.
//!
//! Control payloads are CBOR. Step frames use the same envelope, but their payload is `skein_pipeline::frame`'s business
//! and is relayed without being read.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Control messages are small; anything longer is refused before it is read.
pub const MAX_CONTROL: usize = 1 << 20;

/// The kinds of message.
pub mod kind {
    pub const STEP: u8 = 1;
    pub const SAMPLED: u8 = 2;
    pub const LOGITS: u8 = 3;
    pub const FAULT: u8 = 4;
    pub const LOAD: u8 = 16;
    pub const LOADED: u8 = 17;
    pub const LOAD_FAILED: u8 = 18;
    /// A message of the line protocol or of a forwarded request.
    pub const CONTROL: u8 = 32;
}

/// Writes one CBOR message.
pub async fn send<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    kind: u8,
    value: &T,
) -> std::io::Result<()> {
    let mut message = vec![0; 5];
    ciborium::into_writer(value, &mut message).map_err(std::io::Error::other)?;
    let length = u32::try_from(message.len() - 4).map_err(std::io::Error::other)?;
    message[..4].copy_from_slice(&length.to_le_bytes());
    message[4] = kind;
    to.write_all(&message).await?;
    to.flush().await
}

/// Reads one message of at most `limit` bytes and gives its kind and payload.
pub async fn receive_raw(
    from: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> std::io::Result<(u8, Vec<u8>)> {
    let mut payload = Vec::new();
    let kind = receive_into(from, limit, &mut payload).await?;
    Ok((kind, payload))
}

/// As [`receive_raw`], into a buffer that is reused.
pub async fn receive_into(
    from: &mut (impl AsyncRead + Unpin),
    limit: usize,
    payload: &mut Vec<u8>,
) -> std::io::Result<u8> {
    let mut header = [0; 5];
    from.read_exact(&mut header).await?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if length == 0 || length > limit {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("a message announces {length} bytes; 1 to {limit} are allowed"),
        ));
    }
    payload.clear();
    append_announced(from, length - 1, payload).await?;
    Ok(header[4])
}

/// Appends `length` bytes of the stream to `payload`. Memory grows with what arrives, not with what was announced.
pub async fn append_announced(
    from: &mut (impl AsyncRead + Unpin),
    length: usize,
    payload: &mut Vec<u8>,
) -> std::io::Result<()> {
    let read = from.take(length as u64).read_to_end(payload).await?;
    if read < length {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Reads one CBOR control message.
pub async fn receive<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> std::io::Result<T> {
    let (kind, body) = receive_raw(from, MAX_CONTROL).await?;
    if kind != kind::CONTROL {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("message kind {kind} where a control message was expected"),
        ));
    }
    decode(&body).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

/// Decodes a CBOR payload.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ciborium::de::Error<std::io::Error>> {
    ciborium::from_reader(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_comes_back_as_it_was_sent() {
        let (mut a, mut b) = tokio::io::duplex(1024);
        send(&mut a, kind::CONTROL, &("hello", 7u32)).await.unwrap();
        let got: (String, u32) = receive(&mut b).await.unwrap();
        assert_eq!(got, ("hello".to_owned(), 7));
    }

    #[tokio::test]
    async fn an_announced_length_over_the_limit_is_refused_before_it_is_reserved() {
        let (mut a, mut b) = tokio::io::duplex(64);
        a.write_all(&[0xff, 0xff, 0xff, 0x7f, 1]).await.unwrap();
        let error = receive_raw(&mut b, 1000).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_message_of_another_kind_is_not_taken_for_control() {
        let (mut a, mut b) = tokio::io::duplex(64);
        send(&mut a, kind::FAULT, &1u8).await.unwrap();
        assert!(receive::<u8>(&mut b).await.is_err());
    }
}
