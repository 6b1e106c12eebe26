//! The hash tree of a segment: its geometry, its outboard on disk, and a hasher that builds both
//! while the segment is written.
//!
//! A segment's tree is BLAKE3's own, cut off below chunk groups of 16 KiB. Its inner nodes, as
//! pairs of hashes in post order, are the segment's *outboard* (64 bytes for each group but one).
//! A model's outboards lie one after the other in one file, in the order of its segments.

use std::fs::File;
use std::io;
use std::ops::Range;

use bao_tree::io::sync::{Outboard, OutboardMut};
use bao_tree::{BaoTree, BlockSize, ChunkNum, ChunkRanges, TreeNode};
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use super::disk;
use crate::hash::Hash;

/// Bytes of a chunk group, the unit in which data is verified and counted as held.
pub const GROUP_BYTES: u64 = 16 << 10;
/// BLAKE3 chunks in a group.
const GROUP_CHUNKS: u64 = GROUP_BYTES / 1024;
const BLOCK_SIZE: BlockSize = BlockSize::from_chunk_log(4);
const PAIR_BYTES: u64 = 64;

/// Number of groups of a segment of `size` bytes; the last one may be short.
pub fn group_count(size: u64) -> u64 {
    size.div_ceil(GROUP_BYTES)
}

/// The bytes of a segment of `size` bytes that `groups` cover.
pub fn byte_range(size: u64, groups: &Range<u64>) -> Range<u64> {
    (groups.start * GROUP_BYTES).min(size)..(groups.end * GROUP_BYTES).min(size)
}

/// Number of bytes in `groups`.
pub fn byte_count(size: u64, groups: &Range<u64>) -> u64 {
    let bytes = byte_range(size, groups);
    bytes.end - bytes.start
}

pub(crate) fn tree(size: u64) -> BaoTree {
    BaoTree::new(size, BLOCK_SIZE)
}

pub(crate) fn chunk_ranges(groups: &Range<u64>) -> ChunkRanges {
    ChunkRanges::from(ChunkNum(groups.start * GROUP_CHUNKS)..ChunkNum(groups.end * GROUP_CHUNKS))
}

/// The whole groups inside a range of chunks as bao-tree reports it; the segment's last chunk ends
/// its last group.
pub(crate) fn groups_of(size: u64, chunks: &Range<ChunkNum>) -> Range<u64> {
    let end = if chunks.end >= tree(size).chunks() {
        group_count(size)
    } else {
        chunks.end.0 / GROUP_CHUNKS
    };
    chunks.start.0.div_ceil(GROUP_CHUNKS)..end
}

/// A segment's data as it lies in the weights file.
pub(crate) struct SegmentData<'a> {
    pub file: &'a File,
    pub offset: u64,
}

impl bao_tree::io::sync::ReadAt for SegmentData<'_> {
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        disk::read_at(self.file, self.offset + position, buffer)
    }
}

/// A segment's outboard as it lies in the outboard file.
pub(crate) struct SegmentOutboard<'a> {
    pub file: &'a File,
    pub offset: u64,
    pub root: Hash,
    pub size: u64,
}

impl SegmentOutboard<'_> {
    fn position(&self, node: TreeNode) -> Option<u64> {
        let pair = tree(self.size).post_order_offset(node)?.value();
        Some(self.offset + pair * PAIR_BYTES)
    }
}

impl Outboard for SegmentOutboard<'_> {
    fn root(&self) -> blake3::Hash {
        self.root.into()
    }

    fn tree(&self) -> BaoTree {
        tree(self.size)
    }

    fn load(&self, node: TreeNode) -> io::Result<Option<(blake3::Hash, blake3::Hash)>> {
        let Some(position) = self.position(node) else {
            return Ok(None);
        };
        let mut pair = [0; PAIR_BYTES as usize];
        match disk::read_exact_at(self.file, position, &mut pair) {
            Ok(()) => {}
            // A short file is damage, and zero hashes never verify.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => pair.fill(0),
            Err(error) => return Err(error),
        }
        let half = |bytes: &[u8]| blake3::Hash::from_slice(bytes).map_err(io::Error::other);
        Ok(Some((half(&pair[..32])?, half(&pair[32..])?)))
    }
}

impl OutboardMut for SegmentOutboard<'_> {
    fn save(&mut self, node: TreeNode, pair: &(blake3::Hash, blake3::Hash)) -> io::Result<()> {
        let Some(position) = self.position(node) else {
            return Ok(());
        };
        disk::write_all_at(
            self.file,
            position,
            &joined(pair.0.as_bytes(), pair.1.as_bytes()),
        )
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn joined(left: &[u8; 32], right: &[u8; 32]) -> [u8; PAIR_BYTES as usize] {
    let mut pair = [0; PAIR_BYTES as usize];
    pair[..32].copy_from_slice(left);
    pair[32..].copy_from_slice(right);
    pair
}

/// Hashes a segment of yet unknown length as it is written.
///
/// Subtrees are joined only once more data is known to follow, since the last join is the root's
/// and hashes differently; so the pairs come out in the outboard's post order.
#[derive(Default)]
pub(crate) struct SegmentHasher {
    /// The open group, at most [`GROUP_BYTES`] long.
    open: Vec<u8>,
    /// Closed groups so far.
    groups: u64,
    /// Roots of the complete subtrees so far, largest first.
    subtrees: Vec<ChainingValue>,
}

impl SegmentHasher {
    /// Takes the next bytes; finished pairs are appended to `outboard`.
    pub fn update(&mut self, mut bytes: &[u8], outboard: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.open.len() as u64 == GROUP_BYTES {
                self.close_group(outboard);
            }
            let room = (GROUP_BYTES as usize - self.open.len()).min(bytes.len());
            self.open.extend_from_slice(&bytes[..room]);
            bytes = &bytes[room..];
        }
    }

    /// The segment's hash; the last pairs are appended to `outboard`.
    pub fn finish(mut self, outboard: &mut Vec<u8>) -> Hash {
        if self.groups == 0 {
            return Hash::of(&self.open);
        }
        let mut right = self.open_group();
        self.join_complete(outboard);
        while let Some(left) = self.subtrees.pop() {
            outboard.extend_from_slice(&joined(&left, &right));
            if self.subtrees.is_empty() {
                return merge_subtrees_root(&left, &right, Mode::Hash).into();
            }
            right = merge_subtrees_non_root(&left, &right, Mode::Hash);
        }
        unreachable!("a closed group leaves a subtree")
    }

    fn close_group(&mut self, outboard: &mut Vec<u8>) {
        let hash = self.open_group();
        self.join_complete(outboard);
        self.subtrees.push(hash);
        self.groups += 1;
        self.open.clear();
    }

    fn open_group(&self) -> ChainingValue {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(self.groups * GROUP_BYTES);
        hasher.update(&self.open);
        hasher.finalize_non_root()
    }

    /// Joins the subtrees that the last closed group completed: one for each trailing zero of the
    /// number of groups, as in a binary counter.
    fn join_complete(&mut self, outboard: &mut Vec<u8>) {
        let complete = self.groups.count_ones() as usize;
        while self.subtrees.len() > complete {
            let (Some(right), Some(left)) = (self.subtrees.pop(), self.subtrees.pop()) else {
                unreachable!("there are more subtrees than complete ones")
            };
            outboard.extend_from_slice(&joined(&left, &right));
            self.subtrees
                .push(merge_subtrees_non_root(&left, &right, Mode::Hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use bao_tree::io::outboard::PostOrderMemOutboard;

    use super::*;

    #[test]
    fn the_hasher_agrees_with_bao_tree_for_every_shape_of_tree() {
        let group = GROUP_BYTES as usize;
        let mut sizes: Vec<usize> = vec![1, 1000, group - 1, group, group + 1];
        sizes.extend((2..20).flat_map(|n| [n * group - 7, n * group, n * group + 3]));
        for size in sizes {
            let data: Vec<u8> = (0..size).map(|i| (i * 31 + i / 251) as u8).collect();
            let expected = PostOrderMemOutboard::create(&data, BLOCK_SIZE);
            let mut hasher = SegmentHasher::default();
            let mut outboard = Vec::new();
            for piece in data.chunks(10_007) {
                hasher.update(piece, &mut outboard);
            }
            assert_eq!(hasher.finish(&mut outboard), expected.root.into(), "{size}");
            assert_eq!(outboard, expected.data, "{size}");
            assert_eq!(outboard.len() as u64, tree(size as u64).outboard_size());
        }
    }

    #[test]
    fn groups_and_bytes_agree_at_the_short_last_group() {
        let size = 3 * GROUP_BYTES + 5;
        assert_eq!(group_count(size), 4);
        assert_eq!(byte_range(size, &(2..4)), 2 * GROUP_BYTES..size);
        assert_eq!(byte_count(size, &(3..4)), 5);
        let end = tree(size).chunks();
        assert_eq!(groups_of(size, &(ChunkNum(32)..end)), 2..4);
        assert_eq!(groups_of(size, &(ChunkNum(16)..ChunkNum(48))), 1..3);
    }
}
