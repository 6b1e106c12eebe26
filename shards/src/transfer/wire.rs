//! Requests and answers as bytes. The format is written down in [`super`].

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::hash::ModelId;
use crate::store::{BlobKind, Runs};

/// A request is a handful of numbers.
pub const MAX_REQUEST_BYTES: usize = 1024;
/// Room for [`MAX_RUNS`] pairs of the longest numbers, and a list for each of a thousand segments.
pub const MAX_ANSWER_BYTES: usize = 512 << 10;
/// What one request may ask for: 4 MiB, which the answering side holds in memory.
pub const MAX_GROUPS: u64 = 256;
/// Runs in a list of what is held; a segment that is whole, or pulled in order, is one.
pub const MAX_RUNS: usize = 16_384;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    Manifest {
        model: ModelId,
    },
    Blob {
        model: ModelId,
        kind: BlobKind,
    },
    Have {
        model: ModelId,
    },
    Groups {
        model: ModelId,
        segment: u32,
        first: u64,
        count: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Answer {
    Body { length: u64 },
    Have { segments: Vec<Vec<u64>> },
    Refused { reason: Reason, message: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reason {
    UnknownModel,
    NotHeld,
    Damaged,
    BadRequest,
    Failed,
}

/// What is held, as an answer lists it.
pub(super) fn listed(held: &[Runs]) -> Vec<Vec<u64>> {
    let mut left = MAX_RUNS;
    let mut segments = Vec::with_capacity(held.len());
    for runs in held {
        let listed: Vec<u64> = runs
            .iter()
            .take(left)
            .flat_map(|run| [run.start, run.end])
            .collect();
        left -= listed.len() / 2;
        segments.push(listed);
    }
    segments
}

/// The other way round; nonsense, such as a run that ends before it starts, is an empty run.
pub(super) fn unlisted(segments: &[Vec<u64>]) -> Vec<Runs> {
    let runs = |list: &Vec<u64>| {
        list.chunks_exact(2)
            .map(|pair| pair[0]..pair[1])
            .collect::<Runs>()
    };
    segments.iter().map(runs).collect()
}

pub(super) async fn write_header<W: AsyncWrite + Unpin>(
    io: &mut W,
    header: &impl Serialize,
) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    ciborium::into_writer(header, &mut bytes).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    io.write_all(&bytes).await
}

/// What reading a header came to.
#[derive(Debug)]
pub(super) enum Header<T> {
    Message(T),
    /// The stream ended where a message may end.
    End,
    /// It is not one of ours; why.
    Nonsense(String),
}

pub(super) async fn read_header<R: AsyncRead + Unpin, T: DeserializeOwned>(
    io: &mut R,
    limit: usize,
) -> io::Result<Header<T>> {
    let mut length = [0; 4];
    if io.read(&mut length[..1]).await? == 0 {
        return Ok(Header::End);
    }
    io.read_exact(&mut length[1..]).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Ok(Header::Nonsense(format!("a header of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    io.read_exact(&mut bytes).await?;
    let mut rest = &bytes[..];
    match ciborium::from_reader(&mut rest) {
        Ok(message) if rest.is_empty() => Ok(Header::Message(message)),
        Ok(_) => Ok(Header::Nonsense("a header with a rest".to_owned())),
        Err(error) => Ok(Header::Nonsense(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hash;

    async fn bytes(message: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_header(&mut bytes, message).await.unwrap();
        bytes
    }

    #[tokio::test]
    async fn messages_are_the_maps_that_are_written_down() {
        let request = Request::Groups {
            model: ModelId(Hash([7; 32])),
            segment: 3,
            first: 64,
            count: 2,
        };
        let bytes = bytes(&request).await;
        let value: ciborium::Value = ciborium::from_reader(&bytes[4..]).unwrap();
        let groups = &value.as_map().unwrap()[0];
        assert_eq!(groups.0.as_text(), Some("groups"));
        let fields = groups.1.as_map().unwrap();
        assert_eq!(fields[0].0.as_text(), Some("model"));
        assert_eq!(fields[0].1.as_bytes().unwrap().len(), 32);
        assert_eq!(fields[2].0.as_text(), Some("first"));
        let read = read_header::<_, Request>(&mut &bytes[..], MAX_REQUEST_BYTES).await;
        assert!(matches!(read.unwrap(), Header::Message(found) if found == request));
    }

    #[tokio::test]
    async fn the_longest_list_of_runs_fits_an_answer() {
        let held: Vec<Runs> = (0..1027)
            .map(|_| {
                (0..40)
                    .map(|i| u64::MAX - 200 + i * 3..u64::MAX - 199 + i * 3)
                    .collect()
            })
            .collect();
        let segments = listed(&held);
        let runs: usize = segments.iter().map(|list| list.len() / 2).sum();
        assert_eq!(runs, MAX_RUNS);
        assert_eq!(unlisted(&segments)[..400], held[..400]);
        assert!(bytes(&Answer::Have { segments }).await.len() <= MAX_ANSWER_BYTES);
    }

    #[tokio::test]
    async fn a_long_header_is_refused_before_it_is_read() {
        let bytes = [0xFF, 0xFF, 0xFF, 0x7F];
        let read = read_header::<_, Request>(&mut &bytes[..], MAX_REQUEST_BYTES).await;
        assert!(matches!(read.unwrap(), Header::Nonsense(_)));
    }
}
