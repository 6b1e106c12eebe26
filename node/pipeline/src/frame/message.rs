//! Length and kind around every payload.

use super::{FrameError, MAX_MESSAGE, error::bounded};

/// What a message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum MessageKind {
    /// A [`super::StepFrame`] and its hidden states.
    Step = 1,
    /// A [`super::SampledFrame`].
    Sampled = 2,
    /// A [`super::LogitsChunk`].
    Logits = 3,
    /// UTF-8 text.
    Fault = 4,
    /// What a worker should load; not written or read by this crate.
    Load = 16,
    /// A worker's report after loading; not written or read by this crate.
    Loaded = 17,
    /// Why a worker could not load; not written or read by this crate.
    LoadFailed = 18,
}

impl TryFrom<u8> for MessageKind {
    type Error = FrameError;

    fn try_from(kind: u8) -> Result<Self, FrameError> {
        Ok(match kind {
            1 => Self::Step,
            2 => Self::Sampled,
            3 => Self::Logits,
            4 => Self::Fault,
            16 => Self::Load,
            17 => Self::Loaded,
            18 => Self::LoadFailed,
            other => return Err(FrameError::Kind(other)),
        })
    }
}

/// The five bytes before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// What the payload is.
    pub kind: MessageKind,
    /// Bytes of the payload, without the kind.
    pub payload: usize,
}

impl MessageHeader {
    /// Bytes of a header.
    pub const SIZE: usize = 5;

    /// Reads a header; a length over [`MAX_MESSAGE`] and a kind that is not known are errors.
    pub fn decode(bytes: [u8; Self::SIZE]) -> Result<Self, FrameError> {
        let [a, b, c, d, kind] = bytes;
        let length = bounded(
            "bytes in a message",
            u64::from(u32::from_le_bytes([a, b, c, d])),
            MAX_MESSAGE,
        )?;
        let Some(payload) = length.checked_sub(1) else {
            return Err(FrameError::Malformed("message of length zero"));
        };
        Ok(Self {
            kind: kind.try_into()?,
            payload,
        })
    }

    /// The header of a payload of `self.payload` bytes.
    pub fn encode(self) -> Result<[u8; Self::SIZE], FrameError> {
        let length = bounded("bytes in a message", self.payload as u64 + 1, MAX_MESSAGE)?;
        let [a, b, c, d] = (length as u32).to_le_bytes();
        Ok([a, b, c, d, self.kind as u8])
    }
}

/// Appends a header whose length [`end_message`] fills in; returns where the message starts.
pub fn begin_message(out: &mut Vec<u8>, kind: MessageKind) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8]);
    start
}

/// Writes the length of the message that started at `start` and ends with `out`.
pub fn end_message(out: &mut [u8], start: usize) -> Result<(), FrameError> {
    let length = bounded(
        "bytes in a message",
        (out.len() - start - 4) as u64,
        MAX_MESSAGE,
    )?;
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// The messages of a buffer that holds whole messages, one after the other.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Over all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    /// Kind, payload, and the whole message with its header.
    type Item = Result<(MessageKind, &'a [u8], &'a [u8]), FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let Some((head, _)) = bytes.split_first_chunk::<{ MessageHeader::SIZE }>() else {
            return Some(Err(FrameError::Length {
                needed: MessageHeader::SIZE as u64,
                got: bytes.len() as u64,
            }));
        };
        let header = match MessageHeader::decode(*head) {
            Ok(header) => header,
            Err(error) => return Some(Err(error)),
        };
        let end = MessageHeader::SIZE + header.payload;
        if bytes.len() < end {
            return Some(Err(FrameError::Length {
                needed: end as u64,
                got: bytes.len() as u64,
            }));
        }
        let (message, rest) = bytes.split_at(end);
        self.rest = rest;
        Some(Ok((header.kind, &message[MessageHeader::SIZE..], message)))
    }
}
