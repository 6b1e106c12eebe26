//! Asking what is there, and the changes that concern a model as a whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk;
use super::error::StoreError;
use super::runs::Runs;
use super::tree;
use super::{GROUP_BYTES, Store, byte_count, group_count};
use crate::hash::{Hash, ModelId};
use crate::manifest::{Blob, Manifest};

/// Fewer digits would often be ambiguous, and are more likely a name mistyped.
const MIN_PREFIX: usize = 4;

/// The parts of a model that are fetched whole.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum BlobKind {
    Graph,
    Tokenizer,
}

impl BlobKind {
    /// What the manifest says of this blob.
    pub fn of(self, manifest: &Manifest) -> Blob {
        match self {
            Self::Graph => manifest.graph,
            Self::Tokenizer => manifest.tokenizer,
        }
    }

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Graph => "graph.bin",
            Self::Tokenizer => "tokenizer.json",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Graph => "the graph",
            Self::Tokenizer => "the tokenizer",
        }
    }
}

/// One model of a store.
#[derive(Clone, Debug)]
pub struct ModelSummary {
    pub id: ModelId,
    pub manifest: Arc<Manifest>,
    /// For each segment, whether all of it is held.
    pub held: Vec<bool>,
    /// Held bytes of segments.
    pub held_bytes: u64,
    /// Whether the graph and the tokenizer are held.
    pub blobs: bool,
}

pub(super) struct Models {
    pub capacity: Option<u64>,
    /// Bytes of imports that are not finished.
    pub importing: u64,
    pub entries: BTreeMap<ModelId, Entry>,
}

impl Models {
    pub fn used(&self) -> u64 {
        self.importing + self.entries.values().map(Entry::used).sum::<u64>()
    }

    /// Refuses to grow by `needed` bytes beyond the capacity.
    pub fn demand(&self, needed: u64) -> Result<(), StoreError> {
        let Some(capacity) = self.capacity else {
            return Ok(());
        };
        let available = capacity.saturating_sub(self.used());
        if needed > available {
            return Err(StoreError::NoSpace { needed, available });
        }
        Ok(())
    }
}

pub(super) struct Files {
    pub weights: File,
    pub outboard: File,
}

pub(super) struct Entry {
    pub manifest: Arc<Manifest>,
    manifest_bytes: u64,
    pub files: Arc<Files>,
    /// Where each segment's outboard starts.
    pub outboards: Arc<[u64]>,
    /// Groups of each segment that survive a crash.
    pub held: Vec<Runs>,
    /// Groups written but not yet synced.
    pub pending: Vec<Runs>,
    pub graph: bool,
    pub tokenizer: bool,
    pub pulling: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    /// Opens the files of a model whose folder has its manifest.
    pub fn open(dir: &Path, manifest: Manifest, held: Vec<Runs>) -> Result<Self, StoreError> {
        let mut outboards = Vec::with_capacity(manifest.segments.len());
        let mut outboard_bytes = 0;
        for segment in &manifest.segments {
            outboards.push(outboard_bytes);
            outboard_bytes += tree::tree(segment.size).outboard_size();
        }
        let files = Files {
            weights: disk::open_sparse(&dir.join(disk::WEIGHTS), manifest.weights_file_bytes())?,
            outboard: disk::open_sparse(&dir.join(disk::OUTBOARD), outboard_bytes)?,
        };
        let there = |kind: BlobKind| {
            fs::metadata(dir.join(kind.file()))
                .is_ok_and(|file| file.len() == kind.of(&manifest).size)
        };
        Ok(Self {
            manifest_bytes: manifest.encode().len() as u64,
            files: Arc::new(files),
            outboards: outboards.into(),
            held,
            pending: vec![Runs::default(); manifest.segments.len()],
            graph: there(BlobKind::Graph),
            tokenizer: there(BlobKind::Tokenizer),
            manifest: Arc::new(manifest),
            pulling: Arc::default(),
        })
    }

    fn blob_held(&mut self, kind: BlobKind) -> &mut bool {
        match kind {
            BlobKind::Graph => &mut self.graph,
            BlobKind::Tokenizer => &mut self.tokenizer,
        }
    }

    pub fn segment_held(&self, segment: usize) -> bool {
        let groups = group_count(self.manifest.segments[segment].size);
        self.held[segment].contains(&(0..groups))
    }

    fn all_held(&self) -> Vec<bool> {
        (0..self.held.len())
            .map(|segment| self.segment_held(segment))
            .collect()
    }

    fn used(&self) -> u64 {
        let mut used = self.manifest_bytes;
        for (there, kind) in [
            (self.graph, BlobKind::Graph),
            (self.tokenizer, BlobKind::Tokenizer),
        ] {
            if there {
                used += kind.of(&self.manifest).size;
            }
        }
        for (segment, (held, pending)) in self.held.iter().zip(&self.pending).enumerate() {
            let mut runs = held.clone();
            runs.extend(pending);
            used += runs
                .iter()
                .map(|run| disk_bytes(self.manifest.segments[segment].size, &run))
                .sum::<u64>();
        }
        used
    }

    fn held_bytes(&self) -> u64 {
        let bytes = |(segment, runs): (usize, &Runs)| -> u64 {
            let size = self.manifest.segments[segment].size;
            runs.iter().map(|run| byte_count(size, &run)).sum()
        };
        self.held.iter().enumerate().map(bytes).sum()
    }
}

/// What `groups` of a segment of `size` bytes take on disk, with their share of the outboard.
pub(super) fn disk_bytes(size: u64, groups: &std::ops::Range<u64>) -> u64 {
    byte_count(size, groups) + (groups.end - groups.start) * (GROUP_BYTES / 256)
}

impl Store {
    /// Every model, by id.
    pub fn models(&self) -> Vec<ModelSummary> {
        let summary = |(id, entry): (&ModelId, &Entry)| ModelSummary {
            id: *id,
            manifest: entry.manifest.clone(),
            held: entry.all_held(),
            held_bytes: entry.held_bytes(),
            blobs: entry.graph && entry.tokenizer,
        };
        self.lock_models().entries.iter().map(summary).collect()
    }

    /// The model with this name, or whose id starts with these hex digits (at least four).
    pub fn find(&self, query: &str) -> Result<ModelId, StoreError> {
        let models = self.lock_models();
        let named = |matches: &dyn Fn(&ModelId, &Entry) -> bool| -> Vec<(ModelId, String)> {
            models
                .entries
                .iter()
                .filter(|(id, entry)| matches(id, entry))
                .map(|(id, entry)| (*id, entry.manifest.name.clone()))
                .collect()
        };
        let mut matches = named(&|_, entry| entry.manifest.name == query);
        if matches.is_empty() && query.len() >= MIN_PREFIX {
            let prefix = query.to_ascii_lowercase();
            matches = named(&|id, _| id.to_string().starts_with(&prefix));
        }
        match matches[..] {
            [] => Err(StoreError::NotFound(query.to_owned())),
            [(id, _)] => Ok(id),
            _ => Err(StoreError::Ambiguous {
                query: query.to_owned(),
                matches,
            }),
        }
    }

    pub fn manifest(&self, id: ModelId) -> Result<Arc<Manifest>, StoreError> {
        self.with(id, |entry| entry.manifest.clone())
    }

    /// Takes in a model known only by its manifest, of which nothing is held yet. A model that is
    /// already here stays as it is.
    pub fn put_manifest(&self, bytes: &[u8]) -> Result<ModelId, StoreError> {
        let manifest = Manifest::decode(bytes)?;
        let id = ModelId(Hash::of(bytes));
        let _commit = self.committing();
        {
            let models = self.lock_models();
            if models.entries.contains_key(&id) {
                return Ok(id);
            }
            models.demand(bytes.len() as u64)?;
        }
        let dir = self.model_dir(id);
        let segments = manifest.segments.len();
        let (entry, held) = if dir.exists() {
            // A folder whose own manifest was unreadable; its data may well be good.
            disk::write_file(&dir.join(disk::MANIFEST), bytes)?;
            let mut entry = Entry::open(&dir, manifest, vec![Runs::default(); segments])?;
            entry.held = super::verified::valid_groups(&entry)?;
            let held = entry.held.clone();
            (entry, held)
        } else {
            let held = vec![Runs::default(); segments];
            let fresh = disk::new_dir(&self.0.layout.imports())?;
            // Files that cannot be made, for example because they would be larger than the file
            // system allows, must not leave a model behind that cannot be opened.
            let made = disk::write_file(&fresh.join(disk::MANIFEST), bytes)
                .and_then(|()| Entry::open(&fresh, manifest.clone(), held.clone()).map(drop))
                .and_then(|()| fs::rename(&fresh, &dir).map_err(StoreError::io(&dir)));
            if let Err(error) = made {
                let _ = fs::remove_dir_all(&fresh);
                return Err(error);
            }
            disk::sync_dir(&self.0.layout.models())?;
            (Entry::open(&dir, manifest, held.clone())?, held)
        };
        self.0.state.put(id, segments, held.iter().enumerate())?;
        self.lock_models().entries.insert(id, entry);
        Ok(id)
    }

    /// Whether the blob is here; reading it may still find it damaged.
    pub fn has_blob(&self, id: ModelId, kind: BlobKind) -> Result<bool, StoreError> {
        self.with(id, |entry| *entry.blob_held(kind))
    }

    /// A blob's bytes, checked against the manifest. A damaged one is given up.
    pub fn blob(&self, id: ModelId, kind: BlobKind) -> Result<Vec<u8>, StoreError> {
        let (expected, there) = self.with(id, |entry| {
            (kind.of(&entry.manifest), *entry.blob_held(kind))
        })?;
        if !there {
            let what = kind.name().to_owned();
            return Err(StoreError::NotHeld { model: id, what });
        }
        let path = self.model_dir(id).join(kind.file());
        let bytes = fs::read(&path).map_err(StoreError::io(&path))?;
        if Blob::of(&bytes) == expected {
            return Ok(bytes);
        }
        self.with(id, |entry| *entry.blob_held(kind) = false)?;
        let what = kind.name().to_owned();
        Err(StoreError::Damaged {
            model: id,
            what,
            bytes: bytes.len() as u64,
        })
    }

    /// The compressed whole-model graph.
    pub fn graph(&self, id: ModelId) -> Result<Vec<u8>, StoreError> {
        self.blob(id, BlobKind::Graph)
    }

    /// The tokenizer's JSON.
    pub fn tokenizer(&self, id: ModelId) -> Result<Vec<u8>, StoreError> {
        self.blob(id, BlobKind::Tokenizer)
    }

    /// Takes in a blob, durably, if it is what the manifest promises.
    pub fn put_blob(&self, id: ModelId, kind: BlobKind, bytes: &[u8]) -> Result<(), StoreError> {
        let _commit = self.committing();
        let expected = self.with(id, |entry| kind.of(&entry.manifest))?;
        if Blob::of(bytes) != expected {
            let what = kind.name().to_owned();
            return Err(StoreError::Mismatch { model: id, what });
        }
        if self.has_blob(id, kind)? {
            return Ok(());
        }
        self.lock_models().demand(bytes.len() as u64)?;
        disk::write_file(&self.model_dir(id).join(kind.file()), bytes)?;
        self.with(id, |entry| *entry.blob_held(kind) = true)
    }

    /// The sparse model-wide weights file: segments at their canonical offsets, of which only held
    /// groups have meaning.
    pub fn weights_path(&self, id: ModelId) -> Result<PathBuf, StoreError> {
        self.with(id, |_| ())?;
        Ok(self.model_dir(id).join(disk::WEIGHTS))
    }

    /// For each segment, whether all of it is held.
    pub fn held(&self, id: ModelId) -> Result<Vec<bool>, StoreError> {
        self.with(id, |entry| entry.all_held())
    }

    /// The held groups of each segment.
    pub fn held_groups(&self, id: ModelId) -> Result<Vec<Runs>, StoreError> {
        self.with(id, |entry| entry.held.clone())
    }

    /// The groups of a segment that are not held.
    pub fn missing_groups(&self, id: ModelId, segment: usize) -> Result<Runs, StoreError> {
        self.with(id, |entry| {
            let segment = segment_of(id, entry, segment)?;
            let groups = group_count(entry.manifest.segments[segment].size);
            Ok(entry.held[segment].missing(&(0..groups)))
        })?
    }

    /// Bytes of these segments that are not held.
    pub fn missing_bytes(&self, id: ModelId, segments: &[usize]) -> Result<u64, StoreError> {
        let manifest = self.manifest(id)?;
        let mut missing = 0;
        for segment in segments {
            let runs = self.missing_groups(id, *segment)?;
            let size = manifest.segments[*segment].size;
            missing += runs.iter().map(|run| byte_count(size, &run)).sum::<u64>();
        }
        Ok(missing)
    }

    /// Removes a model and everything of it; the bytes that this freed.
    pub fn remove(&self, id: ModelId) -> Result<u64, StoreError> {
        let _commit = self.committing();
        let freed = self.with(id, |entry| entry.used())?;
        let trash = disk::new_dir(&self.0.layout.trash())?;
        let dir = self.model_dir(id);
        let gone = trash.join("model");
        // From this rename on the model is gone, whatever happens next.
        fs::rename(&dir, &gone).map_err(StoreError::io(&dir))?;
        self.lock_models().entries.remove(&id);
        disk::sync_dir(&self.0.layout.models())?;
        self.0.state.remove(id)?;
        fs::remove_dir_all(&trash).map_err(StoreError::io(&trash))?;
        Ok(freed)
    }

    /// The right to pull into this model; two pulls at once would fetch the same bytes twice.
    pub(crate) fn pulling(&self, id: ModelId) -> Result<Arc<tokio::sync::Mutex<()>>, StoreError> {
        self.with(id, |entry| entry.pulling.clone())
    }
}

pub(super) fn segment_of(
    model: ModelId,
    entry: &Entry,
    segment: usize,
) -> Result<usize, StoreError> {
    if segment < entry.manifest.segments.len() {
        return Ok(segment);
    }
    Err(StoreError::OutOfRange {
        model,
        what: format!("segment {segment}"),
    })
}
