//! The end of the line: from logits to tokens, beside each sequence's history.
//!
//! The history holds the token of every KV slot and follows the frames exactly as the KV cache does:
//! moves move it, a smaller first slot truncates it. Rules that look at earlier tokens will read it;
//! no logits leave this module except as debug chunks.

use std::collections::BTreeMap;

use crate::{
    frame::{
        FrameError, LogitsChunk, MAX_CHUNK, MAX_HISTORY, MAX_TOP, Row, Sample, SampledFrame,
        SequenceRows, StepFrame,
    },
    sample::Sampling,
};

/// Most sequences that a tail remembers: four frames' worth, where the head ends at least as many a
/// frame as can have finished since the last.
pub const MAX_TRACKED: usize = 1024;

/// The tail of a line.
#[derive(Debug)]
pub struct Tail {
    vocab: usize,
    context: usize,
    epoch: Option<u64>,
    tracked: BTreeMap<u64, Tracked>,
    /// Memory of forgotten sequences, for new ones.
    spare: Vec<Vec<u32>>,
}

#[derive(Debug)]
struct Tracked {
    sampling: Sampling,
    /// The token of every slot.
    history: Vec<u32>,
}

impl Tail {
    /// A tail for rows of `vocab` logits and sequences of at most `context` slots.
    pub fn new(vocab: usize, context: u32) -> Self {
        Self {
            vocab,
            context: (context as usize).min(MAX_HISTORY),
            epoch: None,
            tracked: BTreeMap::new(),
            spare: Vec::new(),
        }
    }

    /// Sequences that are remembered.
    pub fn tracked(&self) -> usize {
        self.tracked.len()
    }

    /// The token of every KV slot of a sequence, as far as frames have told.
    pub fn history(&self, sequence: u64) -> Option<&[u32]> {
        self.tracked
            .get(&sequence)
            .map(|tracked| &tracked.history[..])
    }

    /// Samples the frame's rows from `logits` (`[sampled rows, vocab]`, padding after them ignored)
    /// and writes the answer. Allocates nothing once every sequence of the frame is known.
    pub fn sample(
        &mut self,
        frame: &StepFrame,
        logits: &[f32],
        answer: &mut SampledFrame,
    ) -> Result<(), FrameError> {
        if self.epoch != Some(frame.epoch) {
            self.forget_all();
            self.epoch = Some(frame.epoch);
        }
        answer.clear();
        answer.line = frame.line;
        answer.epoch = frame.epoch;
        answer.step = frame.step;
        self.check_logits(frame, logits)?;
        let mut rows_of_logits = logits.chunks_exact(self.vocab);
        for part in frame.sequences() {
            self.follow(&part)?;
            for (index, row) in part.rows.iter().enumerate() {
                if !row.is_sampled() {
                    continue;
                }
                let logits = rows_of_logits.next().ok_or(MISSING)?;
                self.sample_row(&part, index, *row, logits, answer)?;
            }
            if part.end {
                self.forget(part.sequence);
            }
        }
        Ok(())
    }

    /// Calls `send` with the logits of every row that asked for them, in chunks, in order.
    ///
    /// Whether this machine's owner allows that is the caller's to know.
    pub fn debug_logits(
        &self,
        frame: &StepFrame,
        logits: &[f32],
        chunk: &mut LogitsChunk,
        mut send: impl FnMut(&LogitsChunk),
    ) -> Result<(), FrameError> {
        self.check_logits(frame, logits)?;
        let mut rows_of_logits = logits.chunks_exact(self.vocab);
        chunk.line = frame.line;
        chunk.epoch = frame.epoch;
        chunk.step = frame.step;
        chunk.vocab = self.vocab as u32;
        for part in frame.sequences() {
            chunk.sequence = part.sequence;
            for (index, row) in part
                .rows
                .iter()
                .enumerate()
                .filter(|(_, row)| row.is_sampled())
            {
                let logits = rows_of_logits.next().ok_or(MISSING)?;
                if !row.wants_logits() {
                    continue;
                }
                chunk.row = index as u32;
                chunk.position = row.position;
                chunk.offset = 0;
                for values in logits.chunks(MAX_CHUNK) {
                    chunk.values.clear();
                    chunk.values.extend_from_slice(values);
                    send(chunk);
                    chunk.offset += values.len() as u32;
                }
            }
        }
        Ok(())
    }

    fn check_logits(&self, frame: &StepFrame, logits: &[f32]) -> Result<(), FrameError> {
        let sampled = frame.rows().iter().filter(|row| row.is_sampled()).count();
        if self.vocab == 0 || logits.len() < sampled * self.vocab {
            return Err(MISSING);
        }
        Ok(())
    }

    /// Brings the sequence's history to where the KV cache is after this step.
    fn follow(&mut self, part: &SequenceRows<'_>) -> Result<(), FrameError> {
        let refuse = |what, value: usize, limit: usize| FrameError::Sequence {
            sequence: part.sequence,
            what,
            value: value as u64,
            limit: limit as u64,
        };
        if let Some(begin) = part.begin {
            if self.tracked.len() >= MAX_TRACKED {
                return Err(FrameError::TooMany {
                    what: "sequences that have not ended",
                    count: self.tracked.len() as u64 + 1,
                    limit: MAX_TRACKED as u64,
                });
            }
            let mut history = self.spare.pop().unwrap_or_default();
            history.reserve(self.context);
            history.extend_from_slice(begin.history);
            let tracked = Tracked {
                sampling: begin.sampling,
                history,
            };
            if let Some(old) = self.tracked.insert(part.sequence, tracked) {
                self.keep(old.history);
            }
        }
        let Some(tracked) = self.tracked.get_mut(&part.sequence) else {
            // A sequence that ended before it began has nothing to forget.
            if part.rows.is_empty() {
                return Ok(());
            }
            return Err(refuse("sequence has not begun", 0, 0));
        };
        let history = &mut tracked.history;
        for one in part.moves {
            let (from, to) = (one.from_slot as usize, one.to_slot as usize);
            if from.max(to) >= history.len() {
                return Err(refuse(
                    "move beyond its history",
                    from.max(to),
                    history.len(),
                ));
            }
            history[to] = history[from];
        }
        if part.rows.is_empty() {
            return Ok(());
        }
        let first = part.first_slot as usize;
        if first > history.len() {
            return Err(refuse(
                "rows leave a gap in its history",
                first,
                history.len(),
            ));
        }
        // A tree has more slots than positions, so the context alone does not bound the slots.
        if first + part.rows.len() > MAX_HISTORY {
            return Err(refuse(
                "too many slots",
                first + part.rows.len(),
                MAX_HISTORY,
            ));
        }
        history.truncate(first);
        history.extend(part.rows.iter().map(|row| row.token));
        Ok(())
    }

    fn sample_row(
        &self,
        part: &SequenceRows<'_>,
        index: usize,
        row: Row,
        logits: &[f32],
        answer: &mut SampledFrame,
    ) -> Result<(), FrameError> {
        let tracked = self.tracked.get(&part.sequence).ok_or(MISSING)?;
        let not_finite = |_| FrameError::NotFinite { row: index };
        let position = row.position.saturating_add(1);
        let chosen = tracked
            .sampling
            .choose(logits, position)
            .map_err(not_finite)?;
        let mut list = [(0, 0.0); MAX_TOP];
        let top = tracked
            .sampling
            .most_probable(logits, &mut list)
            .map_err(not_finite)?;
        let sample = Sample {
            row: index as u16,
            position: row.position,
            token: chosen.token,
            logprob: chosen.logprob,
            top: &list[..top],
        };
        answer.push(part.sequence, sample);
        Ok(())
    }

    fn forget(&mut self, sequence: u64) {
        if let Some(tracked) = self.tracked.remove(&sequence) {
            self.keep(tracked.history);
        }
    }

    fn forget_all(&mut self) {
        while let Some((_, tracked)) = self.tracked.pop_first() {
            self.keep(tracked.history);
        }
    }

    fn keep(&mut self, mut history: Vec<u32>) {
        history.clear();
        self.spare.push(history);
    }
}

const MISSING: FrameError = FrameError::Malformed("fewer logits than sampled rows");

#[cfg(test)]
mod tests;
