//! Groups in and out, each checked against the segment's hash.

use std::ops::Range;
use std::sync::Arc;

use bao_tree::ChunkRanges;
use bao_tree::io::sync::{DecodeResponseIter, OutboardMut, encode_ranges_validated, valid_ranges};
use bao_tree::io::{BaoContentItem, EncodeError};

use super::models::{Entry, Files, disk_bytes, segment_of};
use super::runs::Runs;
use super::tree::{SegmentData, SegmentOutboard, chunk_ranges, groups_of, tree};
use super::{Store, StoreError, byte_count, disk, group_count};
use crate::hash::ModelId;
use crate::manifest::Segment;

/// What became of encoded groups from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Segment bytes that verified and were not here before.
    pub bytes: u64,
    /// Whether all of the answer was what had been asked for. If not, the groups before the first
    /// wrong one were kept.
    pub intact: bool,
}

/// What hashing the held groups of a segment came to, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    pub good: u64,
    /// Given up: no longer held, to be fetched again.
    pub damaged: u64,
}

/// One segment's place in a model's files.
struct Place {
    files: Arc<Files>,
    outboard: u64,
    segment: Segment,
}

impl Place {
    fn of(entry: &Entry, segment: usize) -> Self {
        Self {
            files: entry.files.clone(),
            outboard: entry.outboards[segment],
            segment: entry.manifest.segments[segment].clone(),
        }
    }

    fn data(&self) -> SegmentData<'_> {
        SegmentData {
            file: &self.files.weights,
            offset: self.segment.offset,
        }
    }

    fn outboard(&self) -> SegmentOutboard<'_> {
        SegmentOutboard {
            file: &self.files.outboard,
            offset: self.outboard,
            root: self.segment.hash,
            size: self.segment.size,
        }
    }

    /// The groups among `ranges` whose data on disk verifies.
    fn valid(&self, ranges: &ChunkRanges) -> std::io::Result<Runs> {
        let mut valid = Runs::default();
        for range in valid_ranges(self.outboard(), self.data(), ranges) {
            valid.insert(groups_of(self.segment.size, &range?));
        }
        Ok(valid)
    }

    fn bytes(&self, runs: &Runs) -> u64 {
        let size = self.segment.size;
        runs.iter().map(|run| byte_count(size, &run)).sum()
    }
}

/// The groups of every segment of a model whose data on disk verifies.
pub(super) fn valid_groups(entry: &Entry) -> Result<Vec<Runs>, StoreError> {
    let valid = |segment| {
        let place = Place::of(entry, segment);
        place.valid(&ChunkRanges::all())
    };
    (0..entry.manifest.segments.len())
        .map(valid)
        .collect::<std::io::Result<_>>()
        .map_err(StoreError::io(disk::WEIGHTS.as_ref()))
}

impl Store {
    /// The bao encoding of `groups` of a segment: in pre-order, the pairs of hashes on the way to
    /// them and the groups' bytes. All of them must be held; every byte is checked before it is
    /// given out, and damage found on the way is [`StoreError::Damaged`].
    pub fn encode_groups(
        &self,
        id: ModelId,
        segment: usize,
        groups: Range<u64>,
    ) -> Result<Vec<u8>, StoreError> {
        let (place, held) = self.with(id, |entry| {
            let segment = segment_of(id, entry, segment)?;
            let place = Place::of(entry, segment);
            check_range(id, &place.segment, &groups)?;
            Ok::<_, StoreError>((place, entry.held[segment].contains(&groups)))
        })??;
        let what = || format!("groups {groups:?} of {}", place.segment.name);
        if !held {
            return Err(StoreError::NotHeld {
                model: id,
                what: what(),
            });
        }
        let size = byte_count(place.segment.size, &groups);
        let mut encoded = Vec::with_capacity(size as usize + size as usize / 128 + 4096);
        let ranges = chunk_ranges(&groups);
        match encode_ranges_validated(place.data(), place.outboard(), &ranges, &mut encoded) {
            Ok(()) => Ok(encoded),
            Err(EncodeError::Io(error)) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                Err(StoreError::io(&self.model_dir(id))(error))
            }
            Err(_) => {
                let bytes = self.give_up_damaged(id, segment, &groups)?.damaged;
                Err(StoreError::Damaged {
                    model: id,
                    what: what(),
                    bytes,
                })
            }
        }
    }

    /// Checks and writes the encoding of `groups` of a segment, as [`Store::encode_groups`] makes
    /// it. What is written counts as held only after [`Store::sync`].
    pub fn write_groups(
        &self,
        id: ModelId,
        segment: usize,
        groups: Range<u64>,
        encoded: &[u8],
    ) -> Result<Accepted, StoreError> {
        let place = {
            let mut models = self.lock_models();
            let entry = models
                .entries
                .get_mut(&id)
                .ok_or_else(|| StoreError::NotFound(id.to_string()))?;
            let index = segment_of(id, entry, segment)?;
            let place = Place::of(entry, index);
            check_range(id, &place.segment, &groups)?;
            let needed: u64 = missing(entry, index, &groups)
                .iter()
                .map(|run| disk_bytes(place.segment.size, &run))
                .sum();
            models.demand(needed)?;
            place
        };
        let mut written = Runs::default();
        let intact = self.write_verified(&place, id, &groups, encoded, &mut written)?;
        let bytes = self.with(id, |entry| {
            // A model that was removed and came back meanwhile has other files.
            if !Arc::ptr_eq(&entry.files, &place.files) {
                return 0;
            }
            let fresh: Vec<_> = written
                .iter()
                .flat_map(|run| missing(entry, segment, &run).iter().collect::<Vec<_>>())
                .collect();
            entry.pending[segment].extend(&written);
            place.bytes(&fresh.into_iter().collect())
        })?;
        Ok(Accepted { bytes, intact })
    }

    /// Whether all of `encoded` verified; `written` gets the groups that did.
    fn write_verified(
        &self,
        place: &Place,
        id: ModelId,
        groups: &Range<u64>,
        mut encoded: &[u8],
        written: &mut Runs,
    ) -> Result<bool, StoreError> {
        let dir = self.model_dir(id);
        let size = place.segment.size;
        let root = place.segment.hash.into();
        let ranges = chunk_ranges(groups);
        let mut outboard = place.outboard();
        for item in DecodeResponseIter::new(root, tree(size), &mut encoded, &ranges) {
            match item {
                Ok(BaoContentItem::Parent(parent)) => outboard
                    .save(parent.node, &parent.pair)
                    .map_err(StoreError::io(&dir))?,
                Ok(BaoContentItem::Leaf(leaf)) => {
                    let position = place.segment.offset + leaf.offset;
                    disk::write_all_at(&place.files.weights, position, &leaf.data)
                        .map_err(StoreError::io(&dir))?;
                    let first = leaf.offset / super::GROUP_BYTES;
                    written.insert(first..first + group_count(leaf.data.len() as u64));
                }
                Err(_) => return Ok(false),
            }
        }
        Ok(encoded.is_empty())
    }

    /// Makes everything written to this model so far durable, and held.
    pub fn sync(&self, id: ModelId) -> Result<(), StoreError> {
        let _commit = self.committing();
        let (files, pending) =
            self.with(id, |entry| (entry.files.clone(), entry.pending.clone()))?;
        if pending.iter().all(Runs::is_empty) {
            return Ok(());
        }
        let dir = self.model_dir(id);
        files.weights.sync_data().map_err(StoreError::io(&dir))?;
        files.outboard.sync_data().map_err(StoreError::io(&dir))?;
        let held = self.with(id, |entry| {
            let mut held = entry.held.clone();
            for (held, pending) in held.iter_mut().zip(&pending) {
                held.extend(pending);
            }
            held
        })?;
        let touched = held
            .iter()
            .enumerate()
            .filter(|(segment, _)| !pending[*segment].is_empty());
        self.0.state.put(id, held.len(), touched)?;
        self.with(id, |entry| {
            entry.held = held;
            for (segment, synced) in pending.iter().enumerate() {
                for run in synced.iter() {
                    entry.pending[segment].remove(&run);
                }
            }
        })
    }

    /// Hashes everything held of a segment and gives up what is damaged.
    pub fn verify(&self, id: ModelId, segment: usize) -> Result<Verified, StoreError> {
        let groups = self.with(id, |entry| {
            let segment = segment_of(id, entry, segment)?;
            Ok::<_, StoreError>(0..group_count(entry.manifest.segments[segment].size))
        })??;
        self.give_up_damaged(id, segment, &groups)
    }

    fn give_up_damaged(
        &self,
        id: ModelId,
        segment: usize,
        groups: &Range<u64>,
    ) -> Result<Verified, StoreError> {
        let (place, held) = self.with(id, |entry| {
            (
                Place::of(entry, segment),
                entry.held[segment].within(groups),
            )
        })?;
        let valid = place
            .valid(&chunk_ranges(groups))
            .map_err(StoreError::io(&self.model_dir(id)))?;
        let mut damaged = held.clone();
        for run in valid.iter() {
            damaged.remove(&run);
        }
        let verified = Verified {
            good: place.bytes(&held) - place.bytes(&damaged),
            damaged: place.bytes(&damaged),
        };
        if damaged.is_empty() {
            return Ok(verified);
        }
        let _commit = self.committing();
        let left = self.with(id, |entry| {
            for run in damaged.iter() {
                entry.held[segment].remove(&run);
            }
            (entry.held.len(), entry.held[segment].clone())
        })?;
        self.0.state.put(id, left.0, [(segment, &left.1)])?;
        tracing::warn!(
            model = %id.0.short(),
            segment = place.segment.name,
            bytes = verified.damaged,
            "data on disk is damaged and will be fetched again"
        );
        Ok(verified)
    }
}

fn check_range(id: ModelId, segment: &Segment, groups: &Range<u64>) -> Result<(), StoreError> {
    if groups.start < groups.end && groups.end <= group_count(segment.size) {
        return Ok(());
    }
    Err(StoreError::OutOfRange {
        model: id,
        what: format!("groups {groups:?} of {}", segment.name),
    })
}

/// The part of `groups` that is neither held nor written.
fn missing(entry: &Entry, segment: usize, groups: &Range<u64>) -> Runs {
    let mut missing = entry.held[segment].missing(groups);
    for run in entry.pending[segment].iter() {
        missing.remove(&run);
    }
    missing
}
