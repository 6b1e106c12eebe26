//! What a stage takes of a machine's memory and disk.
//!
//! Memory of a stage = weights + KV + working space, and [`HEADROOM_PERCENT`] of that sum on
//! top. All of it must fit in the device's free memory and in the peer's shared pool.
//!
//! - *weights*: the bytes of the stage's segments times [`WEIGHTS_IN_MEMORY_PERCENT`]. A
//!   compiled stage holds about its weights' own bytes.
//! - *KV*: the context in whole blocks of [`KV_BLOCK`] tokens, plus the stage's scratch block,
//!   times bytes per token and layer, times layers.
//! - *working space*: [`RUNTIME_BYTES`] for the worker process and its runtime, plus
//!   [`STEP_ROWS`] rows × hidden × [`ACTIVATION_VALUES`] × 4 bytes of activations, plus in the
//!   tail [`LOGIT_ROWS`] rows × vocab × [`LOGIT_COPIES`] × 4 bytes.
//!
//! Disk: the segments that the peer does not hold yet.

use std::ops::Range;

use crate::candidate::Held;
use crate::model::ModelShape;

/// Kept free on top of what a stage is expected to take.
pub const HEADROOM_PERCENT: u64 = 20;
/// Memory of compiled weights in percent of their stored bytes.
pub const WEIGHTS_IN_MEMORY_PERCENT: u64 = 100;
/// Tokens of one logical KV block.
pub const KV_BLOCK: u64 = 32;
/// A worker process with the runtime's libraries loaded and no model.
pub const RUNTIME_BYTES: u64 = 96 << 20;
/// Rows of the largest step that room is kept for (a prefill chunk).
pub const STEP_ROWS: u64 = 256;
/// Values alive at once per row, in multiples of the hidden width: residual, norm, q, k, v,
/// attention, and the two wide MLP products at up to five times the width each.
pub const ACTIVATION_VALUES: u64 = 16;
/// Rows of one step that the tail computes logits for.
pub const LOGIT_ROWS: u64 = 64;
/// The graph's logits and the sampler's view of them.
pub const LOGIT_COPIES: u64 = 2;

const F32_BYTES: u64 = 4;

/// Memory of one stage, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    pub weights: u64,
    pub kv: u64,
    pub working: u64,
    pub headroom: u64,
}

impl Footprint {
    /// What a stage over `layers` takes with room for `ctx` tokens.
    pub fn of(model: &ModelShape, layers: &Range<u32>, ctx: u32) -> Self {
        let weights = percent(model.weights_bytes(layers), WEIGHTS_IN_MEMORY_PERCENT);
        let kv = product(&[
            u64::from(ctx).div_ceil(KV_BLOCK) + 1,
            KV_BLOCK,
            model.kv_bytes_per_token_per_layer,
            u64::from(layers.end - layers.start),
        ]);
        let activations = product(&[
            STEP_ROWS,
            u64::from(model.hidden),
            ACTIVATION_VALUES,
            F32_BYTES,
        ]);
        let logits = if layers.end == model.layers() {
            product(&[LOGIT_ROWS, u64::from(model.vocab), LOGIT_COPIES, F32_BYTES])
        } else {
            0
        };
        let working = RUNTIME_BYTES
            .saturating_add(activations)
            .saturating_add(logits);
        let sum = weights.saturating_add(kv).saturating_add(working);
        Footprint {
            weights,
            kv,
            working,
            headroom: percent(sum, HEADROOM_PERCENT),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.kv)
            .saturating_add(self.working)
            .saturating_add(self.headroom)
    }
}

/// Bytes of the segments for `layers` that a peer holding `held` has to pull.
pub fn pull_bytes(model: &ModelShape, layers: &Range<u32>, held: &Held) -> u64 {
    let first = layers.start == 0;
    let last = layers.end == model.layers();
    let mut bytes: u64 = 0;
    let mut add = |needed: bool, held: bool, size: u64| {
        if needed && !held {
            bytes = bytes.saturating_add(size);
        }
    };
    add(true, held.common, model.common_bytes);
    add(
        first || (last && model.tied),
        held.embedding,
        model.embedding_bytes,
    );
    add(last, held.head, model.head_bytes);
    for layer in layers.clone() {
        add(
            true,
            held.layers.contains(&layer),
            model.layer_bytes[layer as usize],
        );
    }
    bytes
}

fn percent(bytes: u64, percent: u64) -> u64 {
    let scaled = (u128::from(bytes) * u128::from(percent)).div_ceil(100);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |product: u64, factor| product.saturating_mul(*factor))
}
