//! Lines of JSON with a bound on their length.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads one line of at most `limit` bytes as JSON; `None` at the end of the stream.
pub async fn read<T: DeserializeOwned>(
    reader: &mut (impl AsyncBufRead + Unpin),
    limit: usize,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    reader
        .take(limit as u64 + 1)
        .read_until(b'\n', &mut line)
        .await?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        let reason = if line.len() > limit {
            format!("a line is longer than {limit} bytes")
        } else {
            "the stream ended within a line".into()
        };
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    serde_json::from_slice(&line)
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// Writes one line of at most `limit` bytes.
pub async fn write<T: Serialize + Sync>(
    writer: &mut (impl AsyncWrite + Unpin),
    value: &T,
    limit: usize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    if line.len() > limit {
        let reason = format!("a line of {} bytes is longer than {limit}", line.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    writer.write_all(&line).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_over_the_limit_is_refused_before_it_is_all_read() {
        let endless = tokio::io::repeat(b'a');
        let mut reader = tokio::io::BufReader::new(endless);
        let error = read::<serde_json::Value>(&mut reader, 1000)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("longer than 1000"), "{error}");
    }

    #[tokio::test]
    async fn the_end_of_the_stream_is_no_line_and_half_a_line_is_an_error() {
        assert!(read::<u32>(&mut &b""[..], 10).await.unwrap().is_none());
        assert!(read::<u32>(&mut &b"12"[..], 10).await.is_err());
        assert_eq!(read::<u32>(&mut &b"12\n"[..], 10).await.unwrap(), Some(12));
    }
}
