//! The ask protocol `/skein/ask/1`: a request whose line has its head on another machine.
//!
//! The asker opens a stream and sends one [`Ask`]; the head answers with [`Said`] until `Finished` or `Failed`. Closing
//! the stream cancels. Messages are CBOR in the envelope of `crate::wire`. Only token ids travel.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::ask::{self, Job, Step};
use super::lines::{self, Want};
use super::{Agent, content};
use crate::control::{Event, EventSink};
use crate::error::{Error, Result};
use crate::line::build::OrderedStage;
use crate::line::hops::BoxIo;
use crate::wire::{self, kind};

/// Name of the protocol.
pub const ASK_PROTOCOL: &str = "/skein/ask/1";
/// The asker speaks at once.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Steps and events that wait for the stream.
const QUEUE: usize = 256;
/// A request carries a prompt of at most the longest context.
const MAX_ASK: usize = 4 << 20;
/// A message of the head; one chunk of logits is the largest.
const MAX_SAID: usize = 1 << 20;

/// Why a head is gone, where its stream only ended.
const CLOSED: &str = "its agent closed the connection";

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    #[serde(with = "serde_bytes")]
    pub model: [u8; 32],
    pub nodes: Option<u32>,
    pub context: u32,
    pub exact: bool,
    pub logits: bool,
    /// The line to build where there is none, the asked peer first.
    pub stages: Option<Vec<OrderedStage>>,
    pub job: Job,
}

/// What the head says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Said {
    Event(Event),
    Step(Step),
    Failed(Error),
}

/// Asks `peer` and passes on what it says.
pub async fn ask(
    shared: &Agent,
    peer: &str,
    want: &Want,
    stages: Option<Vec<OrderedStage>>,
    job: &Job,
    events: &EventSink,
    steps: &mpsc::Sender<Result<Step>>,
) -> Result<()> {
    let name = shared.name_of(peer);
    let broke = |error: &dyn std::fmt::Display| {
        Error::failed(format_args!(
            "{name}, the head of the line, is gone: {error}"
        ))
    };
    let mut stream = shared
        .open_stream(peer, ASK_PROTOCOL)
        .await
        .map_err(|error| Error::failed(format_args!("{name} cannot be reached: {error}")))?;
    let message = Ask {
        model: *want.model.hash().as_bytes(),
        nodes: want.nodes,
        context: want.context,
        exact: want.exact,
        logits: want.logits,
        stages,
        job: job.clone(),
    };
    wire::send(&mut stream, kind::CONTROL, &message)
        .await
        .map_err(|error| broke(&error))?;
    let mut begun = false;
    loop {
        let (_, body) = match wire::receive_raw(&mut stream, MAX_SAID).await {
            Ok(message) => message,
            // Once tokens were shown, asking again would repeat them.
            Err(_) if begun => {
                let finished = Step::Finished {
                    reason: crate::objects::FinishReason::Error,
                    message: Some(broke(&CLOSED).message),
                    stages: Vec::new(),
                };
                steps
                    .send(Ok(finished))
                    .await
                    .map_err(|_| Error::interrupted())?;
                return Ok(());
            }
            Err(_) => return Err(broke(&CLOSED)),
        };
        match wire::decode(&body).map_err(|error| broke(&error))? {
            Said::Event(event) => {
                let _ = match event {
                    Event::Progress {
                        task,
                        done,
                        total,
                        bytes,
                    } => events.progress(&task, done, total, bytes),
                    Event::Note { message } => events.note(message),
                    _ => Ok(()),
                };
            }
            Said::Failed(error) => return Err(error),
            Said::Step(step) => {
                begun |= matches!(step, Step::Token(_) | Step::Logits { .. });
                let last = matches!(step, Step::Finished { .. });
                steps
                    .send(Ok(step))
                    .await
                    .map_err(|_| Error::interrupted())?;
                if last {
                    return Ok(());
                }
            }
        }
    }
}

/// Serves one request of another member.
pub async fn serve(shared: Agent, from: String, mut stream: BoxIo) {
    let message =
        match tokio::time::timeout(ASK_TIMEOUT, wire::receive_raw(&mut stream, MAX_ASK)).await {
            Ok(Ok((kind::CONTROL, body))) => wire::decode::<Ask>(&body),
            _ => return,
        };
    let message = match message {
        Ok(message) => message,
        Err(error) => {
            tracing::info!(%from, %error, "a request was unreadable");
            return;
        }
    };
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (said, mut out) = mpsc::channel::<Said>(QUEUE);
    let work = answer(shared, message, said);
    let write = async move {
        while let Some(said) = out.recv().await {
            if wire::send(&mut writer, kind::CONTROL, &said).await.is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
    };
    // The asker sends nothing more: whatever ends its side ends the request.
    let gone = async {
        let mut byte = [0];
        let _ = reader.read(&mut byte).await;
    };
    tokio::select! {
        _ = async { tokio::join!(work, write) } => {}
        () = gone => tracing::info!(%from, "a request was given up by its asker"),
    }
}

async fn answer(shared: Agent, message: Ask, said: mpsc::Sender<Said>) {
    let (events, mut told) = EventSink::channel(QUEUE);
    let (sender, mut steps) = mpsc::channel(QUEUE);
    let work = async {
        let want = Want {
            model: content::model_id(message.model),
            nodes: message.nodes,
            context: message.context,
            exact: message.exact,
            logits: message.logits,
        };
        check(&shared, &want, &message.job).await?;
        let line = lines::here(&shared, &want, message.stages, &events).await?;
        ask::run(line, &message.job, &sender).await
    };
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            Some(event) = told.recv() => {
                let _ = said.send(Said::Event(event)).await;
            }
            Some(Ok(step)) = steps.recv() => {
                if said.send(Said::Step(step)).await.is_err() {
                    return;
                }
            }
            outcome = &mut work => {
                while let Ok(Ok(step)) = steps.try_recv() {
                    let _ = said.send(Said::Step(step)).await;
                }
                if let Err(error) = outcome {
                    let _ = said.send(Said::Failed(error)).await;
                }
                return;
            }
        }
    }
}

/// A peer's request is checked like a person's.
async fn check(shared: &Arc<super::Shared>, want: &Want, job: &Job) -> Result<()> {
    let manifest = content::manifest(shared, want.model, &[])
        .await
        .map_err(Error::failed)?;
    lines::context_of(&manifest, Some(want.context))?;
    if let Some(bad) = job.prompt.iter().find(|id| **id >= manifest.vocab) {
        return Err(Error::bad_input(format_args!("there is no token {bad}")));
    }
    if want.logits && !shared.allow_logits {
        return Err(Error::new(
            crate::error::Code::Refused,
            format_args!("the owner of {} does not let logits leave it", shared.name),
        ));
    }
    Ok(())
}
