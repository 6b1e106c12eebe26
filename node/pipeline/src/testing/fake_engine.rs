//! An engine whose arithmetic is hashing.

use std::ops::Range;

use thiserror::Error;

use super::{fold, mix};
use crate::engine::{BLOCK_SLOTS, Engine, StepInputs};

/// Hidden values that carry a row's hash, one byte each: integers that bf16 holds exactly.
const HASH_VALUES: usize = 8;
const SLOTS: usize = BLOCK_SLOTS as usize;

/// A model that the fake engine runs; cutting it into stages changes nothing in its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeModel {
    /// Layers in all.
    pub layers: u32,
    /// Width of a hidden state, at least 8.
    pub hidden: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Another seed is another model.
    pub seed: u64,
}

impl Default for FakeModel {
    fn default() -> Self {
        Self {
            layers: 6,
            hidden: 8,
            vocab: 64,
            seed: 0,
        }
    }
}

impl FakeModel {
    /// Equal cuts into `stages` layer ranges.
    pub fn cut(&self, stages: u32) -> Vec<Range<u32>> {
        (0..stages)
            .map(|stage| self.layers * stage / stages..self.layers * (stage + 1) / stages)
            .collect()
    }
}

/// Inputs that no stage may give.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FakeError {
    /// Lists contradict each other.
    #[error("inputs do not fit together: {0}")]
    Shape(&'static str),
    /// A hidden state that no stage of this model wrote.
    #[error("hidden state is none of this model")]
    Hidden,
    /// In `exact`, a row count that changes, or a sequence of one row.
    #[error("rows are not as exact needs them")]
    Rows,
}

/// Layers of a [`FakeModel`] with their KV memory.
///
/// Each layer hashes a row's state with its position and all that it attends, in order, read through
/// block list, past length and mask from a memory that holds what was written and noise elsewhere.
#[derive(Clone, Debug)]
pub struct FakeEngine {
    model: FakeModel,
    layers: Range<u32>,
    /// `[layer][slot]`, the scratch block last.
    memory: Vec<Vec<u64>>,
    exact_rows: Option<usize>,
    states: Vec<u64>,
    hidden: Vec<f32>,
    output: Vec<f32>,
}

impl FakeEngine {
    /// The layers `layers` of `model` over a pool of `blocks`.
    pub fn new(model: FakeModel, layers: Range<u32>, blocks: u32) -> Self {
        assert!(model.hidden >= HASH_VALUES, "a row's hash needs 8 values");
        let slots = (blocks as usize + 1) * SLOTS;
        let memory = layers
            .clone()
            .map(|layer| {
                (0..slots as u64)
                    .map(|slot| fold(u64::from(layer) + 77, slot))
                    .collect()
            })
            .collect();
        Self {
            model,
            layers,
            memory,
            exact_rows: None,
            states: Vec::new(),
            hidden: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Refuses steps whose rows are not a multiple of `rows`, or with a real sequence of one row, as
    /// those are not bit-exact on real devices.
    pub fn with_exact_rows(mut self, rows: Option<u16>) -> Self {
        self.exact_rows = rows.map(usize::from);
        self
    }

    fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    fn is_last(&self) -> bool {
        self.layers.end == self.model.layers
    }

    fn check(&self, inputs: &StepInputs) -> Result<(), FakeError> {
        let rows = inputs.rows;
        let sequences = inputs.past_lens.len();
        let shape = |fits: bool, what| {
            if fits {
                Ok(())
            } else {
                Err(FakeError::Shape(what))
            }
        };
        shape(inputs.token_ids.len() == rows, "token_ids")?;
        shape(inputs.position_ids.len() == rows, "position_ids")?;
        shape(inputs.real_rows <= rows, "real_rows")?;
        shape(
            is_partition(&inputs.subsequence_begins, sequences, rows),
            "subsequence_begins",
        )?;
        let blocks = inputs.block_indices.len();
        shape(
            is_partition(&inputs.block_indices_begins, sequences, blocks),
            "block_indices_begins",
        )?;
        let pool = self.memory.first().map_or(0, Vec::len) / SLOTS;
        let in_pool = |block: &i32| (0..pool as i32).contains(block);
        shape(inputs.block_indices.iter().all(in_pool), "block_indices")?;
        let in_rows = |row: &i64| (0..rows as i64).contains(row);
        shape(inputs.sampled_rows.iter().all(in_rows), "sampled_rows")?;
        shape(
            inputs.real_sampled <= inputs.sampled_rows.len(),
            "real_sampled",
        )?;
        let in_slots = |slot: u32| (slot as usize) < pool * SLOTS;
        let moves_fit = inputs
            .moves
            .iter()
            .all(|one| in_slots(one.from) && in_slots(one.to));
        shape(moves_fit, "moves")?;
        let mut longest = 0;
        let mut bias = 0;
        for sequence in 0..sequences {
            let rows = span(&inputs.subsequence_begins, sequence).len();
            let past = inputs.past_lens[sequence];
            shape(past >= 0, "past_lens")?;
            let context = past as usize + rows;
            longest = longest.max(context);
            let blocks = span(&inputs.block_indices_begins, sequence).len();
            shape(blocks == context.div_ceil(SLOTS), "blocks of a sequence")?;
            if !inputs.qq_bias.is_empty() {
                shape(
                    inputs.qq_bias_begins.get(sequence) == Some(&(bias as i32)),
                    "qq_bias_begins",
                )?;
                bias += rows * rows;
            }
            let real = span(&inputs.subsequence_begins, sequence).start < inputs.real_rows;
            if self.exact_rows.is_some() && real && rows < 2 {
                return Err(FakeError::Rows);
            }
        }
        shape(
            inputs.max_context_len as usize == longest,
            "max_context_len",
        )?;
        shape(inputs.qq_bias.len() == bias, "qq_bias")?;
        match self.exact_rows {
            Some(fixed) if !rows.is_multiple_of(fixed) => Err(FakeError::Rows),
            Some(fixed) if !inputs.sampled_rows.len().is_multiple_of(fixed) => Err(FakeError::Rows),
            _ => Ok(()),
        }
    }

    fn read_states(&mut self, inputs: &StepInputs) -> Result<(), FakeError> {
        self.states.clear();
        if self.is_first() {
            let seed = self.model.seed;
            self.states.extend(
                inputs
                    .token_ids
                    .iter()
                    .map(|token| fold(seed, *token as u64)),
            );
            return Ok(());
        }
        for row in self
            .hidden
            .chunks_exact(self.model.hidden)
            .take(inputs.rows)
        {
            let mut bytes = [0u8; HASH_VALUES];
            for (byte, value) in bytes.iter_mut().zip(row) {
                if value.fract() != 0.0 || !(0.0..256.0).contains(value) {
                    return Err(FakeError::Hidden);
                }
                *byte = *value as u8;
            }
            self.states.push(u64::from_le_bytes(bytes));
        }
        if self.states.len() == inputs.rows {
            Ok(())
        } else {
            Err(FakeError::Shape("hidden_input"))
        }
    }

    fn run_layer(&mut self, index: usize, inputs: &StepInputs) {
        let layer = u64::from(self.layers.start) + index as u64;
        let memory = &mut self.memory[index];
        for sequence in 0..inputs.past_lens.len() {
            let rows = span(&inputs.subsequence_begins, sequence);
            let blocks = &inputs.block_indices[span(&inputs.block_indices_begins, sequence)];
            let past = inputs.past_lens[sequence] as usize;
            let slot = |index: usize| blocks[index / SLOTS] as usize * SLOTS + index % SLOTS;
            for (offset, row) in rows.clone().enumerate() {
                let position = inputs.position_ids[row] as u64;
                memory[slot(past + offset)] = fold(fold(self.states[row], position), layer);
            }
            let committed = (0..past).fold(layer, |state, index| fold(state, memory[slot(index)]));
            let count = rows.len();
            for (offset, row) in rows.enumerate() {
                let attends = |other: &usize| {
                    if inputs.qq_bias.is_empty() {
                        return *other <= offset;
                    }
                    let start = inputs.qq_bias_begins[sequence] as usize;
                    inputs.qq_bias[start + offset * count + other] == 1
                };
                let attended = (0..count).filter(attends).fold(committed, |state, other| {
                    fold(state, memory[slot(past + other)])
                });
                let position = inputs.position_ids[row] as u64;
                self.states[row] = fold(fold(self.states[row], attended), position);
            }
        }
    }

    fn write_output(&mut self, inputs: &StepInputs) {
        self.output.clear();
        if !self.is_last() {
            for state in &self.states {
                let values = state.to_le_bytes().map(f32::from);
                self.output.extend_from_slice(&values);
                let end = self.output.len() + self.model.hidden - HASH_VALUES;
                self.output.resize(end, 0.0);
            }
            return;
        }
        for row in &inputs.sampled_rows {
            let state = self.states[*row as usize];
            let logit = |token: u64| (mix(fold(state, token)) >> 40) as f32 / (1u64 << 20) as f32;
            self.output.extend((0..self.model.vocab as u64).map(logit));
        }
    }
}

impl Engine for FakeEngine {
    type Error = FakeError;

    fn hidden(&self) -> usize {
        self.model.hidden
    }

    fn vocab(&self) -> usize {
        self.model.vocab
    }

    fn hidden_input(&mut self, rows: usize) -> Result<&mut [f32], FakeError> {
        self.hidden.resize(rows * self.model.hidden, 0.0);
        Ok(&mut self.hidden)
    }

    fn step(&mut self, inputs: &StepInputs) -> Result<&[f32], FakeError> {
        self.check(inputs)?;
        for one in &inputs.moves {
            for memory in &mut self.memory {
                memory[one.to as usize] = memory[one.from as usize];
            }
        }
        self.read_states(inputs)?;
        for index in 0..self.memory.len() {
            self.run_layer(index, inputs);
        }
        self.write_output(inputs);
        Ok(&self.output)
    }
}

fn span(begins: &[i32], index: usize) -> Range<usize> {
    begins[index] as usize..begins[index + 1] as usize
}

fn is_partition(begins: &[i32], parts: usize, end: usize) -> bool {
    begins.len() == parts + 1
        && begins.first() == Some(&0)
        && begins.last() == Some(&(end as i32))
        && begins.is_sorted()
}
