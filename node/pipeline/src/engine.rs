//! What a stage gives to the device that runs it, and what it gets back.
//!
//! The trait is the seam between the pure pipeline and the one crate that knows a runtime. Nothing
//! here knows devices, memory layouts or numerics: a logical block is [`BLOCK_SLOTS`] slots, and an
//! engine whose device has smaller blocks splits each itself.

/// KV slots of one logical block, on every stage of every line.
pub const BLOCK_SLOTS: u32 = 32;

/// The content of one KV slot is copied from `from` to `to` before a step.
///
/// Both are absolute slots of the stage's pool: `block * 32 + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// The slot that is read.
    pub from: u32,
    /// The slot that is overwritten.
    pub to: u32,
}

/// Inputs of one step of one stage, in the form of a paged-attention graph; buffers are reused.
///
/// `n` is [`rows`](Self::rows), `s` the number of subsequences (scratch ones included).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepInputs {
    /// `[n]` token of each row; a stage that is not the first may ignore it.
    pub token_ids: Vec<i64>,
    /// `[n]` absolute position of each row.
    pub position_ids: Vec<i64>,
    /// `[s]` KV slots that each sequence had before this step; its rows are written after them.
    pub past_lens: Vec<i32>,
    /// `[s + 1]` where each sequence's rows begin; the last entry is `n`.
    pub subsequence_begins: Vec<i32>,
    /// Logical blocks of every sequence, one after the other; only those that the step reads or
    /// writes. The scratch block has the id `blocks` (one past the pool).
    pub block_indices: Vec<i32>,
    /// `[s + 1]` where each sequence's blocks begin in `block_indices`.
    pub block_indices_begins: Vec<i32>,
    /// The largest `past_len + new rows` of any sequence.
    pub max_context_len: i32,
    /// Flattened `[rows, rows]` 0/1 matrices, row-major, one a sequence (1: this row may attend that
    /// row); empty when every sequence of the step is a chain.
    pub qq_bias: Vec<u8>,
    /// `[s + 1]` where each sequence's matrix begins in `qq_bias`; empty with it.
    pub qq_bias_begins: Vec<i32>,
    /// Indices of the rows whose logits the last stage returns, padded in `exact`.
    pub sampled_rows: Vec<i64>,
    /// KV slots to copy before the step, in this order.
    pub moves: Vec<SlotMove>,
    /// Rows, padding included.
    pub rows: usize,
    /// Rows that belong to sequences; the rest is padding after them.
    pub real_rows: usize,
    /// Entries of `sampled_rows` that were asked for; the rest is padding after them.
    pub real_sampled: usize,
}

impl StepInputs {
    /// Empties every list and keeps its memory.
    pub fn clear(&mut self) {
        self.token_ids.clear();
        self.position_ids.clear();
        self.past_lens.clear();
        self.subsequence_begins.clear();
        self.block_indices.clear();
        self.block_indices_begins.clear();
        self.max_context_len = 0;
        self.qq_bias.clear();
        self.qq_bias_begins.clear();
        self.sampled_rows.clear();
        self.moves.clear();
        self.rows = 0;
        self.real_rows = 0;
        self.real_sampled = 0;
    }
}

/// One stage of a model on one device.
pub trait Engine {
    /// Why a step failed; the stage cannot be used afterwards.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Width of a hidden state.
    fn hidden(&self) -> usize;

    /// Width of a row of logits.
    fn vocab(&self) -> usize;

    /// Where the caller writes hidden states `[rows, hidden]` before [`step`](Self::step) on a stage
    /// that is not the first. `rows` counts padding; padded rows are written too (zeros).
    fn hidden_input(&mut self, rows: usize) -> Result<&mut [f32], Self::Error>;

    /// Runs one step: first the moves, then the graph.
    ///
    /// Returns hidden states `[rows, hidden]`, or on the last stage logits `[sampled_rows, vocab]`
    /// (empty when no row is sampled).
    fn step(&mut self, inputs: &StepInputs) -> Result<&[f32], Self::Error>;
}
