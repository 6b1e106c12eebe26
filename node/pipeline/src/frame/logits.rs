//! The two messages that a line in good health never sends: logits for a debugger, and a fault.

use super::{
    FrameError, MAX_CHUNK, MAX_FAULT,
    bytes::{Put, Reader},
    error::bounded,
};

const HEADER: u64 = 56;

/// Part of one row's logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitsChunk {
    /// Line of the step.
    pub line: u64,
    /// Epoch of the step.
    pub epoch: u64,
    /// The step.
    pub step: u64,
    /// The sequence's id.
    pub sequence: u64,
    /// Index of the row within its sequence's rows.
    pub row: u32,
    /// Absolute position of the row.
    pub position: u32,
    /// Length of a whole row of logits.
    pub vocab: u32,
    /// Where in that row `values` begin.
    pub offset: u32,
    /// The values, 1 to [`MAX_CHUNK`].
    pub values: Vec<f32>,
}

impl LogitsChunk {
    /// Appends the chunk's payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.line);
        out.put_u64(self.epoch);
        out.put_u64(self.step);
        out.put_u64(self.sequence);
        out.put_u32(self.row);
        out.put_u32(self.position);
        out.put_u32(self.vocab);
        out.put_u32(self.offset);
        out.put_u32(self.values.len() as u32);
        out.put_u32(0);
        for value in &self.values {
            out.put_f32(*value);
        }
    }

    /// Reads a payload into this chunk; an error leaves it without values.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        self.values.clear();
        let mut reader = Reader::new(bytes);
        self.line = reader.u64()?;
        self.epoch = reader.u64()?;
        self.step = reader.u64()?;
        self.sequence = reader.u64()?;
        self.row = reader.u32()?;
        self.position = reader.u32()?;
        self.vocab = reader.u32()?;
        self.offset = reader.u32()?;
        let count = bounded("logits in a chunk", reader.u32()?.into(), MAX_CHUNK)?;
        reader.zeros(4)?;
        if count == 0 || u64::from(self.offset) + count as u64 > u64::from(self.vocab) {
            return Err(FrameError::Malformed("logits outside the vocabulary"));
        }
        reader.expect_length(HEADER + 4 * count as u64)?;
        let words = reader.take(4 * count)?.as_chunks::<4>().0;
        self.values
            .extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        Ok(())
    }
}

/// Appends a fault's payload: `text`, cut at a character where it is too long.
pub fn encode_fault(text: &str, out: &mut Vec<u8>) {
    let mut end = text.len().min(MAX_FAULT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// The text of a fault; what is not UTF-8 is replaced, what is too long is cut.
pub fn decode_fault(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(MAX_FAULT)]).into_owned()
}
