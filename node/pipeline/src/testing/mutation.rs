//! Deliberate mistakes.

use crate::{
    engine::{BLOCK_SLOTS, Engine, StepInputs},
    frame::{FrameError, Move, NO_PARENT, Row, SequenceBegin, SequenceRows, StepFrame},
};

/// A mistake in one step, in the first sequence where it can be made.
///
/// On a frame, slots, positions and parents are changed so that they agree with each other where that
/// is possible: what a stage cannot see must show in the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Rows go one slot too early; on a frame their positions follow.
    SlotOffByOne,
    /// The last row has the next position.
    PositionOffByOne,
    /// The frame says the epoch before.
    EpochOffByOne,
    /// The frame says the step after.
    StepOffByOne,
    /// The first block is its neighbour in the pool.
    BlockOffByOne,
    /// The last row's parent is the row before its parent; on a frame its position follows.
    ParentOffByOne,
    /// The last move is missing.
    MoveDropped,
    /// The first row's token is the one after.
    TokenOffByOne,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SlotOffByOne,
        Self::PositionOffByOne,
        Self::EpochOffByOne,
        Self::StepOffByOne,
        Self::BlockOffByOne,
        Self::ParentOffByOne,
        Self::MoveDropped,
        Self::TokenOffByOne,
    ];

    /// Makes the mistake in `frame`; false, and no change, where there is nothing to get wrong.
    ///
    /// `pool` is the number of blocks, so that a neighbour stays inside.
    pub fn apply_to_frame(self, frame: &mut StepFrame, pool: u32) -> Result<bool, FrameError> {
        match self {
            Self::EpochOffByOne if frame.epoch > 0 => {
                frame.epoch -= 1;
                return Ok(true);
            }
            Self::StepOffByOne => {
                frame.step += 1;
                return Ok(true);
            }
            _ => {}
        }
        let mut changed = frame.clone();
        changed.clear();
        changed.line = frame.line;
        changed.epoch = frame.epoch;
        changed.step = frame.step;
        changed.fixed_rows = frame.fixed_rows;
        changed.hidden = frame.hidden;
        let mut done = false;
        for part in frame.sequences() {
            let mut first_slot = part.first_slot;
            let mut blocks = part.blocks.to_vec();
            let mut moves = part.moves.to_vec();
            let mut rows = part.rows.to_vec();
            if !done && part.begin.is_none() {
                done = self.apply(&mut first_slot, &mut blocks, &mut moves, &mut rows, pool);
            }
            changed.push(SequenceRows {
                first_slot,
                blocks: &blocks,
                moves: &moves,
                rows: &rows,
                begin: part.begin.map(|begin| SequenceBegin { ..begin }),
                ..part
            })?;
        }
        if done {
            changed.set_hidden_width(frame.hidden_width());
            *frame = changed;
        }
        Ok(done)
    }

    fn apply(
        self,
        first_slot: &mut u32,
        blocks: &mut [u32],
        moves: &mut Vec<Move>,
        rows: &mut [Row],
        pool: u32,
    ) -> bool {
        let Some(last) = rows.len().checked_sub(1) else {
            return false;
        };
        match self {
            Self::SlotOffByOne if *first_slot > 0 => {
                *first_slot -= 1;
                for row in rows {
                    row.position -= 1;
                }
            }
            Self::PositionOffByOne => rows[last].position += 1,
            Self::BlockOffByOne if *first_slot > 0 && pool > 1 => {
                blocks[0] = (blocks[0] + 1) % pool;
            }
            Self::ParentOffByOne if rows[last].parent != NO_PARENT => {
                rows[last].parent = rows[usize::from(rows[last].parent)].parent;
                rows[last].position -= 1;
            }
            Self::MoveDropped => return moves.pop().is_some(),
            Self::TokenOffByOne => rows[0].token ^= 1,
            _ => return false,
        }
        true
    }

    /// Makes the mistake in an engine's inputs, past every check of a stage; false, and no change,
    /// where there is nothing to get wrong.
    pub fn apply_to_inputs(self, inputs: &mut StepInputs) -> bool {
        let Some(sequence) = inputs.past_lens.iter().position(|past| *past > 0) else {
            return false;
        };
        let rows = inputs.subsequence_begins[sequence] as usize
            ..inputs.subsequence_begins[sequence + 1] as usize;
        match self {
            // Where the sequence would then use one block less, the lists must still fit.
            Self::SlotOffByOne => {
                let context = inputs.past_lens[sequence] + rows.len() as i32;
                if context % BLOCK_SLOTS as i32 == 1 {
                    return false;
                }
                inputs.past_lens[sequence] -= 1;
                let contexts = inputs.subsequence_begins.windows(2).zip(&inputs.past_lens);
                let longest = contexts.map(|(pair, past)| past + pair[1] - pair[0]).max();
                inputs.max_context_len = longest.unwrap_or(0);
            }
            Self::PositionOffByOne => inputs.position_ids[rows.end - 1] += 1,
            Self::BlockOffByOne => {
                // One past the last block of the pool is the scratch block: still inside.
                inputs.block_indices[inputs.block_indices_begins[sequence] as usize] += 1;
            }
            Self::ParentOffByOne => {
                if inputs.qq_bias.is_empty() || rows.len() < 2 {
                    return false;
                }
                let last_row =
                    inputs.qq_bias_begins[sequence] as usize + (rows.len() - 1) * rows.len();
                inputs.qq_bias[last_row] ^= 1;
            }
            Self::MoveDropped => return inputs.moves.pop().is_some(),
            Self::TokenOffByOne => inputs.token_ids[rows.start] ^= 1,
            Self::EpochOffByOne | Self::StepOffByOne => return false,
        }
        true
    }
}

/// An engine that gets one step wrong.
#[derive(Clone, Debug)]
pub struct MutatingEngine<E> {
    inner: E,
    mutation: Mutation,
    /// Steps to run before the mistake.
    healthy: usize,
    made: bool,
    inputs: StepInputs,
}

impl<E> MutatingEngine<E> {
    /// Makes the mistake once, in the first step after `healthy` ones where it can be made.
    pub fn new(inner: E, mutation: Mutation, healthy: usize) -> Self {
        Self {
            inner,
            mutation,
            healthy,
            made: false,
            inputs: StepInputs::default(),
        }
    }

    /// Whether the mistake was made.
    pub fn made(&self) -> bool {
        self.made
    }
}

impl<E: Engine> Engine for MutatingEngine<E> {
    type Error = E::Error;

    fn hidden(&self) -> usize {
        self.inner.hidden()
    }

    fn vocab(&self) -> usize {
        self.inner.vocab()
    }

    fn hidden_input(&mut self, rows: usize) -> Result<&mut [f32], E::Error> {
        self.inner.hidden_input(rows)
    }

    fn step(&mut self, inputs: &StepInputs) -> Result<&[f32], E::Error> {
        self.inputs.clone_from(inputs);
        match self.healthy.checked_sub(1) {
            Some(left) => self.healthy = left,
            None if !self.made => self.made = self.mutation.apply_to_inputs(&mut self.inputs),
            None => {}
        }
        self.inner.step(&self.inputs)
    }
}
