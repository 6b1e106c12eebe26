//! The head's block table: which logical blocks of 32 slots each sequence holds.
//!
//! Stages have no allocator; they use the ids that the frames carry. A sequence reserves its worst
//! case when it is admitted, so that it never has to stop half-way, and takes blocks as it grows, so
//! that frames carry only ids in use. Sharing of full blocks is not here yet.

use crate::engine::BLOCK_SLOTS;

/// The blocks of a line: as many as its smallest stage has.
#[derive(Debug)]
pub struct BlockPool {
    blocks: u32,
    free: Vec<u32>,
    /// Free blocks that are promised to open tables.
    promised: usize,
}

/// The blocks of one sequence.
///
/// Not `Clone`, and [`BlockPool::close`] takes it by value: a block cannot be freed twice.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<u32>,
    /// Blocks that it may still take.
    promised: usize,
}

/// Blocks that hold `slots` KV slots.
pub fn blocks_for(slots: usize) -> usize {
    slots.div_ceil(BLOCK_SLOTS as usize)
}

impl BlockPool {
    /// A pool of the blocks 0 to `blocks - 1`, all free.
    pub fn new(blocks: u32) -> Self {
        Self {
            blocks,
            free: (0..blocks).rev().collect(),
            promised: 0,
        }
    }

    /// Blocks of the pool.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks that tables hold.
    pub fn in_use(&self) -> usize {
        self.blocks as usize - self.free.len()
    }

    /// Blocks that are neither held nor promised.
    pub fn available(&self) -> usize {
        self.free.len() - self.promised
    }

    /// A table that may grow to `slots`, or nothing if that many blocks are not available.
    pub fn open(&mut self, slots: usize) -> Option<BlockTable> {
        let promised = blocks_for(slots);
        if promised > self.available() {
            return None;
        }
        self.promised += promised;
        Some(BlockTable {
            blocks: Vec::with_capacity(promised),
            promised,
        })
    }

    /// Gives `table` the blocks that `slots` need; false, and no change, past what it was opened for.
    pub fn grow(&mut self, table: &mut BlockTable, slots: usize) -> bool {
        let missing = blocks_for(slots).saturating_sub(table.blocks.len());
        if missing > table.promised || missing > self.free.len() {
            return false;
        }
        let kept = self.free.len() - missing;
        table.blocks.extend(self.free.drain(kept..).rev());
        table.promised -= missing;
        self.promised -= missing;
        true
    }

    /// Takes back every block and promise of `table`.
    pub fn close(&mut self, table: BlockTable) {
        self.promised -= table.promised;
        self.free.extend(table.blocks.into_iter().rev());
    }
}

impl BlockTable {
    /// The block ids; slot `s` of the sequence lies in entry `s / 32`.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_block_is_held_twice_and_all_come_back(
            blocks in 0u32..40,
            actions in prop::collection::vec((0usize..6, 0usize..200), 0..60),
        ) {
            let mut pool = BlockPool::new(blocks);
            let mut tables: Vec<(BlockTable, usize)> = Vec::new();
            for (which, slots) in actions {
                if which < 2 {
                    let fits = blocks_for(slots) <= pool.available();
                    let opened = pool.open(slots);
                    prop_assert_eq!(opened.is_some(), fits);
                    tables.extend(opened.map(|table| (table, slots)));
                } else if let Some(index) = tables.len().checked_sub(1).map(|last| slots % (last + 1)) {
                    if which < 5 {
                        let (table, limit) = &mut tables[index];
                        let grown = pool.grow(table, slots);
                        prop_assert_eq!(grown, blocks_for(slots) <= blocks_for(*limit));
                        if grown {
                            prop_assert!(table.blocks().len() >= blocks_for(slots));
                        }
                    } else {
                        pool.close(tables.swap_remove(index).0);
                    }
                }
                let mut held: Vec<u32> =
                    tables.iter().flat_map(|(table, _)| table.blocks().to_vec()).collect();
                prop_assert_eq!(held.len(), pool.in_use());
                held.sort_unstable();
                held.dedup();
                prop_assert_eq!(held.len(), pool.in_use());
                prop_assert!(held.iter().all(|block| *block < blocks));
            }
            for (table, _) in tables {
                pool.close(table);
            }
            prop_assert_eq!(pool.in_use(), 0);
            prop_assert_eq!(pool.available(), blocks as usize);
        }
    }
}
