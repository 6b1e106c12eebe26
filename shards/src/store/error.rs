//! What can go wrong in a store, in the words of the one who asked.

use std::io;
use std::path::{Path, PathBuf};

use crate::hash::ModelId;
use crate::manifest::ManifestError;

/// Why a store refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has this folder open.
    #[error("the store {} is in use by {}", dir.display(), holder(*.pid))]
    Locked { dir: PathBuf, pid: Option<u32> },
    #[error("no model here is called {0}")]
    NotFound(String),
    /// More than one model answers to the name or prefix.
    #[error("{query} names several models: {}", listed(.matches))]
    Ambiguous {
        query: String,
        matches: Vec<(ModelId, String)>,
    },
    /// The store's own limit would be passed.
    #[error("the store needs {needed} more bytes and may take {available} more")]
    NoSpace { needed: u64, available: u64 },
    /// The file system refused to take more.
    #[error("the disk is full at {}", .0.display())]
    DiskFull(PathBuf),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Bytes do not hash to what the manifest promises.
    #[error("{what} of model {} does not match its hash", model.0.short())]
    Mismatch { model: ModelId, what: String },
    /// Segment or group numbers outside the model.
    #[error("model {} has no such range: {what}", model.0.short())]
    OutOfRange { model: ModelId, what: String },
    /// Part of the asked range, or the blob, is not held.
    #[error("{what} of model {} is not held here", model.0.short())]
    NotHeld { model: ModelId, what: String },
    /// Held data turned out to be damaged on disk; the damaged part is no longer counted as held.
    #[error("{bytes} bytes of {what} of model {} were damaged on disk and were given up", model.0.short())]
    Damaged {
        model: ModelId,
        what: String,
        bytes: u64,
    },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the store's state file: {0}")]
    State(String),
}

impl StoreError {
    /// An I/O error at `path`; a full disk becomes [`StoreError::DiskFull`].
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull(path.to_owned())
            }
            _ => Self::Io {
                path: path.to_owned(),
                source,
            },
        }
    }

    pub(crate) fn state(error: impl std::fmt::Display) -> Self {
        Self::State(error.to_string())
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

fn listed(matches: &[(ModelId, String)]) -> String {
    let names: Vec<_> = matches
        .iter()
        .map(|(id, name)| format!("{name} ({})", id.0.short()))
        .collect();
    names.join(", ")
}
