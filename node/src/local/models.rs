//! The models in a store, as the command line speaks of them.

use skein_shards::{
    hash::ModelId,
    store::{ModelSummary, Store, StoreError},
};

use super::blocking;
use crate::{
    error::{Code, Error, Result},
    objects,
};

/// Every model in the store, by name.
pub fn list(store: &Store) -> Vec<objects::Model> {
    let mut models: Vec<_> = store.models().iter().map(describe).collect();
    models.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    models
}

/// One model, by name, id or start of an id.
pub fn show(store: &Store, model: &str) -> Result<objects::Model> {
    Ok(describe(&find(store, model)?))
}

/// Removes a model and everything of it from this machine. The caller sees to it that no line uses
/// it.
pub async fn remove(store: Store, model: String) -> Result<objects::Removed> {
    blocking(move || {
        let found = find(&store, &model)?;
        let freed_bytes = store.remove(found.id).map_err(store_error)?;
        Ok(objects::Removed {
            id: found.id.to_string(),
            name: found.manifest.name.clone(),
            freed_bytes,
        })
    })
    .await
}

/// The model that a person means.
pub fn resolve(store: &Store, model: &str) -> Result<ModelId> {
    store.find(model).map_err(store_error)
}

/// A store's refusal in the command line's words.
pub fn store_error(error: StoreError) -> Error {
    match &error {
        StoreError::NotFound(_) => {
            Error::new(Code::NotFound, error).hint("`skein model ls` lists the models here")
        }
        StoreError::Ambiguous { .. } => {
            Error::new(Code::BadInput, error).hint("give more of the id")
        }
        StoreError::Locked { .. } => {
            Error::failed(error).hint("wait for it to end; only one process uses a store")
        }
        StoreError::NoSpace { .. } => Error::failed(error)
            .hint("remove a model with `skein model rm`, or raise the agent's --disk"),
        StoreError::DiskFull(_) => {
            Error::failed(error).hint("free some space, or remove a model with `skein model rm`")
        }
        _ => Error::failed(error),
    }
}

fn find(store: &Store, model: &str) -> Result<ModelSummary> {
    let id = resolve(store, model)?;
    let gone = || store_error(StoreError::NotFound(model.to_owned()));
    store
        .models()
        .into_iter()
        .find(|summary| summary.id == id)
        .ok_or_else(gone)
}

fn describe(summary: &ModelSummary) -> objects::Model {
    let manifest = &summary.manifest;
    objects::Model {
        id: summary.id.to_string(),
        name: manifest.name.clone(),
        family: manifest.family.clone(),
        layers: manifest.layers,
        hidden: manifest.hidden,
        vocab: manifest.vocab,
        context: manifest.context,
        weights: manifest.weights.clone(),
        bytes: manifest.segments.iter().map(|segment| segment.size).sum(),
        segments: manifest
            .segments
            .iter()
            .zip(&summary.held)
            .map(|(segment, held)| objects::Segment {
                name: segment.name.clone(),
                bytes: segment.size,
                hash: segment.hash.to_string(),
                held: *held,
            })
            .collect(),
        stop_ids: manifest.stop_ids.clone(),
        license: manifest.license.clone(),
        source: Some(manifest.source.file.clone()),
    }
}
