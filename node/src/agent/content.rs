//! Manifests, tokenizers and segments: from the store, or from members that hold them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use skein_shards::hash::{Hash, ModelId};
use skein_shards::manifest::Manifest;
use skein_shards::store::StoreError;
use skein_shards::tokenizer::Tokenizer;
use skein_shards::transfer;
use tokio::sync::mpsc;

use super::{Agent, Shared};
use crate::error::{Code, Error, Result};
use crate::line::messages::{Phase, Progress};
use crate::local;

/// Name of the transfer protocol.
pub const BLOBS_PROTOCOL: &str = "/skein/blobs/1";
/// Progress is told at most this often.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Sources asked at once; more would only share one machine's link.
const SOURCES: usize = 8;

/// The model id of these bytes.
pub fn model_id(bytes: [u8; 32]) -> ModelId {
    ModelId(Hash(bytes))
}

/// The model that a person means: one in the store, or one that a member advertises.
pub fn resolve(shared: &Shared, query: &str) -> Result<ModelId> {
    match shared.store.find(query) {
        Ok(id) => return Ok(id),
        Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(local::models::store_error(error)),
    }
    let mut found = BTreeMap::new();
    for peer in shared.peers() {
        for held in peer.advert.iter().flat_map(|advert| &advert.body.held) {
            let id = model_id(held.model);
            let by_id = query.len() >= 4 && id.to_string().starts_with(&query.to_ascii_lowercase());
            if held.name == query || by_id {
                found.insert(id, held.name.clone());
            }
        }
    }
    match found.len() {
        0 => Err(Error::new(Code::NotFound, format_args!("no machine that is here has a model {query}"))
            .hint("`skein model ls` lists the models here, `skein peers` what others hold; `skein model add` imports one")),
        1 => Ok(*found.keys().next().unwrap_or(&model_id([0; 32]))),
        many => Err(Error::bad_input(format_args!("{many} models are called {query}"))
            .hint(format_args!(
                "say which by its id: {}",
                found.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ))),
    }
}

/// A model's manifest, with its graph and tokenizer in the store: fetched where they are missing, from `first` or
/// from any member that advertises the model.
pub async fn manifest(
    shared: &Arc<Shared>,
    model: ModelId,
    first: &[String],
) -> std::result::Result<Arc<Manifest>, String> {
    let complete = {
        let store = shared.store.clone();
        tokio::task::spawn_blocking(move || transfer::has_description(&store, model))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())?
    };
    if !complete {
        let sources = sources(shared, model, first);
        if sources.is_empty() {
            return Err(format!(
                "no member that is here holds the model {}",
                model.hash().short()
            ));
        }
        transfer::pull_description(&shared.store, model, &sources, opener(shared))
            .await
            .map_err(|error| format!("the model's description cannot be fetched: {error}"))?;
        shared.changed.notify_one();
    }
    shared
        .store
        .manifest(model)
        .map_err(|error| error.to_string())
}

/// Pulls what is missing of a range of layers and says how many segment bytes each peer gave.
pub async fn pull(
    shared: &Arc<Shared>,
    model: ModelId,
    manifest: &Arc<Manifest>,
    layers: Range<u32>,
    sources: &[String],
    progress: &mpsc::Sender<Progress>,
) -> std::result::Result<BTreeMap<String, u64>, String> {
    let segments = manifest.segments_for(layers);
    let missing = shared
        .store
        .missing_bytes(model, &segments)
        .map_err(|error| error.to_string())?;
    if missing == 0 {
        return Ok(BTreeMap::new());
    }
    if sources.is_empty() {
        return Err(format!(
            "{missing} bytes of {} are missing and no member that is here holds them",
            manifest.name
        ));
    }
    let mut told = Instant::now() - TELL_EVERY;
    let progress = progress.clone();
    let report = transfer::pull(
        &shared.store,
        model,
        &segments,
        sources,
        opener(shared),
        move |step| {
            if told.elapsed() >= TELL_EVERY || step.done == step.total {
                told = Instant::now();
                let _ = progress.try_send(Progress {
                    phase: Phase::Pulling,
                    done: step.done,
                    total: step.total,
                    from: Some(step.source.clone()),
                });
            }
        },
    )
    .await
    .map_err(|error| format!("its share of {} cannot be pulled: {error}", manifest.name))?;
    for (peer, reason) in &report.blamed {
        tracing::warn!(%peer, "left as a source: {reason}");
    }
    shared.changed.notify_one();
    Ok(report
        .bytes
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .collect())
}

/// Members that may hold something of the model, those in `first` before the others.
pub fn sources(shared: &Shared, model: ModelId, first: &[String]) -> Vec<String> {
    let mut sources: Vec<String> = first
        .iter()
        .filter(|peer| **peer != shared.peer)
        .cloned()
        .collect();
    for peer in shared.peers() {
        let Some(advert) = peer.advert.as_ref().filter(|_| peer.connected) else {
            continue;
        };
        let holds = advert
            .body
            .held
            .iter()
            .any(|held| held.model == *model.hash().as_bytes());
        let id = peer.peer.to_string();
        if holds && !sources.contains(&id) {
            sources.push(id);
        }
    }
    sources.truncate(SOURCES);
    sources
}

/// Opens a transfer stream to a source.
fn opener(
    shared: &Arc<Shared>,
) -> impl Fn(String) -> futures::future::BoxFuture<'static, std::io::Result<crate::line::hops::BoxIo>>
+ Send
+ Sync
+ 'static {
    let shared = shared.clone();
    move |peer: String| {
        let shared = shared.clone();
        Box::pin(async move {
            shared
                .open_stream(&peer, BLOBS_PROTOCOL)
                .await
                .map_err(std::io::Error::other)
        })
    }
}

/// Tokenizers in use: building one from its JSON takes a moment.
#[derive(Default)]
pub struct Tokenizers(Mutex<BTreeMap<ModelId, Arc<Tokenizer>>>);

impl Tokenizers {
    /// Drops a model's tokenizer.
    pub fn forget(&self, model: ModelId) {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .remove(&model);
    }
}

/// A model's tokenizer. The manifest must be in the store.
pub async fn tokenizer(shared: &Agent, model: ModelId) -> Result<Arc<Tokenizer>> {
    let known = shared
        .tokenizers
        .0
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .get(&model)
        .cloned();
    if let Some(tokenizer) = known {
        return Ok(tokenizer);
    }
    let store = shared.store.clone();
    let tokenizer = local::blocking(move || local::models::tokenizer(&store, model)).await?;
    let tokenizer = Arc::new(tokenizer);
    shared
        .tokenizers
        .0
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .insert(model, tokenizer.clone());
    Ok(tokenizer)
}
