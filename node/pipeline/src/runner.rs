//! One stage of a line, bytes in and bytes out: what a worker does between its pipes.
//!
//! It waits for nothing and owns no pipe; the caller reads a message, hands its payload over and
//! sends what was written. In steady state it allocates nothing, the engine aside.

use thiserror::Error;

use crate::{
    engine::{Engine, StepInputs},
    frame::{
        FrameError, LogitsChunk, MessageKind, SampledFrame, StepFrame, begin_message, end_message,
    },
    stage::{Stage, StageConfig},
    tail::Tail,
};

/// A stage with its engine, and its tail where it is the last.
pub struct StageRunner<E> {
    engine: E,
    stage: Stage,
    tail: Option<Tail>,
    /// Whether the owner of this machine lets logits leave it.
    allow_logits: bool,
    frame: StepFrame,
    inputs: StepInputs,
    sampled: SampledFrame,
    chunk: LogitsChunk,
}

/// Why a step could not be run; the stage cannot go on in this epoch.
#[derive(Debug, Error)]
pub enum RunError<E: std::error::Error + 'static> {
    /// The frame was refused.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The engine failed.
    #[error("engine failed")]
    Engine(#[source] E),
    /// The frame asks for logits, and this machine's owner does not allow that.
    #[error("logits were asked for, which this machine does not allow")]
    LogitsNotAllowed,
}

impl<E: Engine> StageRunner<E> {
    /// A runner; `last` says whether this stage samples.
    pub fn new(
        engine: E,
        config: StageConfig,
        last: bool,
        allow_logits: bool,
    ) -> Result<Self, FrameError> {
        let stage = Stage::new(config)?;
        // Block lists grow with every block that a sequence fills; room for the whole pool, a few
        // KiB, keeps that out of the steps.
        let blocks = config.blocks as usize + 1;
        let mut frame = StepFrame::default();
        frame.reserve_blocks(blocks);
        let mut inputs = StepInputs::default();
        inputs.block_indices.reserve(blocks);
        Ok(Self {
            engine,
            stage,
            tail: last.then(|| Tail::new(config.vocab, config.context)),
            allow_logits,
            frame,
            inputs,
            sampled: SampledFrame::default(),
            chunk: LogitsChunk::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Number of the last frame that could be read.
    pub fn step_number(&self) -> u64 {
        self.frame.step
    }

    /// The tail's memory, on the last stage.
    pub fn tail(&self) -> Option<&Tail> {
        self.tail.as_ref()
    }

    /// Runs the step in `payload` and appends whole messages to `out`: the frame with this stage's
    /// hidden states, or on the last stage debug logits, if asked for, and the samples.
    pub fn step(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), RunError<E::Error>> {
        let hidden_at = self.frame.decode(payload)?;
        if self.frame.wants_logits() && self.tail.is_some() && !self.allow_logits {
            return Err(RunError::LogitsNotAllowed);
        }
        self.stage.prepare(&self.frame, &mut self.inputs)?;
        if !self.stage.config().first {
            let width = self.stage.config().hidden;
            let rows = self.inputs.rows;
            let states = self.engine.hidden_input(rows).map_err(RunError::Engine)?;
            let (real, padding) = states
                .split_at_mut_checked(self.inputs.real_rows * width)
                .ok_or(WIDTH)?;
            self.frame.hidden.read(&payload[hidden_at], width, real)?;
            padding.fill(0.0);
        }
        let output = self.engine.step(&self.inputs).map_err(RunError::Engine)?;
        let Some(tail) = &mut self.tail else {
            let width = self.stage.config().hidden;
            let states = output.get(..self.inputs.real_rows * width).ok_or(WIDTH)?;
            let start = begin_message(out, MessageKind::Step);
            self.frame.encode_with_hidden(states, width, out)?;
            end_message(out, start)?;
            return Ok(());
        };
        if self.frame.wants_logits() {
            tail.debug_logits(&self.frame, output, &mut self.chunk, |chunk| {
                let start = begin_message(out, MessageKind::Logits);
                chunk.encode(out);
                // A chunk is far below the limit of a message.
                let _ = end_message(out, start);
            })?;
        }
        tail.sample(&self.frame, output, &mut self.sampled)?;
        let start = begin_message(out, MessageKind::Sampled);
        self.sampled.encode(out);
        end_message(out, start)?;
        Ok(())
    }
}

const WIDTH: FrameError = FrameError::Malformed("engine's hidden states are too few");
