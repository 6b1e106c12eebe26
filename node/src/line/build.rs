//! The head's side of the line protocol: turn a plan into a line that is ready to take steps, and watch over it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use serde::{Deserialize, Serialize};
use tokio::io::WriteHalf;
use tokio::sync::mpsc;

use super::hops::{BoxIo, say_hello};
use super::inbox::Inbox;
use super::messages::{
    Hello, LINE_PROTOCOL, Offer, Progress, STEP_PROTOCOL, StageReport, ToHead, ToStage,
};
use crate::agent::Shared;
use crate::wire::{self, kind};

/// How often a stage is asked whether it is there.
pub const PING_EVERY: Duration = Duration::from_secs(3);
/// A stage that does not answer for this long is lost. A closed connection tells at once; this is for a machine that
/// vanished without one, and a busy machine must not be taken for it.
const SILENCE: Duration = Duration::from_secs(45);
/// An offer is answered after a look at the manifest, which may have to be fetched first.
const OFFER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pulling and compiling a large stage on a slow machine.
const LOAD_TIMEOUT: Duration = Duration::from_secs(1800);
/// Opening one stream to a known peer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// A local control stream holds a few messages.
const LOCAL_PIPE_BYTES: usize = 1 << 16;

/// One stage as it was planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderedStage {
    pub peer: String,
    pub name: String,
    pub device: String,
    pub layers: (u32, u32),
    pub needed_bytes: u64,
}

/// A line as it was planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    pub model: [u8; 32],
    pub model_name: String,
    pub context: u32,
    pub blocks: u32,
    pub exact: bool,
    pub logits: bool,
    pub stages: Vec<OrderedStage>,
}

/// What happens while a line is built.
#[derive(Debug, Clone, PartialEq)]
pub enum BuildEvent {
    Reserved { stage: usize, bytes: u64 },
    Progress { stage: usize, progress: Progress },
    Loaded { stage: usize, report: StageReport },
}

/// Why a line could not be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BuildError {
    #[error("{name} refused its stage: {reason}")]
    Refused {
        peer: String,
        name: String,
        reason: String,
        free_bytes: u64,
        needed_bytes: u64,
    },
    #[error("{name} could not prepare its stage: {reason}")]
    Failed {
        peer: String,
        name: String,
        reason: String,
    },
}

/// A line that is ready.
pub struct BuiltLine {
    pub line: u64,
    pub epoch: u64,
    pub order: Order,
    pub reports: Vec<StageReport>,
    /// Step frames go in here.
    pub to_first: BoxIo,
    /// Sampled tokens come out here.
    pub from_tail: BoxIo,
    /// The control streams, for [`watch`].
    pub controls: Controls,
}

/// The open control streams of a line; dropping them closes them, which releases every stage.
pub struct Controls(Vec<Control>);

struct Control {
    stage: usize,
    peer: String,
    name: String,
    inbox: Inbox<ToHead>,
    writer: WriteHalf<BoxIo>,
}

/// What a stage last said of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StagePulse {
    pub steps: u64,
    pub resident_bytes: u64,
}

/// The last pulse of each stage, by position.
pub type Pulses = Arc<Mutex<BTreeMap<usize, StagePulse>>>;

/// Offers, commits and connects every stage of `order`; the caller is the head.
pub async fn build(
    shared: &Arc<Shared>,
    order: Order,
    events: mpsc::Sender<BuildEvent>,
) -> Result<BuiltLine, BuildError> {
    let line: u64 = crate::agent::random_id();
    let epoch = 1;
    let stages = order.stages.len() as u32;
    let tail = &order.stages[order.stages.len() - 1];
    let hello = Hello {
        line,
        epoch,
        to: stages,
    };
    let back = shared.hops.expect(hello, &tail.peer);

    let offers = order.stages.iter().enumerate().map(|(index, stage)| {
        let next = order
            .stages
            .get(index + 1)
            .map_or(shared.peer.clone(), |next| next.peer.clone());
        let previous = match index.checked_sub(1) {
            Some(before) => order.stages[before].peer.clone(),
            None => shared.peer.clone(),
        };
        let offer = Offer {
            previous,
            line,
            epoch,
            model: order.model,
            model_name: order.model_name.clone(),
            stage: index as u32,
            stages,
            layers: stage.layers,
            context: order.context,
            blocks: order.blocks,
            exact: order.exact,
            device: stage.device.clone(),
            needed_bytes: stage.needed_bytes,
            next,
            head: shared.peer.clone(),
            logits: order.logits,
        };
        let events = events.clone();
        async move {
            let mut control = open_control(shared, index, stage).await?;
            let bytes = control.reserve(offer).await?;
            let _ = events
                .send(BuildEvent::Reserved {
                    stage: index,
                    bytes,
                })
                .await;
            Ok::<_, BuildError>(control)
        }
    });
    // Every answer is awaited: a stage that reserved is released when its control is dropped.
    let mut controls = join_all(offers)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;

    let reports = try_join_all(controls.iter_mut().map(|control| control.load(&events))).await?;
    let hello = Hello { line, epoch, to: 0 };
    let first = &order.stages[0];
    let to_first = open_hop(shared, &first.peer, hello)
        .await
        .map_err(|reason| BuildError::Failed {
            peer: first.peer.clone(),
            name: first.name.clone(),
            reason,
        })?;
    try_join_all(controls.iter_mut().map(Control::connect)).await?;
    let from_tail = match tokio::time::timeout(CONNECT_TIMEOUT, back.arrived()).await {
        Ok(Ok(stream)) => stream,
        _ => {
            let tail = &order.stages[order.stages.len() - 1];
            return Err(BuildError::Failed {
                peer: tail.peer.clone(),
                name: tail.name.clone(),
                reason: "its hop back to the head never came".into(),
            });
        }
    };
    Ok(BuiltLine {
        line,
        epoch,
        order,
        reports,
        to_first,
        from_tail,
        controls: Controls(controls),
    })
}

/// Pings every stage until one is lost; gives its position, its peer and why. Dropping the future keeps nothing alive.
pub async fn watch(controls: Controls, pulses: Pulses) -> (usize, String, String) {
    let watched = controls
        .0
        .into_iter()
        .map(|control| Box::pin(control.watch(pulses.clone())));
    futures::future::select_all(watched).await.0
}

async fn open_control(
    shared: &Arc<Shared>,
    index: usize,
    stage: &OrderedStage,
) -> Result<Control, BuildError> {
    let stream: BoxIo = if stage.peer == shared.peer {
        let (near, far) = tokio::io::duplex(LOCAL_PIPE_BYTES);
        tokio::spawn(super::stage::serve(
            shared.clone(),
            shared.peer.clone(),
            Box::new(far),
        ));
        Box::new(near)
    } else {
        open_stream(shared, &stage.peer, LINE_PROTOCOL)
            .await
            .map_err(|reason| BuildError::Failed {
                peer: stage.peer.clone(),
                name: stage.name.clone(),
                reason,
            })?
    };
    let (reader, writer) = tokio::io::split(stream);
    let inbox = Inbox::read(reader);
    Ok(Control {
        stage: index,
        peer: stage.peer.clone(),
        name: stage.name.clone(),
        inbox,
        writer,
    })
}

async fn open_stream(
    shared: &Arc<Shared>,
    peer: &str,
    protocol: &'static str,
) -> Result<BoxIo, String> {
    match tokio::time::timeout(CONNECT_TIMEOUT, shared.open_stream(peer, protocol)).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

async fn open_hop(shared: &Arc<Shared>, peer: &str, hello: Hello) -> Result<BoxIo, String> {
    if peer == shared.peer {
        return shared
            .hops
            .open_local(hello, &shared.peer)
            .map_err(|error| error.to_string());
    }
    let mut stream = open_stream(shared, peer, STEP_PROTOCOL).await?;
    say_hello(&mut stream, hello)
        .await
        .map_err(|error| error.to_string())?;
    Ok(stream)
}

impl Control {
    async fn reserve(&mut self, offer: Offer) -> Result<u64, BuildError> {
        let needed = offer.needed_bytes;
        self.send(&ToStage::Offer(Box::new(offer))).await?;
        match self.next(OFFER_TIMEOUT).await? {
            ToHead::Reserved { bytes, .. } => Ok(bytes),
            ToHead::Refused {
                reason,
                free_bytes,
                needed_bytes,
            } => Err(BuildError::Refused {
                peer: self.peer.clone(),
                name: self.name.clone(),
                reason,
                free_bytes,
                needed_bytes: needed_bytes.max(needed),
            }),
            _ => Err(self.failed("it answered an offer with something else")),
        }
    }

    async fn load(&mut self, events: &mpsc::Sender<BuildEvent>) -> Result<StageReport, BuildError> {
        self.send(&ToStage::Commit).await?;
        let deadline = tokio::time::Instant::now() + LOAD_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            match self.next(left).await? {
                ToHead::Progress(progress) => {
                    let _ = events
                        .send(BuildEvent::Progress {
                            stage: self.stage,
                            progress,
                        })
                        .await;
                }
                ToHead::Loaded(report) => {
                    let event = BuildEvent::Loaded {
                        stage: self.stage,
                        report: report.clone(),
                    };
                    let _ = events.send(event).await;
                    return Ok(report);
                }
                ToHead::Pong { .. } => {}
                _ => return Err(self.failed("it answered a commit with something else")),
            }
        }
    }

    async fn connect(&mut self) -> Result<(), BuildError> {
        self.send(&ToStage::Connect).await?;
        match self.next(CONNECT_TIMEOUT).await? {
            ToHead::Connected => Ok(()),
            _ => Err(self.failed("it did not connect to the next stage")),
        }
    }

    async fn watch(mut self, pulses: Pulses) -> (usize, String, String) {
        let mut heard = tokio::time::Instant::now();
        let mut tick = tokio::time::interval(PING_EVERY);
        let reason = loop {
            tokio::select! {
                _ = tick.tick() => {
                    if heard.elapsed() > SILENCE {
                        break format!("no sign of life for {} s", SILENCE.as_secs());
                    }
                    if self.send(&ToStage::Ping).await.is_err() {
                        // What it said last, if anything, is still in the inbox.
                        tick.reset_after(PING_EVERY);
                    }
                }
                message = self.inbox.recv() => match message {
                    Some(ToHead::Pong { steps, resident_bytes }) => {
                        heard = tokio::time::Instant::now();
                        let mut pulses = pulses.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                        pulses.insert(self.stage, StagePulse { steps, resident_bytes });
                    }
                    Some(ToHead::Gone { reason } | ToHead::Failed { reason }) => break reason,
                    Some(_) => {}
                    None => break "its agent closed the connection".to_owned(),
                }
            }
        };
        (self.stage, self.name, reason)
    }

    async fn send(&mut self, message: &ToStage) -> Result<(), BuildError> {
        match wire::send(&mut self.writer, kind::CONTROL, message).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(&format!("the connection broke: {error}"))),
        }
    }

    async fn next(&mut self, within: Duration) -> Result<ToHead, BuildError> {
        match tokio::time::timeout(within, self.inbox.recv()).await {
            Ok(Some(ToHead::Gone { reason } | ToHead::Failed { reason })) => {
                Err(self.failed(&reason))
            }
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(self.failed("its agent closed the connection")),
            Err(_) => Err(self.failed(&format!("no answer within {} s", within.as_secs()))),
        }
    }

    fn failed(&self, reason: &str) -> BuildError {
        BuildError::Failed {
            peer: self.peer.clone(),
            name: self.name.clone(),
            reason: reason.to_owned(),
        }
    }
}
