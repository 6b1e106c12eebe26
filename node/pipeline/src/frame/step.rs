//! The step frame in memory: flat arenas, one slice a sequence.

use super::{
    FrameError, HiddenType, MAX_BLOCKS, MAX_FRAME_BLOCKS, MAX_HISTORY, MAX_MOVES, MAX_ROWS,
    MAX_SEQUENCES, error::bounded,
};
use crate::sample::Sampling;

/// Parent of a row that continues the committed prefix.
pub const NO_PARENT: u16 = 0xFFFF;

/// One token of one sequence in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token that is fed.
    pub token: u32,
    /// Its absolute position.
    pub position: u32,
    /// Index of its parent among this sequence's rows, or [`NO_PARENT`].
    pub parent: u16,
    /// [`Row::SAMPLE`] and [`Row::LOGITS`].
    pub flags: u8,
}

impl Row {
    /// The tail samples after this row.
    pub const SAMPLE: u8 = 1;
    /// The tail also returns the row's logits (debug).
    pub const LOGITS: u8 = 2;

    /// Whether the tail samples after this row.
    pub fn is_sampled(self) -> bool {
        self.flags & Self::SAMPLE != 0
    }

    /// Whether the tail returns this row's logits.
    pub fn wants_logits(self) -> bool {
        self.flags & Self::LOGITS != 0
    }
}

/// A KV slot that is copied before the step; both are counted from the sequence's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The slot that is read.
    pub from_slot: u32,
    /// The slot that is overwritten.
    pub to_slot: u32,
}

/// What the tail has to know about a sequence that is new to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceBegin<'a> {
    /// The tokens of all slots before the first row.
    pub history: &'a [u32],
    /// How its tokens are chosen.
    pub sampling: Sampling,
}

/// One sequence's part of a step: what the head puts in and what a stage reads out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceRows<'a> {
    /// Id, unique within a line's epoch.
    pub sequence: u64,
    /// KV slots before this step; row `i` is written to slot `first_slot + i`.
    pub first_slot: u32,
    /// The whole block table, in logical blocks of 32 slots.
    pub blocks: &'a [u32],
    /// Slots to copy before the step, in this order.
    pub moves: &'a [Move],
    /// The rows; none only when the sequence ends.
    pub rows: &'a [Row],
    /// Set in the first step that the tail sees of it in an epoch.
    pub begin: Option<SequenceBegin<'a>>,
    /// Forget the sequence after this step.
    pub end: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub sequence: u64,
    pub first_slot: u32,
    pub rows: Span,
    pub blocks: Span,
    pub moves: Span,
    pub history: Span,
    pub begin: Option<Sampling>,
    pub end: bool,
}

/// A range of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    pub start: usize,
    pub count: usize,
}

impl Span {
    fn of<T>(self, arena: &[T]) -> &[T] {
        &arena[self.start..self.start + self.count]
    }
}

/// One step of a line; a value is reused for step after step.
///
/// Layout on the wire: [module](super).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepFrame {
    /// Random id of the line.
    pub line: u64,
    /// Grows whenever the line is rebuilt.
    pub epoch: u64,
    /// From 0, consecutive within an epoch.
    pub step: u64,
    /// 0, or what each stage pads its rows to a multiple of.
    pub fixed_rows: u16,
    /// How hidden states travel on this line.
    pub hidden: HiddenType,
    pub(super) hidden_width: usize,
    pub(super) sequences: Vec<Entry>,
    pub(super) rows: Vec<Row>,
    pub(super) blocks: Vec<u32>,
    pub(super) moves: Vec<Move>,
    pub(super) history: Vec<u32>,
    pub(super) beginning: usize,
    pub(super) wants_logits: bool,
}

impl StepFrame {
    /// Empties the frame and keeps its memory.
    pub fn clear(&mut self) {
        self.line = 0;
        self.epoch = 0;
        self.step = 0;
        self.fixed_rows = 0;
        self.hidden = HiddenType::None;
        self.hidden_width = 0;
        self.sequences.clear();
        self.rows.clear();
        self.blocks.clear();
        self.moves.clear();
        self.history.clear();
        self.beginning = 0;
        self.wants_logits = false;
    }

    /// Makes room for block ids, so that a table that grows does not.
    pub(crate) fn reserve_blocks(&mut self, blocks: usize) {
        self.blocks.reserve(blocks);
    }

    /// Appends one sequence; an error leaves the frame as it was.
    pub fn push(&mut self, part: SequenceRows<'_>) -> Result<(), FrameError> {
        let history = part.begin.map_or(&[][..], |begin| begin.history);
        if part.rows.is_empty() && !part.end {
            return Err(FrameError::Malformed("sequence without rows"));
        }
        if part.begin.is_some() && history.len() != part.first_slot as usize {
            return Err(FrameError::Malformed(
                "history does not reach the first slot",
            ));
        }
        let total = |have: usize, more: usize| have as u64 + more as u64;
        bounded("sequences", total(self.sequences.len(), 1), MAX_SEQUENCES)?;
        bounded("rows", total(self.rows.len(), part.rows.len()), MAX_ROWS)?;
        bounded("blocks of a sequence", part.blocks.len() as u64, MAX_BLOCKS)?;
        let blocks = total(self.blocks.len(), part.blocks.len());
        bounded("blocks", blocks, MAX_FRAME_BLOCKS)?;
        bounded(
            "moves",
            total(self.moves.len(), part.moves.len()),
            MAX_MOVES,
        )?;
        bounded(
            "history tokens",
            total(self.history.len(), history.len()),
            MAX_HISTORY,
        )?;
        self.sequences.push(Entry {
            sequence: part.sequence,
            first_slot: part.first_slot,
            rows: append(&mut self.rows, part.rows),
            blocks: append(&mut self.blocks, part.blocks),
            moves: append(&mut self.moves, part.moves),
            history: append(&mut self.history, history),
            begin: part.begin.map(|begin| begin.sampling),
            end: part.end,
        });
        self.beginning += usize::from(part.begin.is_some());
        self.wants_logits |= part.rows.iter().any(|row| row.wants_logits());
        Ok(())
    }

    /// The sequences, in the order in which their rows follow each other.
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = SequenceRows<'_>> {
        self.sequences.iter().map(|entry| SequenceRows {
            sequence: entry.sequence,
            first_slot: entry.first_slot,
            blocks: entry.blocks.of(&self.blocks),
            moves: entry.moves.of(&self.moves),
            rows: entry.rows.of(&self.rows),
            begin: entry.begin.map(|sampling| SequenceBegin {
                history: entry.history.of(&self.history),
                sampling,
            }),
            end: entry.end,
        })
    }

    /// All rows, sequence by sequence.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Width of the hidden states that trail the frame as it was received; 0 where none do.
    pub fn hidden_width(&self) -> usize {
        self.hidden_width
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn set_hidden_width(&mut self, width: usize) {
        self.hidden_width = width;
    }

    /// Whether any row asks for its logits.
    pub fn wants_logits(&self) -> bool {
        self.wants_logits
    }

    /// Whether every sequence's rows form a chain, so that no stage needs an attention mask.
    pub fn is_chain(&self) -> bool {
        self.sequences().all(|part| is_chain(part.rows))
    }
}

/// Whether each row's parent is the row before it.
pub(crate) fn is_chain(rows: &[Row]) -> bool {
    rows.iter()
        .enumerate()
        .all(|(index, row)| row.parent == chain_parent(index))
}

/// The parent of row `index` of a chain.
pub(crate) fn chain_parent(index: usize) -> u16 {
    match index.checked_sub(1) {
        Some(parent) => parent as u16,
        None => NO_PARENT,
    }
}

fn append<T: Copy>(arena: &mut Vec<T>, part: &[T]) -> Span {
    let start = arena.len();
    arena.extend_from_slice(part);
    Span {
        start,
        count: part.len(),
    }
}
