//! From a step frame to the inputs of one stage's engine, checked.
//!
//! A stage keeps no sequences: everything it needs is in the frame, and what must not be trusted is
//! checked here, before a device reads or writes a slot. It knows no tokens' meaning and no logits;
//! those are [`crate::tail`]'s.

use crate::{
    engine::{BLOCK_SLOTS, SlotMove, StepInputs},
    frame::{
        FrameError, HiddenType, MAX_FIXED_ROWS, MAX_FRAME_BLOCKS, NO_PARENT, SequenceRows,
        StepFrame,
    },
};

/// Most entries of all attention masks of a step: a tree of 1,024 rows, or many small ones. Trees
/// are small; a chunk of a prompt beside one would make its mask quadratic.
pub const MAX_BIAS: usize = 1 << 20;

/// What a stage must know of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageConfig {
    /// The line that it was set up for.
    pub line: u64,
    /// Blocks of its pool; the scratch block comes after them.
    pub blocks: u32,
    /// Whether it embeds tokens; otherwise hidden states come with each frame.
    pub first: bool,
    /// Width of a hidden state.
    pub hidden: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Positions that the model has.
    pub context: u32,
}

/// The state of one stage: which step is due, and a mark a block.
#[derive(Debug)]
pub struct Stage {
    config: StageConfig,
    /// Epoch in force and the step that is due in it.
    due: Option<(u64, u64)>,
    /// For each block, who writes it in the step under way: a stamp that is never used again.
    writers: Vec<u64>,
    stamp: u64,
}

impl Stage {
    /// A stage that has seen no epoch; the first frame may bring any, at step 0.
    pub fn new(config: StageConfig) -> Result<Self, FrameError> {
        if config.blocks as usize > MAX_FRAME_BLOCKS {
            return Err(FrameError::TooMany {
                what: "blocks in a pool",
                count: config.blocks.into(),
                limit: MAX_FRAME_BLOCKS as u64,
            });
        }
        Ok(Self {
            config,
            due: None,
            writers: vec![0; config.blocks as usize],
            stamp: 0,
        })
    }

    /// What the stage was set up with.
    pub fn config(&self) -> &StageConfig {
        &self.config
    }

    /// Checks the frame and writes the engine's inputs for it; allocates nothing once `inputs` has
    /// grown to a line's largest step.
    ///
    /// A refused frame changes nothing: the same step is still due.
    pub fn prepare(
        &mut self,
        frame: &StepFrame,
        inputs: &mut StepInputs,
    ) -> Result<(), FrameError> {
        self.check_order(frame)?;
        self.check_hidden(frame)?;
        let first_stamp = self.check_sequences(frame)?;
        self.check_sharing(frame, first_stamp)?;
        fill(frame, self.config.blocks, inputs)?;
        self.due = Some((frame.epoch, frame.step + 1));
        Ok(())
    }

    fn check_order(&self, frame: &StepFrame) -> Result<(), FrameError> {
        if frame.line != self.config.line {
            return Err(FrameError::Line {
                got: frame.line,
                line: self.config.line,
            });
        }
        let expected = match self.due {
            Some((current, _)) if frame.epoch < current => {
                return Err(FrameError::StaleEpoch {
                    got: frame.epoch,
                    current,
                });
            }
            Some((current, due)) if frame.epoch == current => due,
            _ => 0,
        };
        if frame.step != expected || frame.step == u64::MAX {
            return Err(FrameError::Step {
                epoch: frame.epoch,
                got: frame.step,
                expected,
            });
        }
        Ok(())
    }

    fn check_hidden(&self, frame: &StepFrame) -> Result<(), FrameError> {
        if frame.rows().is_empty() {
            return Err(FrameError::Malformed("step without rows"));
        }
        let expected = if self.config.first {
            0
        } else {
            self.config.hidden
        };
        if frame.hidden_width() != expected {
            return Err(FrameError::Malformed(
                "hidden states do not have this stage's width",
            ));
        }
        if expected != 0 && frame.hidden == HiddenType::None {
            return Err(FrameError::Malformed("hidden states of no type"));
        }
        if frame.fixed_rows > MAX_FIXED_ROWS {
            return Err(FrameError::Malformed(
                "fixed rows do not fit the scratch block",
            ));
        }
        Ok(())
    }

    /// Checks each sequence alone and marks the blocks it writes; returns the first one's stamp.
    fn check_sequences(&mut self, frame: &StepFrame) -> Result<u64, FrameError> {
        let first_stamp = self.stamp + 1;
        for part in frame.sequences() {
            self.stamp += 1;
            self.check_blocks(&part)?;
            check_rows(&part, &self.config)?;
            self.mark_written(&part);
        }
        Ok(first_stamp)
    }

    fn check_blocks(&self, part: &SequenceRows<'_>) -> Result<(), FrameError> {
        let pool = self.config.blocks;
        if let Some(block) = part.blocks.iter().find(|block| **block >= pool) {
            return Err(refuse(part, "block outside the pool", *block, pool));
        }
        let slots = part.blocks.len() as u64 * u64::from(BLOCK_SLOTS);
        let end = u64::from(part.first_slot) + part.rows.len() as u64;
        if !part.rows.is_empty() && end > slots {
            return Err(refuse(part, "rows beyond its blocks", end, slots));
        }
        for one in part.moves {
            let slot = one.from_slot.max(one.to_slot);
            if u64::from(slot) >= slots {
                return Err(refuse(part, "move beyond its blocks", slot, slots));
            }
        }
        Ok(())
    }

    /// Marks the blocks that the sequence writes, by rows or by moves.
    fn mark_written(&mut self, part: &SequenceRows<'_>) {
        let end = part.first_slot as usize + part.rows.len();
        let by_rows = if part.rows.is_empty() {
            0..0
        } else {
            part.first_slot as usize / BLOCK_SLOTS as usize..end.div_ceil(BLOCK_SLOTS as usize)
        };
        let by_moves = part
            .moves
            .iter()
            .map(|one| (one.to_slot / BLOCK_SLOTS) as usize);
        for index in by_rows.chain(by_moves) {
            let block = part.blocks[index];
            self.writers[block as usize] = self.stamp;
        }
    }

    /// A block that is written appears once in the whole step: shared blocks are only read.
    fn check_sharing(&self, frame: &StepFrame, first_stamp: u64) -> Result<(), FrameError> {
        for (stamp, part) in (first_stamp..).zip(frame.sequences()) {
            for (index, block) in part.blocks.iter().enumerate() {
                let writer = self.writers[*block as usize];
                if writer < first_stamp {
                    continue;
                }
                let again = writer == stamp && part.blocks[..index].contains(block);
                if writer != stamp || again {
                    let pool = self.config.blocks;
                    return Err(refuse(&part, "block is written by another", *block, pool));
                }
            }
        }
        Ok(())
    }
}

fn check_rows(part: &SequenceRows<'_>, config: &StageConfig) -> Result<(), FrameError> {
    for (index, row) in part.rows.iter().enumerate() {
        let expected = if row.parent == NO_PARENT {
            part.first_slot
        } else if usize::from(row.parent) < index {
            // Parents were checked before their children and lie below the context.
            part.rows[usize::from(row.parent)].position + 1
        } else {
            return Err(refuse(
                part,
                "parent is not an earlier row",
                row.parent,
                index as u64,
            ));
        };
        if row.position != expected {
            return Err(refuse(
                part,
                "position is not its parent's next",
                row.position,
                expected,
            ));
        }
        if row.position >= config.context {
            return Err(refuse(
                part,
                "position beyond the context",
                row.position,
                config.context,
            ));
        }
        if row.token as usize >= config.vocab {
            let vocab = config.vocab as u64;
            return Err(refuse(
                part,
                "token outside the vocabulary",
                row.token,
                vocab,
            ));
        }
    }
    Ok(())
}

fn refuse(
    part: &SequenceRows<'_>,
    what: &'static str,
    value: impl Into<u64>,
    limit: impl Into<u64>,
) -> FrameError {
    FrameError::Sequence {
        sequence: part.sequence,
        what,
        value: value.into(),
        limit: limit.into(),
    }
}

/// Writes the inputs of a frame that was checked.
fn fill(frame: &StepFrame, scratch_block: u32, inputs: &mut StepInputs) -> Result<(), FrameError> {
    inputs.clear();
    inputs.subsequence_begins.push(0);
    inputs.block_indices_begins.push(0);
    for part in frame.sequences() {
        for one in part.moves {
            inputs.moves.push(SlotMove {
                from: absolute_slot(part.blocks, one.from_slot),
                to: absolute_slot(part.blocks, one.to_slot),
            });
        }
        if part.rows.is_empty() {
            continue;
        }
        for row in part.rows {
            if row.is_sampled() {
                inputs.sampled_rows.push(inputs.token_ids.len() as i64);
            }
            inputs.token_ids.push(row.token.into());
            inputs.position_ids.push(row.position.into());
        }
        let end = part.first_slot as usize + part.rows.len();
        let used = end.div_ceil(BLOCK_SLOTS as usize);
        inputs
            .block_indices
            .extend(part.blocks[..used].iter().map(|block| *block as i32));
        close_sequence(inputs, part.first_slot, end);
    }
    inputs.real_rows = inputs.token_ids.len();
    inputs.real_sampled = inputs.sampled_rows.len();
    pad(usize::from(frame.fixed_rows), scratch_block, inputs);
    inputs.rows = inputs.token_ids.len();
    if frame.is_chain() {
        return Ok(());
    }
    fill_bias(frame, inputs)
}

fn absolute_slot(blocks: &[u32], slot: u32) -> u32 {
    blocks[(slot / BLOCK_SLOTS) as usize] * BLOCK_SLOTS + slot % BLOCK_SLOTS
}

fn close_sequence(inputs: &mut StepInputs, past: u32, end: usize) {
    inputs.past_lens.push(past as i32);
    inputs
        .subsequence_begins
        .push(inputs.token_ids.len() as i32);
    inputs
        .block_indices_begins
        .push(inputs.block_indices.len() as i32);
    inputs.max_context_len = inputs.max_context_len.max(end as i32);
}

/// Adds a scratch sequence so that the rows, and the sampled rows if there are any, are a multiple
/// of `fixed`; its slots are in the stage's own scratch block and nobody reads them.
fn pad(fixed: usize, scratch_block: u32, inputs: &mut StepInputs) {
    if fixed == 0 {
        return;
    }
    let missing = inputs.real_rows.next_multiple_of(fixed) - inputs.real_rows;
    if missing > 0 {
        inputs.token_ids.resize(inputs.real_rows + missing, 0);
        inputs.position_ids.extend(0..missing as i64);
        inputs.block_indices.push(scratch_block as i32);
        close_sequence(inputs, 0, missing);
    }
    let sampled = inputs.real_sampled.next_multiple_of(fixed);
    inputs.sampled_rows.resize(sampled, 0);
}

/// One matrix a sequence, the scratch sequence included: each row sees itself and its ancestors.
fn fill_bias(frame: &StepFrame, inputs: &mut StepInputs) -> Result<(), FrameError> {
    let entries: usize = inputs
        .subsequence_begins
        .windows(2)
        .map(|pair| ((pair[1] - pair[0]) as usize).pow(2))
        .sum();
    if entries > MAX_BIAS {
        return Err(FrameError::TooMany {
            what: "attention mask entries",
            count: entries as u64,
            limit: MAX_BIAS as u64,
        });
    }
    inputs.qq_bias_begins.push(0);
    for part in frame.sequences().filter(|part| !part.rows.is_empty()) {
        let width = part.rows.len();
        let start = inputs.qq_bias.len();
        inputs.qq_bias.resize(start + width * width, 0);
        let matrix = &mut inputs.qq_bias[start..];
        for (index, row) in part.rows.iter().enumerate() {
            if row.parent != NO_PARENT {
                let parent = usize::from(row.parent) * width;
                matrix.copy_within(parent..parent + width, index * width);
            }
            matrix[index * width + index] = 1;
        }
        inputs.qq_bias_begins.push(inputs.qq_bias.len() as i32);
    }
    let padding = inputs.rows - inputs.real_rows;
    if padding > 0 {
        for index in 0..padding {
            inputs
                .qq_bias
                .extend((0..padding).map(|other| u8::from(other <= index)));
        }
        inputs.qq_bias_begins.push(inputs.qq_bias.len() as i32);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
