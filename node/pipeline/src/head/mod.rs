//! The head of a line: which rows go into the next frame, and what the samples mean.
//!
//! Requests join and leave between steps. A frame takes one row of each sequence that waits to
//! decode, then chunks of prompts, oldest first; so a prompt delays those that decode by one chunk a
//! frame and no more. As many frames are in flight as the line has stages, each with other
//! sequences, so that no stage idles; consecutive chunks of one prompt may be in flight together.
//! The head never waits and reads no clock: whoever drives it calls [`Head::next_frame`] until it
//! has none, and [`Head::on_sampled`] with what comes back.
//!
//! In `exact` (`fixed_rows` set) a step has at most that many rows, and each sequence at least two
//! of them, because kernels for one row round differently: the last token is fed again, and a prompt
//! of one token is followed by a dummy row that nobody samples and the next step overwrites.
//!
//! No drafts and no sharing of prompts yet; the frame has room for both.

mod request;
mod schedule;
mod sequence;

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

pub use request::{FinishReason, HeadEvent, Request, RequestId, SubmitError};
use schedule::Flight;
use sequence::Sequence;

use crate::{
    engine::BLOCK_SLOTS,
    frame::{
        HiddenType, LogitsChunk, MAX_FIXED_ROWS, MAX_FRAME_BLOCKS, MAX_HISTORY, MAX_ROWS,
        MAX_SEQUENCES, Row, SampledFrame, StepFrame,
    },
    kv::{BlockPool, blocks_for},
};

/// Most requests that wait for KV cache; more would wait longer than anybody does.
pub const MAX_QUEUE: usize = 256;
/// Most sequences that run; half a frame, so that as many may end in the same frame.
pub const MAX_ACTIVE: usize = MAX_SEQUENCES / 2;
/// Most frames in flight: more than any line has stages.
pub const MAX_IN_FLIGHT: usize = 64;

/// What a head must know of its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadConfig {
    /// Random id of the line.
    pub line: u64,
    /// First epoch.
    pub epoch: u64,
    /// Stages of the line, at least 1: running sequences are spread over that many frames.
    pub stages: usize,
    /// Logical blocks of the smallest stage's pool.
    pub blocks: u32,
    /// Most tokens of prompt and answer together.
    pub context: u32,
    /// Most rows of a frame, and so the largest chunk of a prompt.
    pub max_rows: usize,
    /// `exact`: rows of every step, at least 2.
    pub fixed_rows: Option<u16>,
    /// Most frames in flight; as many as `stages`, or a few more where hops are slow.
    pub max_in_flight: usize,
    /// How hidden states travel.
    pub hidden: HiddenType,
}

/// A configuration that no line can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line cannot be run: {what} is {value}, allowed are {least} to {most}")]
pub struct HeadConfigError {
    /// The field.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// Smallest value allowed.
    pub least: u64,
    /// Largest value allowed.
    pub most: u64,
}

/// An answer of the line that does not belong to a question.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// It answers a line or epoch that this head has left, or never had.
    #[error("answer of line {line:016x} epoch {epoch}, which is not in force")]
    Stale {
        /// Line of the answer.
        line: u64,
        /// Epoch of the answer.
        epoch: u64,
    },
    /// Answers come in the order of the steps; this one does not.
    #[error("answer to step {got}, due is {due:?}")]
    Step {
        /// Step of the answer.
        got: u64,
        /// Oldest step in flight.
        due: Option<u64>,
    },
    /// It has other samples than the step asked for.
    #[error("answer to step {step} does not have the samples that were asked for")]
    Samples {
        /// Step of the answer.
        step: u64,
    },
}

/// The scheduler of one line.
pub struct Head {
    config: HeadConfig,
    pool: BlockPool,
    waiting: VecDeque<Request>,
    /// By id, which grows: in the order of admission.
    active: BTreeMap<u64, Sequence>,
    next_sequence: u64,
    next_step: u64,
    next_turn: u64,
    in_flight: VecDeque<Flight>,
    /// Sequences that the tail has to forget.
    ended: VecDeque<u64>,
    events: VecDeque<HeadEvent>,
    frame: StepFrame,
    rows: Vec<Row>,
    ready: Vec<(u64, u64)>,
}

impl Head {
    /// A head with nothing to do.
    pub fn new(config: HeadConfig) -> Result<Self, HeadConfigError> {
        let least_rows = u64::from(config.fixed_rows.is_some()) + 1;
        for (what, value, least, most) in [
            ("stages", config.stages as u64, 1, MAX_IN_FLIGHT as u64),
            ("blocks", config.blocks.into(), 1, MAX_FRAME_BLOCKS as u64),
            ("context", config.context.into(), 1, MAX_HISTORY as u64),
            (
                "max_rows",
                config.max_rows as u64,
                least_rows,
                MAX_ROWS as u64,
            ),
            (
                "fixed_rows",
                config.fixed_rows.unwrap_or(2).into(),
                2,
                MAX_FIXED_ROWS.into(),
            ),
            (
                "max_in_flight",
                config.max_in_flight as u64,
                1,
                MAX_IN_FLIGHT as u64,
            ),
        ] {
            if value < least || value > most {
                return Err(HeadConfigError {
                    what,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(Self {
            pool: BlockPool::new(config.blocks),
            config,
            waiting: VecDeque::new(),
            active: BTreeMap::new(),
            next_sequence: 0,
            next_step: 0,
            next_turn: 0,
            in_flight: VecDeque::new(),
            ended: VecDeque::new(),
            events: VecDeque::new(),
            frame: StepFrame::default(),
            rows: Vec::new(),
            ready: Vec::new(),
        })
    }

    /// What the head was set up with; the epoch is the one in force.
    pub fn config(&self) -> &HeadConfig {
        &self.config
    }

    /// Takes a request, or says at once that it can never be served.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        request.sampling.validate()?;
        if self.has(request.id) {
            return Err(SubmitError::Duplicate(request.id));
        }
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let context = self.config.context as usize;
        let prompt = request.prompt.len();
        if prompt > context || (prompt == context && request.max_tokens > 0) {
            return Err(SubmitError::PromptTooLong { prompt, context });
        }
        if request.max_tokens == 0 && !request.collect_logits {
            self.events.push_back(HeadEvent::Finished {
                request: request.id,
                reason: FinishReason::Length,
            });
            return Ok(());
        }
        let needed = self.slots_for(&request);
        let available = self.config.blocks as usize * BLOCK_SLOTS as usize;
        if blocks_for(needed) > self.config.blocks as usize {
            return Err(SubmitError::NeverFits { needed, available });
        }
        if self.waiting.len() >= MAX_QUEUE {
            return Err(SubmitError::QueueFull {
                waiting: self.waiting.len(),
            });
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Ends a request as cancelled; one that is not known is left alone. Its blocks are free once no
    /// frame in flight uses them.
    pub fn cancel(&mut self, request: RequestId) {
        if let Some(index) = self.waiting.iter().position(|one| one.id == request) {
            self.waiting.remove(index);
            self.events.push_back(HeadEvent::Finished {
                request,
                reason: FinishReason::Cancelled,
            });
        } else if let Some(id) = self.sequence_of(request) {
            self.finish(id, FinishReason::Cancelled);
        }
    }

    /// Takes the answer to the oldest step in flight. An error changes nothing.
    pub fn on_sampled(&mut self, answer: &SampledFrame) -> Result<(), ProtocolError> {
        if answer.line != self.config.line || answer.epoch != self.config.epoch {
            return Err(ProtocolError::Stale {
                line: answer.line,
                epoch: answer.epoch,
            });
        }
        let due = self.in_flight.front().map(|flight| flight.step);
        let flight = match self.in_flight.front() {
            Some(flight) if flight.step == answer.step => flight,
            _ => {
                return Err(ProtocolError::Step {
                    got: answer.step,
                    due,
                });
            }
        };
        if !flight.is_answered_by(answer) {
            return Err(ProtocolError::Samples { step: answer.step });
        }
        let Some(flight) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let mut answers = answer.sequences();
        for part in flight.parts {
            let sample = if part.sampled.is_empty() {
                None
            } else {
                answers.next().and_then(|answer| answer.samples().last())
            };
            let Some(sequence) = self.active.get_mut(&part.sequence) else {
                continue;
            };
            sequence.in_flight -= 1;
            let next = if part.continues { sample } else { None };
            let finished = match next {
                Some(sample) => sequence.accept(sample, &mut self.events),
                None => None,
            };
            match finished {
                Some(reason) => self.finish(part.sequence, reason),
                None => self.retire(part.sequence),
            }
        }
        Ok(())
    }

    /// Takes a chunk of logits; chunks arrive before the answer to their step. One that nobody asked
    /// for is dropped.
    pub fn on_logits(&mut self, chunk: &LogitsChunk) -> Result<(), ProtocolError> {
        if chunk.line != self.config.line || chunk.epoch != self.config.epoch {
            return Err(ProtocolError::Stale {
                line: chunk.line,
                epoch: chunk.epoch,
            });
        }
        if let Some(sequence) = self.active.get(&chunk.sequence)
            && sequence.request.collect_logits
            && !sequence.finished
        {
            self.events.push_back(HeadEvent::Logits {
                request: sequence.request.id,
                position: chunk.position,
                vocab: chunk.vocab,
                offset: chunk.offset,
                values: chunk.values.clone(),
            });
        }
        Ok(())
    }

    /// The oldest event that was not taken yet.
    pub fn poll_event(&mut self) -> Option<HeadEvent> {
        self.events.pop_front()
    }

    /// Whether nothing waits, runs or is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.in_flight.is_empty()
    }

    /// Requests that wait for KV cache.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that run, those included that only wait for their last frame.
    pub fn running(&self) -> usize {
        self.active.len()
    }

    /// Frames in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Blocks that sequences hold.
    pub fn blocks_in_use(&self) -> usize {
        self.pool.in_use()
    }

    /// The line failed for good: every request ends with an error, nothing is in flight. Only
    /// [`restart`](Self::restart) makes the head usable again.
    pub fn fail(&mut self) {
        self.in_flight.clear();
        for request in std::mem::take(&mut self.waiting) {
            self.events.push_back(HeadEvent::Finished {
                request: request.id,
                reason: FinishReason::Error,
            });
        }
        self.forget_flights();
        let ids: Vec<u64> = self.active.keys().copied().collect();
        for id in ids {
            self.finish(id, FinishReason::Error);
        }
    }

    /// The line was rebuilt with the same pool: every sequence is computed anew in `epoch`, from the
    /// tokens that the head keeps, and goes on where it was. `epoch` must be later than the last.
    pub fn restart(&mut self, epoch: u64) {
        debug_assert!(epoch > self.config.epoch);
        self.config.epoch = epoch;
        self.next_step = 0;
        self.forget_flights();
        // The tails of the new epoch have never heard of these.
        self.ended.clear();
    }

    fn forget_flights(&mut self) {
        self.in_flight.clear();
        let ids: Vec<u64> = self.active.keys().copied().collect();
        for id in ids {
            if let Some(sequence) = self.active.get_mut(&id) {
                sequence.rewind();
            }
            self.retire(id);
        }
    }

    fn has(&self, request: RequestId) -> bool {
        self.waiting.iter().any(|one| one.id == request) || self.sequence_of(request).is_some()
    }

    /// The sequence of a request that has not finished.
    fn sequence_of(&self, request: RequestId) -> Option<u64> {
        self.active
            .iter()
            .find(|(_, sequence)| sequence.request.id == request && !sequence.finished)
            .map(|(id, _)| *id)
    }

    /// KV slots that a request may come to need.
    fn slots_for(&self, request: &Request) -> usize {
        let prompt = request.prompt.len();
        let answer = request
            .max_tokens
            .min(self.config.context as usize - prompt);
        // The last token is never fed.
        let slots = prompt + answer.saturating_sub(1);
        if self.config.fixed_rows.is_some() {
            slots.max(2)
        } else {
            slots
        }
    }

    fn finish(&mut self, id: u64, reason: FinishReason) {
        if let Some(sequence) = self.active.get_mut(&id)
            && !sequence.finished
        {
            sequence.finished = true;
            self.events.push_back(HeadEvent::Finished {
                request: sequence.request.id,
                reason,
            });
        }
        self.retire(id);
    }

    /// Frees a finished sequence once no frame in flight uses its blocks.
    fn retire(&mut self, id: u64) {
        let done = |sequence: &Sequence| sequence.finished && sequence.in_flight == 0;
        if self.active.get(&id).is_some_and(done)
            && let Some(sequence) = self.active.remove(&id)
        {
            self.pool.close(sequence.table);
            if sequence.begun {
                self.ended.push_back(id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
