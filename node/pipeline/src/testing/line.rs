//! A whole line in simulated time, through encoded bytes.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    ops::Range,
};

use thiserror::Error;

use super::{Mutation, Seeded};
use crate::{
    engine::Engine,
    frame::{
        FrameError, LogitsChunk, MessageKind, Messages, SampledFrame, StepFrame, begin_message,
        decode_fault, end_message,
    },
    head::{FinishReason, Head, HeadEvent, ProtocolError, Request, RequestId, SubmitError},
    runner::StageRunner,
};

/// No run has more events: a line that makes progress needs far fewer.
const MAX_EVENTS: usize = 200_000;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One stage as the line sees it: a message in, messages out, each with its header.
///
/// A worker process implements it by writing to its pipe and reading up to the step, the samples or
/// the fault that ends its answer.
pub trait Link {
    /// Delivers one message and appends what the stage answers to `replies`.
    fn deliver(&mut self, message: &[u8], replies: &mut Vec<u8>) -> Result<(), BoxError>;
}

impl<E: Engine> Link for StageRunner<E> {
    fn deliver(&mut self, message: &[u8], replies: &mut Vec<u8>) -> Result<(), BoxError> {
        for message in Messages::new(message) {
            let (kind, payload, _) = message?;
            if kind != MessageKind::Step {
                return Err("a stage takes steps only".into());
            }
            self.step(payload, replies)?;
        }
        Ok(())
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn deliver(&mut self, message: &[u8], replies: &mut Vec<u8>) -> Result<(), BoxError> {
        (**self).deliver(message, replies)
    }
}

/// How long things take, in simulated ticks; each time is drawn anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Seed of the draws.
    pub seed: u64,
    /// A step of a stage.
    pub service: Range<u64>,
    /// A hop, in order: a message never overtakes another.
    pub delay: Range<u64>,
}

/// What happens from outside, at which tick.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Requests.
    pub arrivals: Vec<(u64, Request)>,
    /// Cancels.
    pub cancels: Vec<(u64, RequestId)>,
    /// The line loses what is in flight and starts a new epoch on the same stages.
    pub restarts: Vec<u64>,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
    /// Logits by position, where asked for.
    pub logits: BTreeMap<u32, Vec<f32>>,
    /// Tick of each token.
    pub times: Vec<u64>,
    /// Why it ended; `None` while it has not.
    pub reason: Option<FinishReason>,
    /// Why it was not taken.
    pub refused: Option<SubmitError>,
}

/// A frame that the head sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When.
    pub time: u64,
    /// Sequence and number of rows, in order.
    pub sequences: Vec<(u64, usize)>,
    /// Frames in flight, this one included.
    pub in_flight: usize,
}

/// What a run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By request.
    pub answers: BTreeMap<RequestId, Answer>,
    /// Every frame.
    pub sent: Vec<Sent>,
    /// Tick of the last event.
    pub finished_at: u64,
    /// Whether a mutation was asked for and made.
    pub mutated: bool,
}

impl Outcome {
    /// Tokens by request: what two runs are compared by.
    pub fn tokens(&self) -> BTreeMap<RequestId, Vec<u32>> {
        let answers = self.answers.iter();
        answers
            .map(|(id, answer)| (*id, answer.tokens.clone()))
            .collect()
    }
}

/// Why a line stopped.
#[derive(Debug, Error)]
pub enum LineError {
    /// A stage refused a frame or failed.
    #[error("stage {stage}: {source}")]
    Stage {
        /// Which, from 0.
        stage: usize,
        /// Why.
        source: BoxError,
    },
    /// The head refused an answer.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A message that does not decode.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Nothing happens any more and requests are left, or far too much happens.
    #[error("line stalled after {0} events")]
    Stalled(usize),
}

/// A head and its stages.
pub struct SimulatedLine<L> {
    head: Head,
    links: Vec<L>,
    timing: Timing,
    draws: Seeded,
    mutation: Option<(Mutation, usize, u64)>,
    now: u64,
    order: u64,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    /// When the last message on each hop arrives; hop `i` leads to stage `i`, the last to the head.
    arrived: Vec<u64>,
    /// When each stage has worked off what it got.
    busy_until: Vec<u64>,
    outcome: Outcome,
}

enum Event {
    Submit(Request),
    Cancel(RequestId),
    Restart,
    Message { hop: usize, bytes: Vec<u8> },
}

impl<L: Link> SimulatedLine<L> {
    /// A line that has not started.
    pub fn new(head: Head, links: Vec<L>, timing: Timing) -> Self {
        Self {
            head,
            draws: Seeded(timing.seed),
            timing,
            mutation: None,
            now: 0,
            order: 0,
            agenda: BinaryHeap::new(),
            events: BTreeMap::new(),
            arrived: vec![0; links.len() + 1],
            busy_until: vec![0; links.len()],
            links,
            outcome: Outcome::default(),
        }
    }

    /// Makes a mistake once on the way to stage `hop`, in the first step from `from_step` on where it
    /// can be made.
    pub fn with_mutation(mut self, mutation: Mutation, hop: usize, from_step: u64) -> Self {
        self.mutation = Some((mutation, hop, from_step));
        self
    }

    /// The head, to look at afterwards.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The stages, to look at afterwards.
    pub fn links(&self) -> &[L] {
        &self.links
    }

    /// Plays `script` until the head is idle and nothing is left to happen.
    pub fn run(&mut self, script: Script) -> Result<Outcome, LineError> {
        for (time, request) in script.arrivals {
            self.schedule(time, Event::Submit(request));
        }
        for (time, id) in script.cancels {
            self.schedule(time, Event::Cancel(id));
        }
        for time in script.restarts {
            self.schedule(time, Event::Restart);
        }
        for count in 0..MAX_EVENTS {
            let Some(Reverse((time, order))) = self.agenda.pop() else {
                self.outcome.finished_at = self.now;
                return if self.head.is_idle() {
                    Ok(std::mem::take(&mut self.outcome))
                } else {
                    Err(LineError::Stalled(count))
                };
            };
            // A restart takes messages off the line but leaves their places in the agenda.
            let Some(event) = self.events.remove(&order) else {
                continue;
            };
            self.now = time;
            self.handle(event)?;
            self.send_frames()?;
            self.collect_events();
        }
        Err(LineError::Stalled(MAX_EVENTS))
    }

    fn handle(&mut self, event: Event) -> Result<(), LineError> {
        match event {
            Event::Submit(request) => {
                let id = request.id;
                let answer = self.outcome.answers.entry(id).or_default();
                answer.refused = self.head.submit(request).err();
            }
            Event::Cancel(id) => self.head.cancel(id),
            Event::Restart => {
                self.events
                    .retain(|_, event| !matches!(event, Event::Message { .. }));
                self.head.restart(self.head.config().epoch + 1);
            }
            Event::Message { hop, bytes } if hop == self.links.len() => self.answer(&bytes)?,
            Event::Message { hop, bytes } => self.step(hop, bytes)?,
        }
        Ok(())
    }

    fn step(&mut self, stage: usize, mut bytes: Vec<u8>) -> Result<(), LineError> {
        self.mutate(stage, &mut bytes)?;
        let mut replies = Vec::new();
        let delivered = self.links[stage].deliver(&bytes, &mut replies);
        delivered.map_err(|source| LineError::Stage { stage, source })?;
        let service = self.draws.within(self.timing.service.clone());
        let done = self.now.max(self.busy_until[stage]) + service;
        self.busy_until[stage] = done;
        for message in Messages::new(&replies) {
            let (kind, _, whole) = message?;
            let hop = if kind == MessageKind::Step {
                stage + 1
            } else {
                self.links.len()
            };
            self.transmit(done, hop, whole.to_vec());
        }
        Ok(())
    }

    fn answer(&mut self, bytes: &[u8]) -> Result<(), LineError> {
        for message in Messages::new(bytes) {
            let (kind, payload, _) = message?;
            match kind {
                MessageKind::Sampled => {
                    let mut sampled = SampledFrame::default();
                    sampled.decode(payload)?;
                    self.head.on_sampled(&sampled)?;
                }
                MessageKind::Logits => {
                    let mut chunk = LogitsChunk::default();
                    chunk.decode(payload)?;
                    self.head.on_logits(&chunk)?;
                }
                _ => {
                    return Err(LineError::Stage {
                        stage: self.links.len() - 1,
                        source: decode_fault(payload).into(),
                    });
                }
            }
        }
        Ok(())
    }

    fn send_frames(&mut self) -> Result<(), LineError> {
        loop {
            let in_flight = self.head.in_flight() + 1;
            let Some(frame) = self.head.next_frame() else {
                return Ok(());
            };
            let mut bytes = Vec::new();
            let start = begin_message(&mut bytes, MessageKind::Step);
            frame.encode(&mut bytes);
            end_message(&mut bytes, start)?;
            let parts = frame.sequences().filter(|part| !part.rows.is_empty());
            self.outcome.sent.push(Sent {
                time: self.now,
                sequences: parts.map(|part| (part.sequence, part.rows.len())).collect(),
                in_flight,
            });
            self.transmit(self.now, 0, bytes);
        }
    }

    fn collect_events(&mut self) {
        while let Some(event) = self.head.poll_event() {
            let answers = &mut self.outcome.answers;
            match event {
                HeadEvent::Token {
                    request,
                    index,
                    token,
                    logprob,
                    ..
                } => {
                    let answer = answers.entry(request).or_default();
                    assert_eq!(index, answer.tokens.len(), "a repeat or a gap");
                    assert_eq!(answer.reason, None, "a token after the end");
                    answer.tokens.push(token);
                    answer.logprobs.push(logprob);
                    answer.times.push(self.now);
                }
                HeadEvent::Logits {
                    request,
                    position,
                    offset,
                    values,
                    ..
                } => {
                    let answer = answers.entry(request).or_default();
                    assert_eq!(answer.reason, None, "logits after the end");
                    let row = answer.logits.entry(position).or_default();
                    row.truncate(offset as usize);
                    row.extend(values);
                }
                HeadEvent::Finished { request, reason } => {
                    let answer = answers.entry(request).or_default();
                    assert_eq!(answer.reason, None, "a second end");
                    answer.reason = Some(reason);
                }
            }
        }
    }

    fn transmit(&mut self, from: u64, hop: usize, bytes: Vec<u8>) {
        let delay = self.draws.within(self.timing.delay.clone());
        let arrival = (from + delay).max(self.arrived[hop]);
        self.arrived[hop] = arrival;
        self.schedule(arrival, Event::Message { hop, bytes });
    }

    fn schedule(&mut self, time: u64, event: Event) {
        self.agenda.push(Reverse((time, self.order)));
        self.events.insert(self.order, event);
        self.order += 1;
    }

    fn mutate(&mut self, stage: usize, bytes: &mut Vec<u8>) -> Result<(), LineError> {
        let Some((mutation, hop, from_step)) = self.mutation else {
            return Ok(());
        };
        let Some(Ok((MessageKind::Step, payload, _))) = Messages::new(bytes).next() else {
            return Ok(());
        };
        let mut frame = StepFrame::default();
        let hidden = frame.decode(payload)?;
        if hop != stage || frame.step < from_step || self.outcome.mutated {
            return Ok(());
        }
        if mutation.apply_to_frame(&mut frame, self.head.config().blocks)? {
            let mut changed = Vec::new();
            let start = begin_message(&mut changed, MessageKind::Step);
            frame.encode_tables(frame.hidden_width(), &mut changed);
            changed.extend_from_slice(&payload[hidden]);
            end_message(&mut changed, start)?;
            *bytes = changed;
            self.outcome.mutated = true;
        }
        Ok(())
    }
}
