//! Writing a new model: segments one after the other, hashed on the way.
//!
//! Nothing of an import is visible before [`Import::finish`]; one that is dropped, or whose process
//! is killed, leaves nothing but a folder that the next open clears away.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use super::disk;
use super::error::StoreError;
use super::models::{BlobKind, Entry, disk_bytes};
use super::runs::Runs;
use super::tree::SegmentHasher;
use super::{GROUP_BYTES, Store, group_count};
use crate::hash::{Hash, ModelId};
use crate::manifest::{Blob, Manifest, SEGMENT_ALIGNMENT};

const WRITE_BUFFER: usize = 1 << 20;

/// A model being written.
pub struct Import {
    store: Store,
    dir: PathBuf,
    weights: BufWriter<File>,
    outboard: BufWriter<File>,
    /// Bytes in the weights file.
    position: u64,
    written: Vec<WrittenSegment>,
    /// What this import counts for in the store's use of space.
    reserved: u64,
    finished: bool,
}

/// A finished segment: what its entry in the manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenSegment {
    /// Where it starts in the weights file.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    pub hash: Hash,
}

/// A segment being written; also an [`io::Write`].
pub struct SegmentWriter<'a> {
    import: &'a mut Import,
    offset: u64,
    hasher: SegmentHasher,
    pairs: Vec<u8>,
}

impl Store {
    /// Begins to write a new model.
    pub fn begin_import(&self) -> Result<Import, StoreError> {
        let dir = disk::new_dir(&self.0.layout.imports())?;
        let create = |name: &str| {
            let path = dir.join(name);
            File::create(&path)
                .map(|file| BufWriter::with_capacity(WRITE_BUFFER, file))
                .map_err(StoreError::io(&path))
        };
        Ok(Import {
            store: self.clone(),
            weights: create(disk::WEIGHTS)?,
            outboard: create(disk::OUTBOARD)?,
            dir,
            position: 0,
            written: Vec::new(),
            reserved: 0,
            finished: false,
        })
    }
}

impl Import {
    /// Begins the next segment, at the next multiple of [`SEGMENT_ALIGNMENT`].
    pub fn segment(&mut self) -> Result<SegmentWriter<'_>, StoreError> {
        let offset = self.position.next_multiple_of(SEGMENT_ALIGNMENT);
        let gap = vec![0; (offset - self.position) as usize];
        self.append(&gap)?;
        Ok(SegmentWriter {
            import: self,
            offset,
            hasher: SegmentHasher::default(),
            pairs: Vec::new(),
        })
    }

    /// The segments finished so far.
    pub fn segments(&self) -> &[WrittenSegment] {
        &self.written
    }

    /// Writes the compressed whole-model graph.
    pub fn graph(&mut self, bytes: &[u8]) -> Result<Blob, StoreError> {
        self.blob(BlobKind::Graph, bytes)
    }

    /// Writes the tokenizer's JSON.
    pub fn tokenizer(&mut self, bytes: &[u8]) -> Result<Blob, StoreError> {
        self.blob(BlobKind::Tokenizer, bytes)
    }

    /// Makes the model durable and visible. The manifest must name exactly the segments and blobs
    /// that were written. A model that is already held in whole stays as it is.
    pub fn finish(mut self, manifest: &Manifest) -> Result<ModelId, StoreError> {
        let bytes = manifest.encode();
        let manifest = Manifest::decode(&bytes)?;
        let id = ModelId(Hash::of(&bytes));
        self.check(id, &manifest)?;
        for (name, file) in [
            (disk::WEIGHTS, &mut self.weights),
            (disk::OUTBOARD, &mut self.outboard),
        ] {
            file.flush()
                .and_then(|()| file.get_ref().sync_all())
                .map_err(StoreError::io(&self.dir.join(name)))?;
        }
        disk::write_file(&self.dir.join(disk::MANIFEST), &bytes)?;

        let store = self.store.clone();
        let _commit = store.committing();
        let whole = store.with(id, |entry| {
            entry.graph
                && entry.tokenizer
                && (0..entry.held.len()).all(|segment| entry.segment_held(segment))
        });
        if matches!(whole, Ok(true)) {
            return Ok(id);
        }
        let target = store.model_dir(id);
        let mut trash = None;
        if target.exists() {
            let dir = disk::new_dir(&store.0.layout.trash())?;
            fs::rename(&target, dir.join("model")).map_err(StoreError::io(&target))?;
            trash = Some(dir);
        }
        fs::rename(&self.dir, &target).map_err(StoreError::io(&target))?;
        self.finished = true;
        disk::sync_dir(&store.0.layout.models())?;
        let held: Vec<_> = manifest
            .segments
            .iter()
            .map(|segment| Runs::all(group_count(segment.size)))
            .collect();
        store.0.state.put(id, held.len(), held.iter().enumerate())?;
        let entry = Entry::open(&target, manifest, held)?;
        let mut models = store.lock_models();
        models.importing -= std::mem::take(&mut self.reserved);
        models.entries.insert(id, entry);
        drop(models);
        if let Some(dir) = trash {
            fs::remove_dir_all(&dir).map_err(StoreError::io(&dir))?;
        }
        Ok(id)
    }

    fn check(&self, id: ModelId, manifest: &Manifest) -> Result<(), StoreError> {
        let claimed = manifest.segments.iter().map(|segment| WrittenSegment {
            offset: segment.offset,
            size: segment.size,
            hash: segment.hash,
        });
        let mismatch = |what: &str| StoreError::Mismatch {
            model: id,
            what: what.to_owned(),
        };
        if !claimed.eq(self.written.iter().copied()) {
            return Err(mismatch("the list of segments"));
        }
        for kind in [BlobKind::Graph, BlobKind::Tokenizer] {
            let path = self.dir.join(kind.file());
            let bytes = fs::read(&path).map_err(StoreError::io(&path))?;
            if Blob::of(&bytes) != kind.of(manifest) {
                return Err(mismatch(kind.name()));
            }
        }
        Ok(())
    }

    fn blob(&mut self, kind: BlobKind, bytes: &[u8]) -> Result<Blob, StoreError> {
        self.reserve(bytes.len() as u64)?;
        disk::write_file(&self.dir.join(kind.file()), bytes)?;
        Ok(Blob::of(bytes))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let groups = 0..group_count(bytes.len() as u64);
        self.reserve(disk_bytes(bytes.len() as u64, &groups))?;
        self.weights
            .write_all(bytes)
            .map_err(StoreError::io(&self.dir.join(disk::WEIGHTS)))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), StoreError> {
        let mut models = self.store.lock_models();
        models.demand(bytes)?;
        models.importing += bytes;
        self.reserved += bytes;
        Ok(())
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        self.store.lock_models().importing -= self.reserved;
        if !self.finished {
            // What cannot be removed now is removed at the next open.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

impl SegmentWriter<'_> {
    /// Where the segment starts in the weights file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the next byte will be in the weights file.
    pub fn position(&self) -> u64 {
        self.import.position
    }

    /// Adds the next bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        for bytes in bytes.chunks(64 * GROUP_BYTES as usize) {
            self.import.append(bytes)?;
            self.hasher.update(bytes, &mut self.pairs);
            self.flush_pairs()?;
        }
        Ok(())
    }

    /// Adds zero bytes up to the next multiple of `alignment` in the weights file.
    pub fn align(&mut self, alignment: u64) -> Result<(), StoreError> {
        let position = self.position();
        let gap = position.next_multiple_of(alignment) - position;
        self.append(&vec![0; gap as usize])
    }

    /// Ends the segment.
    pub fn finish(mut self) -> Result<WrittenSegment, StoreError> {
        let hasher = std::mem::take(&mut self.hasher);
        let hash = hasher.finish(&mut self.pairs);
        self.flush_pairs()?;
        let segment = WrittenSegment {
            offset: self.offset,
            size: self.position() - self.offset,
            hash,
        };
        self.import.written.push(segment);
        Ok(segment)
    }

    fn flush_pairs(&mut self) -> Result<(), StoreError> {
        let path = || self.import.dir.join(disk::OUTBOARD);
        let result = self.import.outboard.write_all(&self.pairs);
        self.pairs.clear();
        result.map_err(|error| StoreError::io(&path())(error))
    }
}

impl Write for SegmentWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(|error| match error {
            StoreError::Io { source, .. } => source,
            full @ (StoreError::NoSpace { .. } | StoreError::DiskFull(_)) => {
                io::Error::new(io::ErrorKind::StorageFull, full)
            }
            other => io::Error::other(other),
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
