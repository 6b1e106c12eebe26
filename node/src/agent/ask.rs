//! A request from the prompt to the last character: model, tokens, line, text.
//!
//! The text stays here; what leaves this machine are token ids, to the head and on to the first stage.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use skein_pipeline::{FinishReason, Request, RequestId, Sampling, Utf8Assembler};
use skein_shards::manifest::Manifest;
use skein_shards::tokenizer::{Message, Tokenizer};
use tokio::sync::mpsc;

use super::lines::{self, Found, Want};
use super::{Agent, content, remote};
use crate::control::{AskRequest, Event, EventSink, LogitsRequest, LogitsSummary, Prompt};
use crate::error::{Code, Error, Result};
use crate::line::head::{LineHandle, RequestEvent, TakeError};
use crate::objects::{self, Numerics};

/// A plan is made again with fresh adverts when a peer refuses, this often.
const ATTEMPTS: usize = 3;
/// A refusal changes what the peer advertises; that takes a moment to arrive.
const ADVERTS_ARRIVE: std::time::Duration = std::time::Duration::from_millis(900);
/// Machines that are still starting are waited for this long where the model does not fit without them.
const STARTING: std::time::Duration = std::time::Duration::from_secs(120);
/// How often they are looked at meanwhile.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(250);
/// The stages of a line that ended give their memory back, and their machines say so, within this time.
const MEMORY_RETURNS: std::time::Duration = std::time::Duration::from_secs(6);
/// Steps of an answer that wait for the one who reads them.
const STEPS: usize = 256;

/// What a line is given to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    pub max_tokens: u32,
    pub stop_ids: Vec<u32>,
    pub collect_logits: bool,
}

/// What comes back, wherever the head is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Step {
    Line {
        epoch: u64,
        stages: Vec<objects::Stage>,
    },
    Token(u32),
    Logits {
        position: u32,
        vocab: u32,
        offset: u32,
        values: Vec<f32>,
    },
    Finished {
        reason: objects::FinishReason,
        message: Option<String>,
        stages: Vec<objects::Stage>,
    },
}

/// Answers a prompt.
pub async fn ask(shared: &Agent, request: AskRequest, events: EventSink) -> Result<objects::Ask> {
    let begun = Instant::now();
    let model = content::resolve(shared, &request.model)?;
    let manifest = content::manifest(shared, model, &[])
        .await
        .map_err(Error::failed)?;
    let tokenizer = content::tokenizer(shared, model).await?;
    let prompt = encode(&tokenizer, &request.prompt, &manifest)?;
    let context = lines::context_of(&manifest, request.ctx)?;
    if prompt.len() >= context as usize && request.max_tokens > 0 {
        return Err(Error::bad_input(format_args!(
            "the prompt has {} tokens, which leaves no room in a context of {context}",
            prompt.len()
        ))
        .hint("shorten the prompt or give a larger --ctx"));
    }
    // Below 2^53, so that every JSON reader gives it back as it is.
    let seed = request.seed.unwrap_or_else(|| super::random_id() >> 11);
    let want = Want {
        model,
        nodes: request.nodes,
        context,
        exact: request.numerics == Numerics::Exact,
        logits: false,
    };
    let prompt_tokens = prompt.len() as u32;
    let job = Job {
        prompt,
        sampling: Sampling {
            seed,
            temperature: request.temperature,
            ..Sampling::default()
        },
        max_tokens: request.max_tokens,
        stop_ids: if request.ignore_eos {
            Vec::new()
        } else {
            manifest.stop_ids.clone()
        },
        collect_logits: false,
    };

    let mut steps = route(shared, want, job, &events);
    let mut answer = Answer::new(&tokenizer);
    let (mut epoch, mut pipeline) = (0, Vec::new());
    let (finish_reason, message) = loop {
        let step = tokio::select! {
            step = steps.recv() => step.unwrap_or_else(|| Err(Error::failed("the line ended"))),
            () = events.closed() => return Err(Error::interrupted()),
        };
        match step? {
            Step::Line { epoch: of, stages } => {
                (epoch, pipeline) = (of, stages.clone());
                events.send(Event::Line { epoch, stages }).await?;
            }
            Step::Token(token) => {
                if let Some((text, tokens)) = answer.push(token) {
                    events.send(Event::Text { text, tokens }).await?;
                }
            }
            Step::Logits { .. } => {}
            Step::Finished {
                reason,
                message,
                stages,
            } => {
                if !stages.is_empty() {
                    pipeline = stages;
                }
                break (reason, message);
            }
        }
    };
    if let Some((text, tokens)) = answer.flush() {
        events.send(Event::Text { text, tokens }).await?;
    }
    let Answer {
        text,
        tokens,
        first,
        last,
        ..
    } = answer;
    let span = first
        .zip(last)
        .map(|(first, last): (Instant, Instant)| (last - first).as_secs_f64());
    Ok(objects::Ask {
        model: model.to_string(),
        text,
        prompt_tokens,
        finish_reason,
        message,
        numerics: request.numerics,
        epoch,
        ttft_ms: first.map(|first| (first - begun).as_secs_f64() * 1e3),
        tokens_per_s: span
            .filter(|span| *span > 0.0 && tokens.len() > 1)
            .map(|span| (tokens.len() - 1) as f64 / span),
        tokens,
        seed,
        pipeline,
    })
}

/// The logits of every position of `request.ids`, row by row.
pub async fn logits(
    shared: &Agent,
    request: LogitsRequest,
    events: EventSink,
) -> Result<LogitsSummary> {
    let model = content::resolve(shared, &request.model)?;
    let manifest = content::manifest(shared, model, &[])
        .await
        .map_err(Error::failed)?;
    if let Some(bad) = request.ids.iter().find(|id| **id >= manifest.vocab) {
        return Err(bad_id(*bad, manifest.vocab));
    }
    if request.ids.is_empty() {
        return Err(Error::bad_input("there are no token ids").hint("give some with --ids 1,2,3"));
    }
    let context = lines::context_of(&manifest, None)?;
    if request.ids.len() > context as usize {
        return Err(Error::bad_input(format_args!(
            "{} ids do not fit a context of {context}",
            request.ids.len()
        )));
    }
    let want = Want {
        model,
        nodes: request.nodes,
        context,
        exact: request.numerics == Numerics::Exact,
        logits: true,
    };
    let job = Job {
        prompt: request.ids.clone(),
        sampling: Sampling::default(),
        max_tokens: 0,
        stop_ids: Vec::new(),
        collect_logits: true,
    };
    let mut steps = route(shared, want, job, &events);
    let vocab = manifest.vocab as usize;
    let (mut row, mut values, mut pipeline) = (0u32, Vec::with_capacity(vocab), Vec::new());
    loop {
        let step = tokio::select! {
            step = steps.recv() => step.unwrap_or_else(|| Err(Error::failed("the line ended"))),
            () = events.closed() => return Err(Error::interrupted()),
        };
        match step? {
            Step::Line { stages, .. } => pipeline = stages,
            Step::Token(_) => {}
            Step::Logits {
                position,
                offset,
                values: part,
                ..
            } => {
                // `exact` feeds a token again where a step needs two rows; its logits were sent before.
                if position < row {
                    continue;
                }
                if position != row
                    || offset as usize != values.len()
                    || values.len() + part.len() > vocab
                {
                    return Err(Error::failed(format_args!(
                        "logits of position {position} came out of order"
                    )));
                }
                values.extend_from_slice(&part);
                if values.len() == vocab {
                    events.logits(row, &values).await?;
                    values.clear();
                    row += 1;
                }
            }
            Step::Finished {
                reason: objects::FinishReason::Error,
                message,
                ..
            } => {
                return Err(Error::failed(
                    message.unwrap_or_else(|| "the line failed".into()),
                ));
            }
            Step::Finished { stages, .. } => {
                if !stages.is_empty() {
                    pipeline = stages;
                }
                break;
            }
        }
    }
    Ok(LogitsSummary {
        model: model.to_string(),
        rows: row,
        vocab: manifest.vocab,
        numerics: request.numerics,
        pipeline,
    })
}

/// Finds, plans or builds a line and runs the job in it, here or at the member that heads it. Dropping the receiver
/// cancels.
fn route(shared: &Agent, want: Want, job: Job, events: &EventSink) -> mpsc::Receiver<Result<Step>> {
    let (sender, steps) = mpsc::channel(STEPS);
    let (shared, events) = (shared.clone(), events.clone());
    tokio::spawn(async move {
        let work = route_and_run(&shared, &want, &job, &events, &sender);
        tokio::select! {
            outcome = work => if let Err(error) = outcome {
                let _ = sender.send(Err(error)).await;
            },
            () = sender.closed() => {}
        }
    });
    steps
}

async fn route_and_run(
    shared: &Agent,
    want: &Want,
    job: &Job,
    events: &EventSink,
    steps: &mpsc::Sender<Result<Step>>,
) -> Result<()> {
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(ADVERTS_ARRIVE).await;
        }
        let (head, stages) = match lines::find(shared, want) {
            Found::Here(line) => return run(line, job, steps).await,
            Found::There(peer) => (peer, None),
            Found::Nowhere => {
                let manifest = content::manifest(shared, want.model, &[])
                    .await
                    .map_err(Error::failed)?;
                match plan_when_started(shared, want, &manifest, events).await {
                    Ok(plan) => (plan.stages[0].peer.clone(), Some(lines::ordered(&plan))),
                    Err(error)
                        if error.code == Code::DoesNotFit && lines::release_idle(shared).await =>
                    {
                        let _ = events.note("gave an idle line's memory back");
                        last = Some(error);
                        continue;
                    }
                    Err(error) => {
                        return Err(last
                            .filter(|last: &Error| last.code == Code::Refused)
                            .unwrap_or(error));
                    }
                }
            }
        };
        let outcome = if head == shared.peer {
            match lines::here(shared, want, stages, events).await {
                Ok(line) => return run(line, job, steps).await,
                Err(error) => Err(error),
            }
        } else {
            remote::ask(shared, &head, want, stages, job, events, steps).await
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.code, Code::BadInput | Code::Interrupted) => {
                return Err(error);
            }
            // An owner's word does not change by asking again.
            Err(error) if error.code == Code::Refused && want.logits => {
                return Err(
                    error.hint("the machine with the last stage must run with --allow-logits")
                );
            }
            Err(error) => {
                let _ = events.note(error.message.clone());
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| Error::failed("no line could be built")))
}

/// Plans a line. Where there is none, machines that are just starting, this one above all, are given time, and so are
/// stages of a line that ended to give their memory back.
async fn plan_when_started(
    shared: &Agent,
    want: &Want,
    manifest: &Manifest,
    events: &EventSink,
) -> Result<skein_planner::Plan> {
    let begun = tokio::time::Instant::now();
    let mut told = false;
    loop {
        let starting = lines::starting(shared);
        let error = match lines::plan(shared, want, manifest) {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        let waited = begun.elapsed();
        let starts = !starting.is_empty() && waited < STARTING;
        let returns = waited < MEMORY_RETURNS && lines::memory_returns(shared);
        if error.code != Code::DoesNotFit || !(starts || returns) {
            return Err(error);
        }
        if starts && !told {
            let _ = events.note(format!(
                "waiting for {}, still starting",
                starting.join(", ")
            ));
            told = true;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Runs a job in a line that this machine heads.
pub async fn run(line: LineHandle, job: &Job, steps: &mpsc::Sender<Result<Step>>) -> Result<()> {
    let mut ticket = line
        .submit(Request {
            id: RequestId(0),
            prompt: job.prompt.clone(),
            sampling: job.sampling,
            max_tokens: job.max_tokens as usize,
            stop_ids: job.stop_ids.clone(),
            collect_logits: job.collect_logits,
        })
        .await
        .map_err(|error| match error {
            TakeError::Submit(error) => Error::bad_input(error),
            TakeError::Ended(_) => Error::failed(error),
        })?;
    let gone = || Error::interrupted();
    steps
        .send(Ok(Step::Line {
            epoch: line.epoch,
            stages: lines::stages_of(&line),
        }))
        .await
        .map_err(|_| gone())?;
    while let Some(event) = ticket.next().await {
        let step = match event {
            RequestEvent::Token { token } => Step::Token(token),
            RequestEvent::Logits {
                position,
                vocab,
                offset,
                values,
            } => Step::Logits {
                position,
                vocab,
                offset,
                values,
            },
            RequestEvent::Finished { reason, message } => Step::Finished {
                reason: match reason {
                    FinishReason::Stop => objects::FinishReason::Stop,
                    FinishReason::Length => objects::FinishReason::Length,
                    FinishReason::Cancelled => objects::FinishReason::Cancelled,
                    FinishReason::Error => objects::FinishReason::Error,
                },
                message,
                stages: lines::stages_of(&line),
            },
        };
        steps.send(Ok(step)).await.map_err(|_| gone())?;
    }
    Ok(())
}

/// The prompt's tokens. Nothing that a person typed becomes a control token.
fn encode(tokenizer: &Tokenizer, prompt: &Prompt, manifest: &Manifest) -> Result<Vec<u32>> {
    let vocab = manifest.vocab;
    let ids = match prompt {
        Prompt::Chat { system, text } => {
            let mut messages = Vec::new();
            if let Some(system) = system {
                messages.push(Message {
                    role: "system".into(),
                    content: system.clone(),
                });
            }
            messages.push(Message {
                role: "user".into(),
                content: text.clone(),
            });
            tokenizer.encode_chat(&messages, true).map_err(|error| {
                Error::bad_input(format_args!("the model's chat template failed: {error}"))
                    .hint("use --raw to continue the text as it stands")
            })?
        }
        Prompt::Raw { text } => {
            let begin = manifest.bos_id.filter(|_| manifest.add_bos);
            begin
                .into_iter()
                .chain(tokenizer.encode(text, false))
                .collect()
        }
        Prompt::Ids { ids } => {
            if let Some(bad) = ids.iter().find(|id| **id >= vocab) {
                return Err(bad_id(*bad, vocab));
            }
            ids.clone()
        }
    };
    if ids.is_empty() {
        return Err(Error::bad_input("the prompt is empty").hint("give a prompt, or --ids"));
    }
    Ok(ids)
}

fn bad_id(id: u32, vocab: u32) -> Error {
    Error::bad_input(format_args!(
        "there is no token {id}: the model has 0 to {}",
        vocab - 1
    ))
}

/// Tokens on their way to text.
struct Answer<'a> {
    tokenizer: &'a Tokenizer,
    assembler: Utf8Assembler,
    text: String,
    tokens: Vec<u32>,
    /// Tokens whose text is not complete yet.
    pending: Vec<u32>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl<'a> Answer<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Answer {
            tokenizer,
            assembler: Utf8Assembler::new(),
            text: String::new(),
            tokens: Vec::new(),
            pending: Vec::new(),
            first: None,
            last: None,
        }
    }

    fn push(&mut self, token: u32) -> Option<(String, Vec<u32>)> {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.tokens.push(token);
        self.pending.push(token);
        let text = self.assembler.push(self.tokenizer.token_bytes(token));
        self.text.push_str(&text);
        (!text.is_empty()).then(|| (text, std::mem::take(&mut self.pending)))
    }

    fn flush(&mut self) -> Option<(String, Vec<u32>)> {
        let text = self.assembler.flush();
        self.text.push_str(&text);
        (!text.is_empty() || !self.pending.is_empty())
            .then(|| (text, std::mem::take(&mut self.pending)))
    }
}
