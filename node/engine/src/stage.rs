//! A loaded stage as the pipeline's engine.
#![allow(unsafe_code)]

use skein_pipeline::engine::{Engine, SlotMove, StepInputs};

use crate::bridge::{RawMove, RawStep, StageHandle};
use crate::check::{InputError, Limits, check};
use crate::error::EngineError;
use crate::report::StageReport;
use crate::spec::StageSpec;

/// One compiled stage with its KV cache.
///
/// A step allocates nothing in Rust, and hidden states are written where OpenVINO reads them and
/// read where it wrote them.
pub struct Stage {
    handle: StageHandle,
    report: StageReport,
    limits: Limits,
    last: bool,
    hidden: usize,
    vocab: usize,
    /// Rows whose hidden states were asked for since the last step.
    hidden_rows: Option<usize>,
}

const _: () = {
    // A list of moves is handed to the bridge as it is.
    assert!(size_of::<SlotMove>() == size_of::<RawMove>());
    assert!(std::mem::offset_of!(SlotMove, from) == std::mem::offset_of!(RawMove, from));
    assert!(std::mem::offset_of!(SlotMove, to) == std::mem::offset_of!(RawMove, to));
};

impl Stage {
    pub(crate) fn new(handle: StageHandle, report: StageReport, spec: &StageSpec<'_>) -> Self {
        Self {
            handle,
            report,
            limits: Limits {
                blocks: spec.blocks + 1,
                tokens: spec.first.then_some(spec.vocab),
            },
            last: spec.last,
            hidden: spec.hidden,
            vocab: spec.vocab,
            hidden_rows: None,
        }
    }

    /// What the graph became when it was compiled.
    pub fn report(&self) -> &StageReport {
        &self.report
    }
}

impl Engine for Stage {
    type Error = EngineError;

    fn hidden(&self) -> usize {
        self.hidden
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn hidden_input(&mut self, rows: usize) -> Result<&mut [f32], EngineError> {
        self.hidden_rows = None;
        let input = self.handle.hidden_input(rows, rows * self.hidden)?;
        self.hidden_rows = Some(rows);
        Ok(input)
    }

    fn step(&mut self, inputs: &StepInputs) -> Result<&[f32], EngineError> {
        check(inputs, self.limits)?;
        if self.limits.tokens.is_none() {
            let found = self.hidden_rows.take().unwrap_or(0);
            if found != inputs.rows {
                return Err(InputError::Hidden {
                    found,
                    wanted: inputs.rows,
                }
                .into());
            }
        }
        let output = if self.last {
            inputs.sampled_rows.len() * self.vocab
        } else {
            inputs.rows * self.hidden
        };
        let step = RawStep {
            token_ids: inputs.token_ids.as_ptr(),
            position_ids: inputs.position_ids.as_ptr(),
            rows: inputs.rows,
            past_lens: inputs.past_lens.as_ptr(),
            subsequence_begins: inputs.subsequence_begins.as_ptr(),
            sequences: inputs.past_lens.len(),
            block_indices: inputs.block_indices.as_ptr(),
            block_indices_begins: inputs.block_indices_begins.as_ptr(),
            max_context_len: inputs.max_context_len,
            qq_bias: inputs.qq_bias.as_ptr(),
            qq_bias_size: inputs.qq_bias.len(),
            qq_bias_begins: inputs.qq_bias_begins.as_ptr(),
            qq_bias_begins_size: inputs.qq_bias_begins.len(),
            sampled_rows: inputs.sampled_rows.as_ptr(),
            sampled: inputs.sampled_rows.len(),
            moves: inputs.moves.as_ptr().cast(),
            move_count: inputs.moves.len(),
        };
        // SAFETY: `check` compared every list with the others and every index with its range, a
        // `SlotMove` has the fields of a `RawMove` where a `RawMove` has them (asserted above), and
        // `output` is computed as the bridge computes it.
        unsafe { self.handle.step(&step, output) }
    }
}
