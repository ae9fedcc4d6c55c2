//! The blocks of one KV group: free, leased or cached, and the order of eviction.
//!
//! A block with references is leased. A block without references is cached while the prefix index
//! holds its contents, and free otherwise. Cached blocks queue in the order of their release, which
//! is the logical clock of the LRU. Callers release a table tail first, so tails are evicted before
//! the blocks that lead to them. The queue gives the next blocks to evict without following links,
//! so the cache misses of several evictions overlap.

use crate::ids::BlockId;
use std::collections::VecDeque;

/// The right to one reference of a block. Not Clone: sharing goes through `Pool::share`, and every
/// lease ends in `Pool::release`.
#[must_use]
#[derive(Debug)]
pub(crate) struct BlockLease(BlockId);

/// What becomes of a block when its last reference is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRelease {
    /// The prefix index holds its contents: it stays until it is the least recently released.
    Cached,
    /// Its contents cannot be found: it is free.
    Free,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    references: u32,
    /// Number of times it left the cached state; outdates its older entries in the queue.
    generation: u32,
}

/// An entry in the queue of cached blocks.
#[derive(Clone, Copy, Debug)]
struct LruEntry {
    block: u32,
    generation: u32,
}

/// Reference counts, free list and LRU queue of one group's blocks.
#[derive(Debug)]
pub(super) struct Pool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Oldest first. Outdated entries are dropped at the front, or all together when the queue has
    /// two entries per block.
    lru: VecDeque<LruEntry>,
    cached: u32,
    total_references: u64,
}

impl BlockLease {
    pub(crate) fn block(&self) -> BlockId {
        self.0
    }
}

impl Pool {
    pub(super) fn new(blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); blocks as usize],
            free: (0..blocks).rev().collect(),
            lru: VecDeque::new(),
            cached: 0,
            total_references: 0,
        }
    }

    pub(super) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    pub(super) fn leased(&self) -> u32 {
        self.total() - self.free() - self.cached
    }

    /// Returns the number of blocks that can be leased.
    pub(super) fn available(&self) -> u32 {
        self.free() + self.cached
    }

    pub(super) fn total_references(&self) -> u64 {
        self.total_references
    }

    pub(super) fn references(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].references
    }

    /// Leases a free block; None when all are cached or leased.
    pub(super) fn lease_free(&mut self) -> Option<BlockLease> {
        let block = self.free.pop()?;
        Some(self.add_reference(block))
    }

    /// Leases the least recently released cached block, for new contents.
    pub(super) fn lease_oldest(&mut self) -> Option<BlockLease> {
        while let Some(entry) = self.lru.pop_front() {
            if self.is_current(entry) {
                self.uncache(entry.block);
                return Some(self.add_reference(entry.block));
            }
        }
        None
    }

    /// Frees a cached block whose contents cannot be found any more.
    pub(super) fn free_cached(&mut self, block: BlockId) {
        self.uncache(block.0);
        self.free.push(block.0);
    }

    /// Adds a reference to a leased or cached block.
    pub(super) fn share(&mut self, block: BlockId) -> BlockLease {
        if self.references(block) == 0 {
            self.uncache(block.0);
        }
        self.add_reference(block.0)
    }

    #[expect(clippy::needless_pass_by_value, reason = "the lease ends here")]
    pub(super) fn release(&mut self, lease: BlockLease, after_release: AfterRelease) {
        let block = lease.0.0;
        let references = &mut self.blocks[block as usize].references;
        *references -= 1;
        self.total_references -= 1;
        if *references > 0 {
            return;
        }
        match after_release {
            AfterRelease::Free => self.free.push(block),
            AfterRelease::Cached => self.enqueue(block),
        }
    }

    /// Returns the cached blocks in order of eviction.
    pub(super) fn cached_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let entries = self.lru.iter().copied();
        entries
            .filter(|&entry| self.is_current(entry))
            .map(|entry| BlockId(entry.block))
    }

    pub(super) fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter().copied().map(BlockId)
    }

    fn add_reference(&mut self, block: u32) -> BlockLease {
        self.blocks[block as usize].references += 1;
        self.total_references += 1;
        BlockLease(BlockId(block))
    }

    fn enqueue(&mut self, block: u32) {
        if self.lru.len() >= 2 * self.blocks.len() {
            let mut lru = std::mem::take(&mut self.lru);
            lru.retain(|&entry| self.is_current(entry));
            self.lru = lru;
        }
        let generation = self.blocks[block as usize].generation;
        self.lru.push_back(LruEntry { block, generation });
        self.cached += 1;
    }

    fn uncache(&mut self, block: u32) {
        let generation = &mut self.blocks[block as usize].generation;
        *generation = generation.wrapping_add(1);
        self.cached -= 1;
    }

    fn is_current(&self, entry: LruEntry) -> bool {
        self.blocks[entry.block as usize].generation == entry.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_that_was_released_first_is_evicted_first() {
        let mut pool = Pool::new(4);
        let leases: Vec<_> = (0..4).map(|_| pool.lease_free().unwrap()).collect();
        let blocks: Vec<_> = leases.iter().map(BlockLease::block).collect();
        for lease in leases {
            pool.release(lease, AfterRelease::Cached);
        }
        // A hit makes the oldest block the newest once it is released again.
        let shared = pool.share(blocks[0]);
        pool.release(shared, AfterRelease::Cached);
        let order = [blocks[1], blocks[2], blocks[3], blocks[0]];
        assert_eq!(pool.cached_blocks().collect::<Vec<_>>(), order);
        for expected in order {
            let lease = pool.lease_oldest().unwrap();
            assert_eq!(lease.block(), expected);
        }
        assert!(pool.lease_oldest().is_none());
    }

    #[test]
    fn hits_do_not_lengthen_the_queue_without_bound() {
        let mut pool = Pool::new(2);
        let [first, second] = [(); 2].map(|()| pool.lease_free().unwrap());
        let (hit, other) = (first.block(), second.block());
        pool.release(second, AfterRelease::Cached);
        pool.release(first, AfterRelease::Cached);
        for _ in 0..100 {
            let lease = pool.share(hit);
            pool.release(lease, AfterRelease::Cached);
        }
        assert!(pool.lru.len() <= 4);
        assert_eq!(pool.cached_blocks().collect::<Vec<_>>(), [other, hit]);
    }
}
