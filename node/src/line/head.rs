//! The loop that feeds requests through a line: it owns the one `pipeline::Head` and all waiting.
//!
//! Everything that can happen (a request, a cancel, an answer of the tail, the loss of a stage) is awaited in one
//! place and applied in another, so that the state machine sees one thing at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use skein_pipeline::frame::{
    HiddenType, LogitsChunk, MessageKind, SampledFrame, begin_message, decode_fault, end_message,
};
use skein_pipeline::{FinishReason, Head, HeadConfig, HeadEvent, Request, RequestId, SubmitError};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot, watch};

use super::build::{self, BuiltLine, Order, Pulses};
use super::messages::StageReport;
use super::relay::receive_answer;
use crate::host;
use crate::wire::kind;

/// Most rows of one frame: a prompt chunk that delays the decoding of others by a bounded time.
const MAX_ROWS: usize = 256;
/// Most stages of a line; each more is one more machine that can leave.
pub const MAX_STAGES: usize = skein_pipeline::head::MAX_IN_FLIGHT;
/// Rows of every step in `exact`.
const EXACT_ROWS: u16 = 8;
/// Commands that wait while the loop writes a frame.
const COMMANDS: usize = 64;
/// Answers of the tail that wait; more are never in flight.
const ANSWERS: usize = 64;
/// A line that nobody asks gives its machines back after this time.
const IDLE: Duration = Duration::from_secs(600);
/// Events beside the tokens of an answer.
const EVENT_ROOM: usize = 16;

/// What happens to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestEvent {
    Token {
        token: u32,
    },
    Logits {
        position: u32,
        vocab: u32,
        offset: u32,
        values: Vec<f32>,
    },
    /// The last event; `message` says which machine left, and why, where a failure ended it.
    Finished {
        reason: FinishReason,
        message: Option<String>,
    },
}

/// How far a line is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineState {
    Serving,
    /// Over, with the reason in words.
    Ended(String),
}

/// A running line. Cloning is cheap; the line ends when told to, when it loses a stage, or when it is idle.
#[derive(Clone)]
pub struct LineHandle {
    pub line: u64,
    pub epoch: u64,
    pub order: Arc<Order>,
    pub reports: Arc<Vec<StageReport>>,
    pub pulses: Pulses,
    pub state: watch::Receiver<LineState>,
    requests: Arc<AtomicUsize>,
    next_request: Arc<AtomicUsize>,
    commands: mpsc::Sender<Command>,
}

enum Command {
    Submit {
        request: Request,
        events: mpsc::Sender<RequestEvent>,
        taken: oneshot::Sender<Result<(), SubmitError>>,
    },
    Cancel(RequestId),
    Close(String),
}

/// A request in a line; dropping it cancels what is left of it.
pub struct Ticket {
    id: RequestId,
    commands: mpsc::Sender<Command>,
    events: mpsc::Receiver<RequestEvent>,
    finished: bool,
}

/// Why a line did not take a request.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("the line has ended: {0}")]
    Ended(String),
}

/// Starts the loop of a line that was built.
pub fn start(built: BuiltLine) -> LineHandle {
    let BuiltLine {
        line,
        epoch,
        order,
        reports,
        to_first,
        from_tail,
        controls,
    } = built;
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let (state_sender, state) = watch::channel(LineState::Serving);
    let pulses: Pulses = Arc::default();
    let requests = Arc::new(AtomicUsize::new(0));
    let config = HeadConfig {
        line,
        epoch,
        stages: order.stages.len(),
        blocks: order.blocks,
        context: order.context,
        max_rows: if order.exact {
            EXACT_ROWS as usize
        } else {
            MAX_ROWS
        },
        fixed_rows: order.exact.then_some(EXACT_ROWS),
        max_in_flight: (order.stages.len() + 1).min(MAX_STAGES),
        hidden: match (order.stages.len(), order.exact) {
            (1, _) => HiddenType::None,
            (_, true) => HiddenType::F32,
            (_, false) => HiddenType::BF16,
        },
    };
    let handle = LineHandle {
        line,
        epoch,
        order: Arc::new(order),
        reports: Arc::new(reports),
        pulses: pulses.clone(),
        state,
        requests: requests.clone(),
        next_request: Arc::default(),
        commands,
    };
    let names: Vec<String> = handle
        .order
        .stages
        .iter()
        .map(|stage| stage.name.clone())
        .collect();
    tokio::spawn(async move {
        let lost = build::watch(controls, pulses);
        let reason = match Head::new(config) {
            Ok(head) => {
                Driver {
                    head,
                    requests,
                    clients: BTreeMap::new(),
                    sent: host::reports_steps().then(BTreeMap::new),
                }
                .run(inbox, to_first, from_tail, lost, &names)
                .await
            }
            Err(error) => error.to_string(),
        };
        tracing::info!("line {line:016x} ended: {reason}");
        let _ = state_sender.send(LineState::Ended(reason));
    });
    handle
}

impl LineHandle {
    /// Requests that wait or run.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether requests are taken.
    pub fn is_serving(&self) -> bool {
        *self.state.borrow() == LineState::Serving
    }

    /// Submits a request; `request.id` is chosen here.
    pub async fn submit(&self, mut request: Request) -> Result<Ticket, TakeError> {
        let id = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed) as u64);
        request.id = id;
        let rows = if request.collect_logits {
            request.prompt.len() * LOGITS_CHUNKS
        } else {
            0
        };
        let answer = request.max_tokens.min(self.order.context as usize);
        let (sender, events) = mpsc::channel(answer + rows + EVENT_ROOM);
        let (taken, answer) = oneshot::channel();
        let command = Command::Submit {
            request,
            events: sender,
            taken,
        };
        let ended = || match &*self.state.borrow() {
            LineState::Ended(reason) => TakeError::Ended(reason.clone()),
            LineState::Serving => TakeError::Ended("its loop stopped".into()),
        };
        self.commands.send(command).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())??;
        Ok(Ticket {
            id,
            commands: self.commands.clone(),
            events,
            finished: false,
        })
    }

    /// Ends the line; requests in it end with an error that gives `reason`.
    pub async fn close(&self, reason: &str) {
        let _ = self.commands.send(Command::Close(reason.to_owned())).await;
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| *state != LineState::Serving).await;
    }
}

/// Chunks of one row of logits at most: the largest vocabulary over the chunk's size.
const LOGITS_CHUNKS: usize = 18;

impl Ticket {
    /// The next event; `None` after `Finished`.
    pub async fn next(&mut self) -> Option<RequestEvent> {
        if self.finished {
            return None;
        }
        let event = self.events.recv().await.unwrap_or(RequestEvent::Finished {
            reason: FinishReason::Error,
            message: Some("the line ended".into()),
        });
        self.finished = matches!(event, RequestEvent::Finished { .. });
        Some(event)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(command)) =
            self.commands.try_send(Command::Cancel(self.id))
        {
            // The loop is busy writing: it must still learn of it.
            let commands = self.commands.clone();
            tokio::spawn(async move { commands.send(command).await });
        }
    }
}

struct Driver {
    head: Head,
    requests: Arc<AtomicUsize>,
    clients: BTreeMap<RequestId, mpsc::Sender<RequestEvent>>,
    /// When each frame that is under way was begun, where somebody reads step times; no more than are in flight.
    sent: Option<BTreeMap<u64, Instant>>,
}

impl Driver {
    /// Runs until the line is over and says why.
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
        mut to_first: super::hops::BoxIo,
        from_tail: super::hops::BoxIo,
        lost: impl Future<Output = (usize, String, String)>,
        names: &[String],
    ) -> String {
        let mut answers = read_answers(from_tail);
        let mut out = Vec::new();
        let mut sampled = SampledFrame::default();
        let mut chunk = LogitsChunk::default();
        tokio::pin!(lost);
        let reason = loop {
            self.dispatch();
            if let Err(error) = self.send_frames(&mut to_first, &mut out).await {
                // The stage itself usually says why a moment later.
                let explained = tokio::time::timeout(Duration::from_millis(500), &mut lost).await;
                break match explained {
                    Ok((_, name, reason)) => format!("{name} left the line: {reason}"),
                    Err(_) => format!("{} cannot be reached: {error}", names[0]),
                };
            }
            self.dispatch();
            let idle = self.head.is_idle() && self.clients.is_empty();
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(Command::Submit { request, events, taken }) => self.take(request, events, taken),
                    Some(Command::Cancel(id)) => {
                        self.clients.remove(&id);
                        self.head.cancel(id);
                    }
                    Some(Command::Close(reason)) => break reason,
                    None => break "nobody needs it any more".to_owned(),
                },
                answer = answers.recv() => match answer {
                    Some((kind::SAMPLED, payload)) => {
                        let outcome = sampled.decode(&payload).map_err(|error| error.to_string()).and_then(|()| {
                            self.report_return(sampled.step);
                            self.head.on_sampled(&sampled).map_err(|error| error.to_string())
                        });
                        if let Err(error) = outcome {
                            break format!("the tail answered out of turn: {error}");
                        }
                    }
                    Some((kind::LOGITS, payload)) => {
                        let outcome = chunk.decode(&payload).map_err(|error| error.to_string()).and_then(|()| {
                            self.head.on_logits(&chunk).map_err(|error| error.to_string())
                        });
                        if let Err(error) = outcome {
                            break format!("the tail sent logits out of turn: {error}");
                        }
                    }
                    Some((kind::FAULT, payload)) => break decode_fault(&payload),
                    Some((other, _)) => break format!("the tail sent a message of kind {other}"),
                    None => {
                        let explained = tokio::time::timeout(Duration::from_millis(1000), &mut lost).await;
                        break match explained {
                            Ok((_, name, reason)) => format!("{name} left the line: {reason}"),
                            Err(_) => format!("{} closed its hop to the head", names[names.len() - 1]),
                        };
                    }
                },
                (_, name, reason) = &mut lost => break format!("{name} left the line: {reason}"),
                () = tokio::time::sleep(IDLE), if idle => break "nobody asked it for a while".to_owned(),
            }
        };
        self.head.fail();
        self.finish_all(&reason);
        reason
    }

    fn take(
        &mut self,
        request: Request,
        events: mpsc::Sender<RequestEvent>,
        taken: oneshot::Sender<Result<(), SubmitError>>,
    ) {
        let id = request.id;
        let outcome = self.head.submit(request);
        if outcome.is_ok() {
            self.clients.insert(id, events);
        }
        if taken.send(outcome).is_err() {
            self.clients.remove(&id);
            self.head.cancel(id);
        }
        self.count();
    }

    /// Hands the head's events to their clients; one that is gone is cancelled.
    fn dispatch(&mut self) {
        while let Some(event) = self.head.poll_event() {
            let (id, event) = match event {
                HeadEvent::Token { request, token, .. } => (request, RequestEvent::Token { token }),
                HeadEvent::Logits {
                    request,
                    position,
                    vocab,
                    offset,
                    values,
                } => (
                    request,
                    RequestEvent::Logits {
                        position,
                        vocab,
                        offset,
                        values,
                    },
                ),
                HeadEvent::Finished { request, reason } => (
                    request,
                    RequestEvent::Finished {
                        reason,
                        message: None,
                    },
                ),
            };
            let last = matches!(event, RequestEvent::Finished { .. });
            let gone = self
                .clients
                .get(&id)
                .is_none_or(|client| client.try_send(event).is_err());
            if last {
                self.clients.remove(&id);
            } else if gone {
                self.clients.remove(&id);
                self.head.cancel(id);
            }
        }
        self.count();
    }

    fn finish_all(&mut self, reason: &str) {
        while self.head.poll_event().is_some() {}
        for client in std::mem::take(&mut self.clients).into_values() {
            let _ = client.try_send(RequestEvent::Finished {
                reason: FinishReason::Error,
                message: Some(reason.to_owned()),
            });
        }
        self.count();
    }

    async fn send_frames(
        &mut self,
        to_first: &mut super::hops::BoxIo,
        out: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        while let Some(frame) = self.head.next_frame() {
            if let Some(sent) = &mut self.sent {
                sent.insert(frame.step, Instant::now());
            }
            out.clear();
            let start = begin_message(out, MessageKind::Step);
            frame.encode(out);
            end_message(out, start).map_err(std::io::Error::other)?;
            to_first.write_all(out).await?;
            to_first.flush().await?;
        }
        Ok(())
    }

    fn report_return(&mut self, step: u64) {
        let begun = self.sent.as_mut().and_then(|sent| sent.remove(&step));
        if let Some(begun) = begun {
            let us = begun.elapsed().as_micros();
            tracing::trace!(target: "skein::steps", "step {step} returned after {us} us");
        }
    }

    fn count(&self) {
        self.requests.store(self.clients.len(), Ordering::Relaxed);
    }
}

/// Reading an answer must not be interrupted half-way, so it has a task of its own.
fn read_answers(mut from_tail: super::hops::BoxIo) -> mpsc::Receiver<(u8, Vec<u8>)> {
    let (sender, answers) = mpsc::channel(ANSWERS);
    tokio::spawn(async move {
        loop {
            let mut payload = Vec::new();
            let Ok(kind) = receive_answer(&mut from_tail, &mut payload).await else {
                break;
            };
            if sender.send((kind, payload)).await.is_err() {
                break;
            }
        }
    });
    answers
}

/// The lines whose head is this machine, by id.
pub type Lines = Arc<Mutex<BTreeMap<u64, LineHandle>>>;
