//! Models on disk: which there are, and which groups of their segments are held.
//!
//! A store is one folder that one process at a time has open. Data comes in by importing
//! ([`Store::begin_import`]) or group by group from peers ([`Store::write_groups`]), always against
//! a manifest, and goes out verified ([`Store::encode_groups`]), so that damage on disk is found by
//! its holder before a peer sees it. The order on disk is: data and outboard, then the state file;
//! what the state file calls held survives a crash, what it does not is fetched again.
//!
//! All methods block on the disk; async callers use a blocking thread (`transfer` does). A `Store`
//! is a handle: clones share the same folder and may be used from any thread.
//!
//! Not here: peers and wire formats (`transfer`), and what the segments mean (`graph`).

mod disk;
mod error;
mod import;
mod models;
mod open;
mod runs;
mod state;
mod tree;
mod verified;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use error::StoreError;
pub use import::{Import, SegmentWriter, WrittenSegment};
pub use models::{BlobKind, ModelSummary};
pub use runs::Runs;
pub use tree::{GROUP_BYTES, byte_count, byte_range, group_count};
pub use verified::{Accepted, Verified};

use crate::hash::ModelId;
use disk::Layout;
use models::{Entry, Models};
use state::State;

/// A handle to an open store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    layout: Layout,
    state: State,
    models: Mutex<Models>,
    /// Held while durable state changes, so that an older view never overwrites a newer one.
    /// Taken before `models`.
    commit: Mutex<()>,
    notes: Vec<String>,
    /// The lock on the folder lives as long as this file is open.
    _lock: File,
}

impl Store {
    /// What was found amiss and done about it when the store was opened, in sentences for people.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The folder.
    pub fn dir(&self) -> &std::path::Path {
        &self.0.layout.0
    }

    /// Bounds what the store may take, in bytes; `None` leaves it to the disk. What is already
    /// there stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock_models().capacity = bytes;
    }

    /// The bound set by [`Store::set_capacity`].
    pub fn capacity(&self) -> Option<u64> {
        self.lock_models().capacity
    }

    /// Bytes taken by manifests, blobs, held groups with their share of the outboard, and imports
    /// under way.
    pub fn used_bytes(&self) -> u64 {
        self.lock_models().used()
    }

    fn lock_models(&self) -> MutexGuard<'_, Models> {
        // The maps are consistent between statements, so a panicking thread does not spoil them.
        self.0.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committing(&self) -> MutexGuard<'_, ()> {
        self.0.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn model_dir(&self, id: ModelId) -> PathBuf {
        self.0.layout.models().join(id.to_string())
    }

    /// A view of one model for the length of `look`.
    fn with<T>(&self, id: ModelId, look: impl FnOnce(&mut Entry) -> T) -> Result<T, StoreError> {
        self.lock_models()
            .entries
            .get_mut(&id)
            .map(look)
            .ok_or_else(|| StoreError::NotFound(id.to_string()))
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
