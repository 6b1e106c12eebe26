//! The lines that this machine heads: find one that serves, or plan and build one.

use std::sync::Arc;

use skein_planner::{Plan, Refusal, Wish};
use skein_shards::hash::ModelId;
use skein_shards::manifest::Manifest;
use tokio::sync::mpsc;

use super::{Agent, Shared, candidates, content};
use crate::control::{Event, EventSink};
use crate::error::{Code, Error, Result};
use crate::line::build::{self, BuildError, BuildEvent, Order, OrderedStage};
use crate::line::head::{self, LineHandle, LineState};
use crate::objects;

/// Context where nobody asks for another: what fits a conversation without filling memory.
pub const DEFAULT_CONTEXT: u32 = 4096;
/// Events of a build that wait for the asker.
const BUILD_EVENTS: usize = 64;

/// What a line has to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Want {
    pub model: ModelId,
    pub nodes: Option<u32>,
    pub context: u32,
    pub exact: bool,
    pub logits: bool,
}

/// Where a wanted line is, or could be.
pub enum Found {
    /// This machine heads it and it serves.
    Here(LineHandle),
    /// A member heads one and advertises it.
    There(String),
    /// Nobody has one.
    Nowhere,
}

/// The context that a request gets.
pub fn context_of(manifest: &Manifest, asked: Option<u32>) -> Result<u32> {
    match asked {
        None => Ok(DEFAULT_CONTEXT.min(manifest.context)),
        Some(asked) if asked == 0 || asked > manifest.context => {
            Err(Error::bad_input(format_args!(
                "a context of {asked} tokens is out of range: {} was made for 1 to {}",
                manifest.name, manifest.context
            ))
            .hint("give --ctx within that range"))
        }
        Some(asked) => Ok(asked),
    }
}

/// The lines that this machine heads and that take requests.
pub fn serving(shared: &Shared) -> Vec<LineHandle> {
    let mut lines = shared
        .lines
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    lines.retain(|_, line| line.is_serving());
    lines.values().cloned().collect()
}

/// Looks for a line that serves already.
pub fn find(shared: &Shared, want: &Want) -> Found {
    let model = *want.model.hash().as_bytes();
    let here = serving(shared).into_iter().find(|line| {
        line.order.model == model
            && line.order.exact == want.exact
            && line.order.logits == want.logits
            && line.order.context >= want.context
            && want
                .nodes
                .is_none_or(|nodes| nodes as usize == line.order.stages.len())
    });
    if let Some(line) = here {
        return Found::Here(line);
    }
    if want.logits {
        return Found::Nowhere;
    }
    let numerics = if want.exact { "exact" } else { "fast" };
    for peer in shared.peers() {
        let Some(advert) = peer
            .advert
            .as_ref()
            .filter(|_| peer.fresh && peer.connected)
        else {
            continue;
        };
        let fits = advert.body.lines.iter().any(|line| {
            line.model == model
                && line.numerics == numerics
                && line.context >= want.context
                && want.nodes.is_none_or(|nodes| nodes == line.nodes)
        });
        if fits {
            return Found::There(peer.peer.to_string());
        }
    }
    Found::Nowhere
}

/// Plans a line with what is advertised now.
pub fn plan(shared: &Shared, want: &Want, manifest: &Manifest) -> Result<Plan> {
    let shape = candidates::shape(manifest, want.exact);
    let peers = candidates::all(shared, *want.model.hash().as_bytes(), manifest);
    let wish = Wish {
        ctx: want.context,
        nodes: want.nodes.map(|nodes| nodes as usize),
        asker: shared.peer.clone(),
    };
    skein_planner::plan(&shape, &peers, &wish).map_err(refused)
}

fn refused(refusal: Refusal) -> Error {
    let error = match &refusal {
        Refusal::DoesNotFit { missing_bytes, .. } => Error::does_not_fit(&refusal, *missing_bytes),
        Refusal::TooFewPeers { .. } => Error::new(Code::DoesNotFit, &refusal),
        Refusal::TooManyStages { .. } | Refusal::Invalid(_) => Error::bad_input(&refusal),
    };
    error.hint(refusal.hint())
}

/// The machines, by name, that will be able to take part once they know their devices.
pub fn starting(shared: &Shared) -> Vec<String> {
    let mut names = Vec::new();
    if super::announce::state(shared).0 == "starting" {
        names.push(shared.name.clone());
    }
    for peer in shared.peers() {
        let advert = peer
            .advert
            .as_ref()
            .filter(|_| peer.fresh && peer.connected);
        if advert.is_some_and(|advert| advert.body.state == "starting") {
            names.push(peer.name.clone());
        }
    }
    names
}

/// The stages of a plan, as a line is ordered.
pub fn ordered(plan: &Plan) -> Vec<OrderedStage> {
    plan.stages
        .iter()
        .map(|stage| OrderedStage {
            peer: stage.peer.clone(),
            name: stage.name.clone(),
            device: stage.device.clone(),
            layers: (stage.layers.start, stage.layers.end),
            needed_bytes: stage.reserved_bytes(),
        })
        .collect()
}

/// Finds or builds a line whose head is this machine. Two requests for the same line build it once.
///
/// # Errors
/// `does_not_fit` with the missing bytes; a member's refusal or failure, by its name.
pub async fn here(
    shared: &Agent,
    want: &Want,
    stages: Option<Vec<OrderedStage>>,
    events: &EventSink,
) -> Result<LineHandle> {
    let _building = shared.building.lock().await;
    if let Found::Here(line) = find(shared, want) {
        return Ok(line);
    }
    let Some(stages) = stages.filter(|stages| {
        stages
            .first()
            .is_some_and(|first| first.peer == shared.peer)
    }) else {
        return Err(Error::failed(format_args!(
            "{} has no such line any more",
            shared.name
        )));
    };
    let manifest = content::manifest(shared, want.model, &[])
        .await
        .map_err(Error::failed)?;
    let line = build_ordered(shared, want, &manifest, stages, events).await?;
    shared.changed.notify_one();
    Ok(line)
}

/// Ends one line that nobody uses; false where there is none.
pub async fn release_idle(shared: &Shared) -> bool {
    let idle = serving(shared)
        .into_iter()
        .find(|line| line.requests() == 0);
    match idle {
        Some(line) => {
            line.close("its memory is needed for another line").await;
            // The stages give their memory back when they notice.
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            true
        }
        None => false,
    }
}

/// Whether more machines have memory set aside than the lines from here account for: stages of a line that ended
/// still give theirs back.
pub fn memory_returns(shared: &Shared) -> bool {
    let running: usize = serving(shared)
        .iter()
        .map(|line| line.order.stages.len())
        .sum();
    let peers = shared.peers();
    let adverts = peers.iter().filter(|peer| peer.connected && peer.fresh);
    let holding = adverts
        .filter_map(|peer| peer.advert.as_ref())
        .filter(|advert| advert.body.memory_free < advert.body.memory_cap)
        .count();
    holding + usize::from(shared.memory.used() > 0) > running
}

async fn build_ordered(
    shared: &Agent,
    want: &Want,
    manifest: &Arc<Manifest>,
    stages: Vec<OrderedStage>,
    events: &EventSink,
) -> Result<LineHandle> {
    let order = Order {
        model: *want.model.hash().as_bytes(),
        model_name: manifest.name.clone(),
        context: want.context,
        blocks: want.context.div_ceil(skein_pipeline::BLOCK_SLOTS),
        exact: want.exact,
        logits: want.logits,
        stages,
    };
    let (sender, mut told) = mpsc::channel(BUILD_EVENTS);
    let names: Vec<String> = order
        .stages
        .iter()
        .map(|stage| stage.name.clone())
        .collect();
    let building = build::build(shared, order, sender);
    tokio::pin!(building);
    let built = loop {
        tokio::select! {
            built = &mut building => break built,
            Some(event) = told.recv() => tell(shared, events, &names, event),
        }
    };
    while let Ok(event) = told.try_recv() {
        tell(shared, events, &names, event);
    }
    let built = built.map_err(|error| match &error {
        BuildError::Refused {
            free_bytes,
            needed_bytes,
            ..
        } if needed_bytes > free_bytes && *free_bytes > 0 => {
            Error::does_not_fit(&error, needed_bytes - free_bytes)
        }
        BuildError::Refused { .. } => Error::new(Code::Refused, &error),
        BuildError::Failed { .. } => Error::failed(&error),
    })?;
    let line = head::start(built);
    shared
        .lines
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .insert(line.line, line.clone());
    follow(shared.clone(), line.clone());
    Ok(line)
}

/// Tells peers and whoever watches the agent when a line ends.
fn follow(shared: Agent, line: LineHandle) {
    let model = content::model_id(line.order.model).to_string();
    shared.tell(&objects::AgentEvent::Line {
        model: model.clone(),
        epoch: line.epoch,
        state: objects::LineState::Serving,
    });
    tokio::spawn(async move {
        let mut state = line.state.clone();
        let _ = state.wait_for(|state| *state != LineState::Serving).await;
        shared
            .lines
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .remove(&line.line);
        shared.changed.notify_one();
        shared.tell(&objects::AgentEvent::Line {
            model,
            epoch: line.epoch,
            state: objects::LineState::Ended,
        });
    });
}

fn tell(shared: &Shared, events: &EventSink, names: &[String], event: BuildEvent) {
    // What is only for the eye may be lost when the asker is slow.
    let _ = match event {
        BuildEvent::Reserved { stage, bytes } => events.note(format!(
            "{} set {} aside",
            names[stage],
            crate::output::size(bytes)
        )),
        BuildEvent::Progress { stage, progress } => {
            let from = progress
                .from
                .as_deref()
                .map(|peer| format!(" from {}", shared.name_of(peer)));
            let task = format!(
                "{} {}{}",
                names[stage],
                progress.phase.word(),
                from.unwrap_or_default()
            );
            events.progress(&task, progress.done, progress.total, progress.total > 0)
        }
        BuildEvent::Loaded { stage, report } => {
            let pulled: Vec<String> = report
                .pulled_from
                .iter()
                .map(|(peer, bytes)| {
                    format!(
                        "{} from {}",
                        crate::output::size(*bytes),
                        shared.name_of(peer)
                    )
                })
                .collect();
            let pulled = if pulled.is_empty() {
                "nothing to pull".to_owned()
            } else {
                format!("pulled {}", pulled.join(", "))
            };
            events.note(format!(
                "{} is ready: {pulled}; compiled in {} ms",
                names[stage], report.compile_ms
            ))
        }
    };
}

/// The stages of a line as people and scripts see them, with their latest pulse.
pub fn stages_of(line: &LineHandle) -> Vec<objects::Stage> {
    let pulses = line
        .pulses
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    line.order
        .stages
        .iter()
        .zip(line.reports.iter())
        .enumerate()
        .map(|(index, (stage, report))| {
            let pulse = pulses.get(&index).copied().unwrap_or_default();
            stage_object(
                &stage.peer,
                &stage.name,
                stage.layers,
                report,
                pulse.steps,
                pulse.resident_bytes,
            )
        })
        .collect()
}

/// One stage as an object.
pub fn stage_object(
    peer: &str,
    name: &str,
    layers: (u32, u32),
    report: &crate::line::messages::StageReport,
    steps: u64,
    resident_bytes: u64,
) -> objects::Stage {
    objects::Stage {
        peer: peer.to_owned(),
        name: name.to_owned(),
        layers: [layers.0, layers.1],
        device: report.device.clone(),
        worker_pid: report.worker_pid,
        weights_bytes: report.weights_bytes,
        kv_bytes: report.kv_bytes,
        resident_bytes: if resident_bytes > 0 {
            resident_bytes
        } else {
            report.resident_bytes
        },
        pulled_bytes: report.pulled_bytes,
        pulled_from: report
            .pulled_from
            .iter()
            .map(|(peer, bytes)| objects::PulledFrom {
                peer: peer.clone(),
                bytes: *bytes,
            })
            .collect(),
        steps,
    }
}

/// Sends the line's stages to the asker.
pub async fn show(line: &LineHandle, events: &EventSink) -> Result<()> {
    events
        .send(Event::Line {
            epoch: line.epoch,
            stages: stages_of(line),
        })
        .await?;
    Ok(())
}
