//! What the tail answers: a few bytes a sampled row.

use super::{
    FrameError, MAX_ROWS, MAX_SEQUENCES, MAX_TOP,
    bytes::{Put, Reader},
    error::bounded,
};

const HEADER: u64 = 40;

/// The token chosen after one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Index of the row within its sequence's rows.
    pub row: u16,
    /// Absolute position of the row; the token belongs to the one after.
    pub position: u32,
    /// The chosen token.
    pub token: u32,
    /// Its log-probability under the softmax of the logits (temperature 1).
    pub logprob: f32,
    /// Most probable tokens with their log-probabilities, best first, where asked for.
    pub top: &'a [(u32, f32)],
}

/// The samples of one sequence in one step.
#[derive(Clone, Copy, Debug)]
pub struct SampledSequence<'a> {
    /// The sequence's id.
    pub sequence: u64,
    samples: &'a [Record],
    top: &'a [(u32, f32)],
}

impl<'a> SampledSequence<'a> {
    /// Its samples, in the order of its rows.
    pub fn samples(self) -> impl ExactSizeIterator<Item = Sample<'a>> {
        self.samples.iter().map(move |record| Sample {
            row: record.row,
            position: record.position,
            token: record.token,
            logprob: record.logprob,
            top: &self.top[record.top_start..record.top_start + record.top_count],
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Record {
    row: u16,
    position: u32,
    token: u32,
    logprob: f32,
    top_start: usize,
    top_count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Group {
    sequence: u64,
    start: usize,
    count: usize,
}

/// The answer to one step; a value is reused for step after step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledFrame {
    /// Line of the step.
    pub line: u64,
    /// Epoch of the step.
    pub epoch: u64,
    /// The step.
    pub step: u64,
    groups: Vec<Group>,
    records: Vec<Record>,
    top: Vec<(u32, f32)>,
}

impl SampledFrame {
    /// Empties the frame and keeps its memory.
    pub fn clear(&mut self) {
        self.line = 0;
        self.epoch = 0;
        self.step = 0;
        self.groups.clear();
        self.records.clear();
        self.top.clear();
    }

    /// Appends a sample; samples of one sequence follow each other.
    pub fn push(&mut self, sequence: u64, sample: Sample<'_>) {
        if self
            .groups
            .last()
            .is_none_or(|group| group.sequence != sequence)
        {
            self.groups.push(Group {
                sequence,
                start: self.records.len(),
                count: 0,
            });
        }
        if let Some(group) = self.groups.last_mut() {
            group.count += 1;
        }
        self.records.push(Record {
            row: sample.row,
            position: sample.position,
            token: sample.token,
            logprob: sample.logprob,
            top_start: self.top.len(),
            top_count: sample.top.len(),
        });
        self.top.extend_from_slice(sample.top);
    }

    /// The sequences that were sampled, in the step's order.
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = SampledSequence<'_>> {
        self.groups.iter().map(|group| SampledSequence {
            sequence: group.sequence,
            samples: &self.records[group.start..group.start + group.count],
            top: &self.top,
        })
    }

    /// Appends the frame's payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.line);
        out.put_u64(self.epoch);
        out.put_u64(self.step);
        out.put_u32(self.groups.len() as u32);
        out.put_u32(self.records.len() as u32);
        out.put_u32(self.top.len() as u32);
        out.put_u32(0);
        for group in &self.groups {
            out.put_u64(group.sequence);
            out.put_u32(group.count as u32);
            out.put_u32(0);
        }
        for record in &self.records {
            out.put_u16(record.row);
            out.put_u16(record.top_count as u16);
            out.put_u32(record.position);
            out.put_u32(record.token);
            out.put_f32(record.logprob);
        }
        for (token, logprob) in &self.top {
            out.put_u32(*token);
            out.put_f32(*logprob);
        }
    }

    /// Reads a payload into this frame; an error leaves it empty.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        self.clear();
        let decoded = self.decode_all(bytes);
        if decoded.is_err() {
            self.clear();
        }
        decoded
    }

    fn decode_all(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let mut reader = Reader::new(bytes);
        self.line = reader.u64()?;
        self.epoch = reader.u64()?;
        self.step = reader.u64()?;
        let groups = bounded("sequences", reader.u32()?.into(), MAX_SEQUENCES)?;
        let records = bounded("samples", reader.u32()?.into(), MAX_ROWS)?;
        let top = bounded("alternatives", reader.u32()?.into(), records * MAX_TOP)?;
        reader.zeros(4)?;
        reader.expect_length(HEADER + 16 * (groups + records) as u64 + 8 * top as u64)?;
        let mut start = 0;
        self.groups.reserve(groups);
        for _ in 0..groups {
            let sequence = reader.u64()?;
            let count = bounded("samples", reader.u32()?.into(), MAX_ROWS)?;
            reader.zeros(4)?;
            if count == 0 {
                return Err(FrameError::Malformed("sequence without samples"));
            }
            self.groups.push(Group {
                sequence,
                start,
                count,
            });
            start += count;
        }
        if start != records {
            return Err(FrameError::Malformed(
                "sequences do not add up to the header",
            ));
        }
        let mut top_start = 0;
        self.records.reserve(records);
        for _ in 0..records {
            let row = reader.u16()?;
            let top_count = bounded("alternatives of a sample", reader.u16()?.into(), MAX_TOP)?;
            self.records.push(Record {
                row,
                position: reader.u32()?,
                token: reader.u32()?,
                logprob: reader.f32()?,
                top_start,
                top_count,
            });
            top_start += top_count;
        }
        if top_start != top {
            return Err(FrameError::Malformed("samples do not add up to the header"));
        }
        self.top.reserve(top);
        for _ in 0..top {
            self.top.push((reader.u32()?, reader.f32()?));
        }
        Ok(())
    }
}
