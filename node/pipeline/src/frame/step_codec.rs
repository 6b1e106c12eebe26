//! [`StepFrame`] to bytes and back; the layout is in the [module above](super).

use std::ops::Range;

use super::{
    FrameError, HiddenType, MAX_BLOCKS, MAX_FIXED_ROWS, MAX_FRAME_BLOCKS, MAX_HISTORY, MAX_MESSAGE,
    MAX_MOVES, MAX_ROWS, MAX_SEQUENCES, MAX_TOP, Move, Row, StepFrame,
    bytes::{Put, Reader},
    error::bounded,
    step::{Entry, Span},
};
use crate::sample::Sampling;

const HEADER: u64 = 64;
const SEQUENCE: u64 = 32;
const SAMPLING: u64 = 56;
const ROW: u64 = 12;
const FLAG_LOGITS: u16 = 1;
const FLAG_BEGIN: u8 = 1;
const FLAG_END: u8 = 2;

impl StepFrame {
    /// Appends the frame without hidden states, as the head sends it to the first stage.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_tables(0, out);
    }

    /// Appends the frame with `states` (`[rows, width]`, without padding) in the line's type.
    ///
    /// Refuses states that are not finite, and then leaves `out` as it was.
    pub fn encode_with_hidden(
        &self,
        states: &[f32],
        width: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        if width == 0 || states.len() != self.rows.len() * width {
            return Err(FrameError::Length {
                needed: (self.rows.len() * width) as u64,
                got: states.len() as u64,
            });
        }
        let start = out.len();
        self.encode_tables(width, out);
        let written = self.hidden.write(states, width, out);
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    pub(crate) fn encode_tables(&self, hidden_width: usize, out: &mut Vec<u8>) {
        out.put_u64(self.line);
        out.put_u64(self.epoch);
        out.put_u64(self.step);
        out.put_u16(self.fixed_rows);
        out.put_u16(if self.wants_logits { FLAG_LOGITS } else { 0 });
        out.put_u32(self.hidden as u32);
        out.put_u32(hidden_width as u32);
        out.put_u32(self.sequences.len() as u32);
        out.put_u32(self.beginning as u32);
        out.put_u32(self.rows.len() as u32);
        out.put_u32(self.blocks.len() as u32);
        out.put_u32(self.moves.len() as u32);
        out.put_u32(self.history.len() as u32);
        out.put_u32(0);
        for entry in &self.sequences {
            out.put_u64(entry.sequence);
            out.put_u32(entry.first_slot);
            out.put_u32(entry.rows.count as u32);
            out.put_u32(entry.blocks.count as u32);
            out.put_u32(entry.moves.count as u32);
            out.put_u32(entry.history.count as u32);
            let begin = if entry.begin.is_some() { FLAG_BEGIN } else { 0 };
            let end = if entry.end { FLAG_END } else { 0 };
            out.put_u32(u32::from(begin | end));
        }
        for sampling in self.sequences.iter().filter_map(|entry| entry.begin) {
            encode_sampling(sampling, out);
        }
        for row in &self.rows {
            out.put_u32(row.token);
            out.put_u32(row.position);
            out.put_u16(row.parent);
            out.put_u16(u16::from(row.flags));
        }
        for block in &self.blocks {
            out.put_u32(*block);
        }
        for one in &self.moves {
            out.put_u32(one.from_slot);
            out.put_u32(one.to_slot);
        }
        for token in &self.history {
            out.put_u32(*token);
        }
    }

    /// Reads a step's payload into this frame and returns where in `bytes` the hidden states lie
    /// (empty where there are none); [`HiddenType::read`] reads those.
    ///
    /// Every count is checked against its limit and all of them against the length before anything
    /// is reserved. An error leaves the frame empty.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Range<usize>, FrameError> {
        self.clear();
        let decoded = self.decode_all(bytes);
        if decoded.is_err() {
            self.clear();
        }
        decoded
    }

    fn decode_all(&mut self, bytes: &[u8]) -> Result<Range<usize>, FrameError> {
        bounded("bytes in a frame", bytes.len() as u64, MAX_MESSAGE)?;
        let mut reader = Reader::new(bytes);
        self.line = reader.u64()?;
        self.epoch = reader.u64()?;
        self.step = reader.u64()?;
        self.fixed_rows = reader.u16()?;
        bounded(
            "fixed rows",
            u64::from(self.fixed_rows),
            MAX_FIXED_ROWS.into(),
        )?;
        let flags = reader.u16()?;
        if flags & !FLAG_LOGITS != 0 {
            return Err(FrameError::Malformed("unknown flags of a step"));
        }
        self.wants_logits = flags & FLAG_LOGITS != 0;
        self.hidden = HiddenType::try_from(reader.u8()?)?;
        reader.zeros(3)?;
        let width = u64::from(reader.u32()?);
        let sequences = bounded("sequences", reader.u32()?.into(), MAX_SEQUENCES)?;
        let beginning = bounded("beginning sequences", reader.u32()?.into(), sequences)?;
        let rows = bounded("rows", reader.u32()?.into(), MAX_ROWS)?;
        let blocks = bounded("blocks", reader.u32()?.into(), MAX_FRAME_BLOCKS)?;
        let moves = bounded("moves", reader.u32()?.into(), MAX_MOVES)?;
        let history = bounded("history tokens", reader.u32()?.into(), MAX_HISTORY)?;
        reader.zeros(4)?;
        if rows == 0 {
            return Err(FrameError::Malformed("step without rows"));
        }
        if width != 0 && self.hidden == HiddenType::None {
            return Err(FrameError::Malformed("hidden states of no type"));
        }
        let tables = HEADER
            + SEQUENCE * sequences as u64
            + SAMPLING * beginning as u64
            + ROW * rows as u64
            + 4 * blocks as u64
            + 8 * moves as u64
            + 4 * history as u64;
        // At most 2^32 · 4096 · 4: no overflow.
        reader.expect_length(tables + width * rows as u64 * self.hidden.size() as u64)?;
        self.hidden_width = width as usize;
        self.beginning = beginning;

        self.decode_sequences(&mut reader, sequences)?;
        let claimed = self.sequences.last().map_or([0; 4], |last| {
            [last.rows, last.blocks, last.moves, last.history].map(|span| span.start + span.count)
        });
        if claimed != [rows, blocks, moves, history] {
            return Err(FrameError::Malformed(
                "sequences do not add up to the header",
            ));
        }
        let mut read = 0;
        for entry in &mut self.sequences {
            if entry.begin.is_some() {
                entry.begin = Some(decode_sampling(&mut reader)?);
                read += 1;
            }
        }
        if read != beginning {
            return Err(FrameError::Malformed(
                "sequences do not add up to the header",
            ));
        }
        self.decode_arenas(&mut reader, rows, blocks, moves, history)?;
        if self.wants_logits != self.rows.iter().any(|row| row.wants_logits()) {
            return Err(FrameError::Malformed("logits flag contradicts the rows"));
        }
        Ok(reader.at()..bytes.len())
    }

    fn decode_sequences(&mut self, reader: &mut Reader, count: usize) -> Result<(), FrameError> {
        self.sequences.reserve(count);
        let mut next = [0usize; 4];
        let mut beginning = 0;
        for _ in 0..count {
            let sequence = reader.u64()?;
            let first_slot = reader.u32()?;
            let mut spans = [Span::default(); 4];
            let limits = [MAX_ROWS, MAX_BLOCKS, MAX_MOVES, MAX_HISTORY];
            let names = ["rows", "blocks of a sequence", "moves", "history tokens"];
            for index in 0..4 {
                let count = bounded(names[index], reader.u32()?.into(), limits[index])?;
                let start = next[index];
                spans[index] = Span { start, count };
                next[index] = start + count;
            }
            let [rows, blocks, moves, history] = spans;
            let flags = reader.u8()?;
            reader.zeros(3)?;
            if flags & !(FLAG_BEGIN | FLAG_END) != 0 {
                return Err(FrameError::Malformed("unknown flags of a sequence"));
            }
            let begins = flags & FLAG_BEGIN != 0;
            let end = flags & FLAG_END != 0;
            if rows.count == 0 && !end {
                return Err(FrameError::Malformed("sequence without rows"));
            }
            let expected = if begins { first_slot as usize } else { 0 };
            if history.count != expected {
                return Err(FrameError::Malformed(
                    "history does not reach the first slot",
                ));
            }
            beginning += usize::from(begins);
            self.sequences.push(Entry {
                sequence,
                first_slot,
                rows,
                blocks,
                moves,
                history,
                // The table of parameters follows the sequences; until it is read, only whether.
                begin: begins.then(Sampling::default),
                end,
            });
        }
        if beginning != self.beginning {
            return Err(FrameError::Malformed(
                "sequences do not add up to the header",
            ));
        }
        Ok(())
    }

    fn decode_arenas(
        &mut self,
        reader: &mut Reader,
        rows: usize,
        blocks: usize,
        moves: usize,
        history: usize,
    ) -> Result<(), FrameError> {
        self.rows.reserve(rows);
        for _ in 0..rows {
            let row = Row {
                token: reader.u32()?,
                position: reader.u32()?,
                parent: reader.u16()?,
                flags: reader.u8()?,
            };
            reader.zeros(1)?;
            if row.flags & !(Row::SAMPLE | Row::LOGITS) != 0
                || (row.wants_logits() && !row.is_sampled())
            {
                return Err(FrameError::Malformed("unknown flags of a row"));
            }
            self.rows.push(row);
        }
        let words = reader.take(4 * blocks)?.as_chunks::<4>().0;
        self.blocks
            .extend(words.iter().map(|word| u32::from_le_bytes(*word)));
        self.moves.reserve(moves);
        for _ in 0..moves {
            self.moves.push(Move {
                from_slot: reader.u32()?,
                to_slot: reader.u32()?,
            });
        }
        let words = reader.take(4 * history)?.as_chunks::<4>().0;
        self.history
            .extend(words.iter().map(|word| u32::from_le_bytes(*word)));
        Ok(())
    }
}

fn encode_sampling(sampling: Sampling, out: &mut Vec<u8>) {
    out.put_u64(sampling.seed);
    out.put_u32(sampling.choice);
    out.put_f32(sampling.temperature);
    out.put_u32(sampling.top_k);
    out.put_f32(sampling.top_p);
    out.put_f32(sampling.min_p);
    out.put_f32(sampling.repetition_penalty);
    out.put_f32(sampling.presence_penalty);
    out.put_f32(sampling.frequency_penalty);
    out.put_u32(sampling.penalty_window);
    out.put_u32(sampling.top);
    out.put_u64(0);
}

fn decode_sampling(reader: &mut Reader) -> Result<Sampling, FrameError> {
    let sampling = Sampling {
        seed: reader.u64()?,
        choice: reader.u32()?,
        temperature: reader.f32()?,
        top_k: reader.u32()?,
        top_p: reader.f32()?,
        min_p: reader.f32()?,
        repetition_penalty: reader.f32()?,
        presence_penalty: reader.f32()?,
        frequency_penalty: reader.f32()?,
        penalty_window: reader.u32()?,
        top: reader.u32()?,
    };
    reader.zeros(8)?;
    bounded("alternatives of a sample", sampling.top.into(), MAX_TOP)?;
    if sampling.validate().is_err() {
        return Err(FrameError::Malformed(
            "sampling parameters that this version does not honour",
        ));
    }
    Ok(sampling)
}
