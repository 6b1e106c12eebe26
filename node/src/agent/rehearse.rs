//! `skein debug stage`: prepare one stage on this machine outside any line, report it, and give it back.
//!
//! It runs what a line would run: reserve, pull from whoever holds the segments, cut, compile, load.

use skein_planner::Footprint;
use tokio::sync::mpsc;

use super::devices::Machine;
use super::lines;
use super::prepare::{self, StageRequest as Prepare};
use super::{Agent, candidates, content};
use crate::control::{EventSink, StageRequest};
use crate::error::{Error, Result};
use crate::host;
use crate::objects;

/// Progress that waits for the asker.
const QUEUE: usize = 64;

/// Prepares the stage that `request` names.
pub async fn stage(
    shared: &Agent,
    request: StageRequest,
    events: EventSink,
) -> Result<objects::Stage> {
    let outcome = prepare_and_end(shared, request, events).await;
    // Only now is the memory free again.
    shared.changed.notify_one();
    outcome
}

async fn prepare_and_end(
    shared: &Agent,
    request: StageRequest,
    events: EventSink,
) -> Result<objects::Stage> {
    let model = content::resolve(shared, &request.model)?;
    let manifest = content::manifest(shared, model, &[])
        .await
        .map_err(Error::failed)?;
    let [first, end] = request.layers;
    if first >= end || end > manifest.layers {
        return Err(Error::bad_input(format_args!(
            "there are no layers {first} to {end}: {} has 0 to {}",
            manifest.name, manifest.layers
        )));
    }
    let device = match &*shared
        .machine
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        Machine::Ready { devices, .. } => devices.first().map(|device| device.id.clone()),
        _ => None,
    }
    .ok_or_else(|| {
        Error::failed(
            shared
                .unavailable()
                .unwrap_or_else(|| "this machine has no device".into()),
        )
    })?;
    let context = lines::context_of(&manifest, None)?;
    let needed = Footprint::of(&candidates::shape(&manifest, true), &(first..end), context).total();
    let _reservation = shared.memory.reserve(needed).map_err(|free| {
        Error::does_not_fit(
            format_args!("{free} bytes are free, {needed} are needed"),
            needed - free,
        )
    })?;
    let (progress, mut told) = mpsc::channel(QUEUE);
    let prepared = prepare::prepare(
        shared.clone(),
        Prepare {
            line: super::random_id(),
            model,
            layers: (first, end),
            blocks: context.div_ceil(skein_pipeline::BLOCK_SLOTS),
            exact: true,
            device,
            logits: false,
            from: request.from.iter().cloned().collect(),
            only: request.from.is_some(),
        },
        progress,
    );
    tokio::pin!(prepared);
    let (worker, report) = loop {
        tokio::select! {
            ready = &mut prepared => break ready.map_err(Error::failed)?,
            Some(step) = told.recv() => {
                let from = step.from.as_deref().map(|peer| format!(" from {}", shared.name_of(peer))).unwrap_or_default();
                let _ = events.progress(&format!("{}{from}", step.phase.word()), step.done, step.total, step.total > 0);
            }
            () = events.closed() => return Err(Error::interrupted()),
        }
    };
    let stage = lines::stage_object(&shared.peer, &shared.name, (first, end), &report, 0, 0);
    host::close(worker.input).await;
    worker.process.end().await;
    Ok(stage)
}
