//! What a stage needs before it can take steps: its bytes, its graph, and a worker that holds them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use skein_planner::Footprint;
use skein_shards::graph;
use skein_shards::hash::ModelId;
use skein_shards::manifest::Manifest;
use tokio::sync::mpsc;

use super::Shared;
use super::content;
use super::devices::Machine;
use crate::host::{self, Worker};
use crate::line::messages::{Offer, Phase, Progress, StageReport};
use crate::worker::LoadSpec;

/// One stage to prepare.
#[derive(Debug, Clone, PartialEq)]
pub struct StageRequest {
    pub line: u64,
    pub model: ModelId,
    pub layers: (u32, u32),
    pub blocks: u32,
    pub exact: bool,
    pub device: String,
    pub logits: bool,
    /// Peers to ask first for what is missing.
    pub from: Vec<String>,
    /// Ask nobody else.
    pub only: bool,
}

impl StageRequest {
    /// The stage that a head offers.
    pub fn of(offer: &Offer) -> Self {
        StageRequest {
            line: offer.line,
            model: content::model_id(offer.model),
            layers: offer.layers,
            blocks: offer.blocks,
            exact: offer.exact,
            device: offer.device.clone(),
            logits: offer.logits,
            from: vec![offer.head.clone()],
            only: false,
        }
    }
}

/// Bytes that the offered stage takes, after a check that the offer makes sense. Fetches the manifest where it is
/// missing.
pub async fn footprint_of(shared: &Arc<Shared>, offer: &Offer) -> Result<u64, String> {
    let manifest = content::manifest(
        shared,
        content::model_id(offer.model),
        std::slice::from_ref(&offer.head),
    )
    .await?;
    let (first, end) = offer.layers;
    if first >= end || end > manifest.layers {
        return Err(format!(
            "there are no layers {first} to {end} in a model of {}",
            manifest.layers
        ));
    }
    if (offer.stage == 0) != (first == 0)
        || (offer.stage + 1 == offer.stages) != (end == manifest.layers)
    {
        return Err(format!(
            "layers {first} to {end} do not belong to stage {} of {}",
            offer.stage, offer.stages
        ));
    }
    if offer.blocks == 0 || offer.blocks as usize > skein_pipeline::frame::MAX_FRAME_BLOCKS {
        return Err(format!(
            "a KV pool of {} blocks is out of range",
            offer.blocks
        ));
    }
    let shape = super::candidates::shape(&manifest, offer.exact);
    let tokens = offer.blocks.saturating_mul(skein_pipeline::BLOCK_SLOTS);
    Ok(Footprint::of(&shape, &(first..end), tokens).total())
}

/// Pulls, cuts and loads. `progress` hears of it; a slow listener holds nothing up.
pub async fn prepare(
    shared: Arc<Shared>,
    request: StageRequest,
    progress: mpsc::Sender<Progress>,
) -> Result<(Worker, StageReport), String> {
    let (runtime, device_known) = match &*shared
        .machine
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        Machine::Ready { runtime, devices } => (
            runtime.clone(),
            devices.iter().any(|device| device.id == request.device),
        ),
        _ => {
            return Err(shared
                .unavailable()
                .unwrap_or_else(|| "it is not ready".into()));
        }
    };
    if !device_known {
        return Err(format!("it has no device {}", request.device));
    }
    let manifest = content::manifest(&shared, request.model, &request.from).await?;
    let layers = request.layers.0..request.layers.1;

    let sources = if request.only {
        request.from.clone()
    } else {
        content::sources(&shared, request.model, &request.from)
    };
    let pulled = content::pull(
        &shared,
        request.model,
        &manifest,
        layers.clone(),
        &sources,
        &progress,
    )
    .await?;

    let say = |phase| Progress {
        phase,
        done: 0,
        total: 0,
        from: None,
    };
    let _ = progress.try_send(say(Phase::Cutting));
    let graph = cut(&shared, request.model, &manifest, layers.clone()).await?;

    let _ = progress.try_send(say(Phase::Compiling));
    let windows = match manifest
        .sliding_windows
        .get(layers.start as usize..layers.end as usize)
    {
        Some(windows) => windows.to_vec(),
        None => vec![0; layers.len()],
    };
    let tuning = &shared.options.tuning;
    let spec = LoadSpec {
        libs_dir: runtime.libs_dir,
        cache_dir: runtime.cache_dir,
        graph,
        weights: shared
            .store
            .weights_path(request.model)
            .map_err(|error| error.to_string())?,
        device: request.device.clone(),
        exact: request.exact,
        blocks: request.blocks,
        first: layers.start == 0,
        last: layers.end == manifest.layers,
        hidden: manifest.hidden,
        vocab: manifest.vocab,
        layers: request.layers,
        threads: shared.options.threads.map(|threads| threads as u32),
        sliding_windows: windows,
        dynamic_quantization_group: tuning.dynamic_quantization_group,
        kv: tuning.kv.map(|kv| kv.name().to_owned()),
        inference_precision: tuning
            .inference_precision
            .map(|precision| precision.name().to_owned()),
        context: manifest.context,
        line: request.line,
        allow_logits: request.logits,
        report_steps: host::reports_steps(),
    };
    let executable = host::executable().map_err(|error| error.to_string())?;
    let (worker, loaded) = Worker::load(&executable, &spec)
        .await
        .map_err(|error| error.to_string())?;
    tracing::info!(
        pid = loaded.pid,
        "layers {} to {} of {} compiled in {} ms; runtime graph {:?}; weights {:?}",
        request.layers.0,
        request.layers.1,
        manifest.name,
        loaded.compile_ms,
        loaded.runtime_ops,
        loaded.weight_types,
    );
    let report = StageReport {
        name: shared.name.clone(),
        device: request.device,
        worker_pid: loaded.pid,
        weights_bytes: manifest.weights_bytes(layers),
        kv_bytes: loaded.kv_bytes,
        resident_bytes: crate::platform::resident_bytes(loaded.pid)
            .unwrap_or(loaded.resident_bytes),
        pulled_bytes: pulled.values().sum(),
        pulled_from: pulled.into_iter().collect(),
        compile_ms: loaded.compile_ms,
    };
    Ok((worker, report))
}

/// The stage's graph on disk; cut once and kept beside the store.
async fn cut(
    shared: &Arc<Shared>,
    model: ModelId,
    manifest: &Arc<Manifest>,
    layers: std::ops::Range<u32>,
) -> Result<PathBuf, String> {
    let folder = shared.options.home.stages_dir().join(model.to_string());
    let path = folder.join(format!("{}-{}.xml", layers.start, layers.end));
    if path.is_file() {
        return Ok(path);
    }
    let (store, manifest) = (shared.store.clone(), manifest.clone());
    tokio::task::spawn_blocking(move || {
        let blob = store.graph(model).map_err(|error| error.to_string())?;
        let xml = graph::stage_xml(&manifest, &blob, layers).map_err(|error| error.to_string())?;
        write_whole(&folder, &path, xml.as_bytes())
            .map_err(|error| format!("cannot keep the cut graph: {error}"))?;
        Ok(path)
    })
    .await
    .map_err(|error| error.to_string())?
}

/// Writes a file so that it is there whole or not at all.
fn write_whole(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut draft = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut draft, bytes)?;
    draft.as_file().sync_data()?;
    draft.persist(path)?;
    Ok(())
}
