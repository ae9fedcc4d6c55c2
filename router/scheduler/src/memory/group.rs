//! One KV group: its pool, and the rules of its kind.
//!
//! A block with references is leased. A block without references is cached while the prefix index
//! holds its contents, and free otherwise. Cached blocks queue in the order of their release, which
//! is the logical clock of the LRU. Callers release a table tail first, so tails are evicted before
//! the blocks that lead to them. The queue gives the next blocks to evict without following links,
//! so the cache misses of several evictions overlap.

use super::chain::Chain;
use super::names::NamedBlocks;
use super::prefix::Name;
use crate::config::{GroupKind, KvGroup};
use crate::ids::BlockId;
use std::collections::VecDeque;
use std::ops::Range;

/// One KV group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    block_tokens: u32,
    pub(super) pool: Pool,
    /// Its cached blocks; unused in the naming group.
    pub(super) named: NamedBlocks,
}

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

impl Group {
    /// `names`: blocks of the naming group.
    pub(super) fn new(group: KvGroup, block_tokens: u32, names: u32) -> Self {
        Self {
            kind: group.kind,
            block_tokens,
            pool: Pool::new(group.blocks),
            named: NamedBlocks::new(names, group.blocks),
        }
    }

    /// Returns whether a sequence takes more blocks as it grows.
    pub(super) fn grows(&self) -> bool {
        self.kind != GroupKind::State
    }

    /// Returns the number of blocks that a sequence of `tokens` tokens needs, those behind the
    /// window included.
    pub(super) fn blocks_for(&self, tokens: u32) -> u32 {
        match self.kind {
            GroupKind::Full | GroupKind::Sliding { .. } => tokens.div_ceil(self.block_tokens),
            GroupKind::State => 1,
        }
    }

    /// Returns the tokens that a chain of `blocks` blocks has room for.
    pub(super) fn room(&self, blocks: u32) -> u32 {
        match self.kind {
            GroupKind::Full | GroupKind::Sliding { .. } => blocks.saturating_mul(self.block_tokens),
            GroupKind::State if blocks == 0 => 0,
            GroupKind::State => u32::MAX,
        }
    }

    /// Returns the number of blocks that no run after `computed` tokens reads.
    pub(super) fn blocks_behind_window(&self, computed: u32) -> u32 {
        match self.kind {
            GroupKind::Sliding { window } => {
                (computed + 1).saturating_sub(window) / self.block_tokens
            }
            GroupKind::Full | GroupKind::State => 0,
        }
    }

    /// Returns the most blocks that a sequence holds, with `running` tokens in flight.
    pub(super) fn max_held_blocks(&self, running: u32) -> u32 {
        match self.kind {
            GroupKind::Full => u32::MAX,
            GroupKind::Sliding { window } => {
                let blocks = self.blocks_for(window.saturating_add(running)) + 2;
                blocks.min(self.pool.total())
            }
            GroupKind::State => 1,
        }
    }

    /// Returns the full blocks of `computed` tokens that a fork shares.
    pub(super) fn shared_blocks(&self, computed: u32) -> u32 {
        match self.kind {
            GroupKind::Full | GroupKind::Sliding { .. } => computed / self.block_tokens,
            GroupKind::State => 0,
        }
    }

    /// Returns whether a fork needs a copy of the block after the shared ones.
    pub(super) fn copies_for_fork(&self, computed: u32) -> bool {
        match self.kind {
            GroupKind::Full | GroupKind::Sliding { .. } => {
                !computed.is_multiple_of(self.block_tokens)
            }
            GroupKind::State => true,
        }
    }

    /// Returns the blocks that a sequence must find to continue after its first `blocks` blocks.
    pub(super) fn required(&self, blocks: u32) -> Range<u32> {
        match self.kind {
            GroupKind::Full => 0..blocks,
            GroupKind::Sliding { .. } => {
                self.blocks_behind_window(blocks * self.block_tokens)..blocks
            }
            GroupKind::State => blocks.saturating_sub(1)..blocks,
        }
    }

    /// Returns the length of the longest of the prefixes `names[..n]` for which this group has all
    /// required blocks.
    pub(super) fn longest_prefix(&self, names: &[Name]) -> usize {
        let mut end = names.len();
        let mut at = end;
        while at > self.required(end as u32).start as usize {
            at -= 1;
            if self.named.find(names[at].block).is_none() {
                end = at;
            }
        }
        end
    }

    /// Forgets the block of a name that is gone: it can never be found again.
    pub(super) fn forget_name(&mut self, name: BlockId) {
        if let Some(block) = self.named.remove_name(name)
            && self.pool.references(block) == 0
        {
            self.pool.free_cached(block);
        }
    }

    /// Returns the tokens that a chain could hold with all available blocks.
    pub(super) fn possible_room(&self, chain: &Chain) -> u32 {
        self.room(self.pool.available() + chain.len())
    }
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

    /// Ends one reference. With the last one the block becomes cached or free.
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
