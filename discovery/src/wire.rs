//! CBOR in and out, and length-prefixed frames. What the messages mean is said where they are defined.
//!
//! Every structure we sign is a CBOR map whose fields are declared in the order of canonical CBOR (RFC 8949, 4.2.1:
//! by encoded key, so shorter names first), written without indefinite lengths. Decoding bounds depth and refuses
//! trailing bytes; whoever needs canonical input encodes again and compares.

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io;

/// Nesting that any of our messages needs, with room for later fields.
const MAX_DEPTH: usize = 16;

/// Bytes that are not the CBOR we expect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("our own structures always encode");
    bytes
}

pub(crate) fn decode<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, Malformed> {
    let value = ciborium::de::from_reader_with_recursion_limit(&mut bytes, MAX_DEPTH)
        .map_err(|_| Malformed)?;
    if bytes.is_empty() {
        Ok(value)
    } else {
        Err(Malformed)
    }
}

/// Like [`decode`], and the bytes must be the ones we would have written.
pub(crate) fn decode_canonical<T: DeserializeOwned + Serialize>(
    bytes: &[u8],
) -> Result<T, Malformed> {
    let value: T = decode(bytes)?;
    if encode(&value) == bytes {
        Ok(value)
    } else {
        Err(Malformed)
    }
}

/// `{"body": bytes, "signature": bytes}`: the body exactly as it was signed, and an Ed25519 signature over the
/// signing context followed by the body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Signed {
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

/// What is really signed: no signature for one purpose can be passed off as another's.
pub(crate) fn signing_input(context: &str, body: &[u8]) -> Vec<u8> {
    [context.as_bytes(), b"\0", body].concat()
}

/// Reads `[u32 little-endian length][bytes]`; a length above `limit` is refused before anything is reserved.
pub(crate) async fn read_frame(
    io: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    io.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(too_large(length, limit));
    }
    let mut bytes = Vec::new();
    // Grows as bytes arrive, so that a length alone costs nothing.
    io.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Writes `[u32 little-endian length][bytes]` and flushes.
pub(crate) async fn write_frame(
    io: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    limit: usize,
) -> io::Result<()> {
    if bytes.len() > limit {
        return Err(too_large(bytes.len(), limit));
    }
    io.write_all(&(bytes.len() as u32).to_le_bytes()).await?;
    io.write_all(bytes).await?;
    io.flush().await
}

fn too_large(length: usize, limit: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a message of {length} bytes exceeds the limit of {limit}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_bytes_and_deep_nesting_are_refused() {
        let mut bytes = encode(&7u8);
        assert_eq!(decode::<u8>(&bytes), Ok(7));
        bytes.push(0);
        assert_eq!(decode::<u8>(&bytes), Err(Malformed));
        let nested = vec![0x81; 100_000];
        assert_eq!(decode::<ciborium::Value>(&nested), Err(Malformed));
        assert_eq!(
            decode_canonical::<u8>(&[0x18, 7]),
            Err(Malformed),
            "7 in two bytes"
        );
    }

    #[tokio::test]
    async fn a_frame_above_the_limit_is_refused_from_its_length_alone() {
        let mut wire = Vec::new();
        write_frame(&mut wire, b"hello", 5).await.unwrap();
        assert_eq!(read_frame(&mut wire.as_slice(), 5).await.unwrap(), b"hello");
        assert_eq!(
            read_frame(&mut wire.as_slice(), 4)
                .await
                .unwrap_err()
                .kind(),
            io::ErrorKind::InvalidData
        );
        assert!(write_frame(&mut Vec::new(), b"hello!", 5).await.is_err());
        assert_eq!(
            read_frame(&mut &wire[..6], 5).await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
