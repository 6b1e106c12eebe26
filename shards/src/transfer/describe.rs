//! Learning of a model from a peer: its manifest, its graph and its tokenizer.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::client::Link;
use super::wire::Request;
use super::{Blame, Patience, PullError, PullReport, blocking};
use crate::hash::{Hash, ModelId};
use crate::manifest::{MAX_MANIFEST_BYTES, Manifest};
use crate::store::{BlobKind, Store, StoreError};

/// Whether the store has the manifest, the graph and the tokenizer of a model.
pub fn has_description(store: &Store, id: ModelId) -> Result<bool, StoreError> {
    if matches!(store.manifest(id), Err(StoreError::NotFound(_))) {
        return Ok(false);
    }
    Ok(store.has_blob(id, BlobKind::Graph)? && store.has_blob(id, BlobKind::Tokenizer)?)
}

/// Makes sure that the store has the manifest, the graph and the tokenizer of a model, asking one
/// source after the other for what is missing. Returns the manifest and the sources that failed.
pub async fn pull_description<P, S, E, F>(
    store: &Store,
    id: ModelId,
    sources: &[P],
    open: impl Fn(P) -> F,
) -> Result<(Arc<Manifest>, PullReport<P>), PullError<P>>
where
    P: Clone + Ord + Debug,
    S: AsyncRead + AsyncWrite + Send,
    E: Display,
    F: Future<Output = Result<S, E>>,
{
    let patience = Patience::default();
    let mut report = PullReport::default();
    let mut sources = sources.iter();
    while !has_description(store, id)? {
        let Some(source) = sources.next() else {
            return Err(PullError::Incomplete {
                missing: "the model's description".to_owned(),
                report,
            });
        };
        match describe_from(store, id, open(source.clone()), patience).await {
            Ok(()) => {}
            Err(Failure::Source(blame)) => report.blamed.push((source.clone(), blame)),
            Err(Failure::Store(error)) => return Err(error.into()),
        }
    }
    Ok((store.manifest(id)?, report))
}

enum Failure {
    Source(Blame),
    Store(StoreError),
}

impl From<Blame> for Failure {
    fn from(blame: Blame) -> Self {
        Self::Source(blame)
    }
}

async fn describe_from<S, E, F>(
    store: &Store,
    id: ModelId,
    opening: F,
    patience: Patience,
) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Send,
    E: Display,
    F: Future<Output = Result<S, E>>,
{
    let mut link = Link::open(opening, patience).await?;
    let manifest = match store.manifest(id) {
        Ok(manifest) => manifest,
        Err(_) => {
            let request = Request::Manifest { model: id };
            let bytes = link.body(request, MAX_MANIFEST_BYTES as u64).await?;
            if ModelId(Hash::of(&bytes)) != id {
                let what = "a manifest of another model".to_owned();
                return Err(Blame::BadData(what).into());
            }
            let target = store.clone();
            match blocking(move || target.put_manifest(&bytes)).await {
                Ok(_) => {}
                // It hashes to what we asked for, so the id itself is of something unusable.
                Err(StoreError::Manifest(error)) => {
                    return Err(Blame::BadData(error.to_string()).into());
                }
                Err(error) => return Err(Failure::Store(error)),
            }
            store.manifest(id).map_err(Failure::Store)?
        }
    };
    for kind in [BlobKind::Graph, BlobKind::Tokenizer] {
        if store.has_blob(id, kind).map_err(Failure::Store)? {
            continue;
        }
        let request = Request::Blob { model: id, kind };
        let bytes = link.body(request, kind.of(&manifest).size).await?;
        let target = store.clone();
        match blocking(move || target.put_blob(id, kind, &bytes)).await {
            Ok(()) => {}
            Err(error @ StoreError::Mismatch { .. }) => {
                return Err(Blame::BadData(error.to_string()).into());
            }
            Err(error) => return Err(Failure::Store(error)),
        }
    }
    link.close().await;
    Ok(())
}
