//! The blocks of one KV group: free, leased or cached, and who gets the next one.
//!
//! A block with references is leased. Without any it is free, or cached when the prefix index still
//! knows its contents. The list of cached blocks is ordered by release: its order is the logical
//! clock of the LRU, and callers release a table tail first, so that tails are evicted before the
//! blocks that lead to them.

use crate::ids::BlockId;

const NONE: u32 = u32::MAX;

/// The right to one reference of a block. Not Clone: sharing goes through `Pool::share`, and every
/// lease ends in `Pool::release`.
#[must_use]
#[derive(Debug)]
pub(crate) struct BlockLease(BlockId);

/// What becomes of a block whose last reference is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterlife {
    /// Its contents are in the prefix index: it stays until it is the least recently released.
    Cached,
    /// Nobody can find its contents: it is free.
    Free,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    references: u32,
    /// Neighbours in the LRU list; meaningful while cached.
    older: u32,
    newer: u32,
}

/// Reference counts, free list and LRU list of one group's blocks.
#[derive(Debug)]
pub(crate) struct Pool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    cached: u32,
    total_references: u64,
}

impl BlockLease {
    pub(crate) fn block(&self) -> BlockId {
        self.0
    }
}

impl Pool {
    pub(crate) fn new(blocks: u32) -> Self {
        let block = Block {
            references: 0,
            older: NONE,
            newer: NONE,
        };
        Self {
            blocks: vec![block; blocks as usize],
            free: (0..blocks).rev().collect(),
            oldest: NONE,
            newest: NONE,
            cached: 0,
            total_references: 0,
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn cached(&self) -> u32 {
        self.cached
    }

    pub(crate) fn leased(&self) -> u32 {
        self.total() - self.free() - self.cached
    }

    /// Blocks that a lease could be had for.
    pub(crate) fn available(&self) -> u32 {
        self.free() + self.cached
    }

    pub(crate) fn total_references(&self) -> u64 {
        self.total_references
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].references
    }

    /// Leases a free block; None when only cached or leased ones are left.
    pub(crate) fn lease_free(&mut self) -> Option<BlockLease> {
        let block = self.free.pop()?;
        Some(self.refer(block))
    }

    /// Leases the cached block that was released first, for new contents.
    pub(crate) fn lease_oldest(&mut self) -> Option<BlockLease> {
        let block = self.oldest;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        Some(self.refer(block))
    }

    /// One more reference to a leased or cached block.
    pub(crate) fn share(&mut self, block: BlockId) -> BlockLease {
        if self.references(block) == 0 {
            self.unlink(block.0);
        }
        self.refer(block.0)
    }

    #[expect(clippy::needless_pass_by_value, reason = "the lease ends here")]
    pub(crate) fn release(&mut self, lease: BlockLease, afterlife: Afterlife) {
        let block = lease.0.0;
        let references = &mut self.blocks[block as usize].references;
        *references -= 1;
        self.total_references -= 1;
        if *references > 0 {
            return;
        }
        match afterlife {
            Afterlife::Free => self.free.push(block),
            Afterlife::Cached => self.link(block),
        }
    }

    /// Cached blocks, the next to be evicted first.
    pub(crate) fn cached_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let first = (self.oldest != NONE).then_some(self.oldest);
        std::iter::successors(first, |&block| {
            let newer = self.blocks[block as usize].newer;
            (newer != NONE).then_some(newer)
        })
        .map(BlockId)
    }

    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter().copied().map(BlockId)
    }

    fn refer(&mut self, block: u32) -> BlockLease {
        self.blocks[block as usize].references += 1;
        self.total_references += 1;
        BlockLease(BlockId(block))
    }

    fn link(&mut self, block: u32) {
        self.blocks[block as usize] = Block {
            references: 0,
            older: self.newest,
            newer: NONE,
        };
        match self.newest {
            NONE => self.oldest = block,
            newest => self.blocks[newest as usize].newer = block,
        }
        self.newest = block;
        self.cached += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { older, newer, .. } = self.blocks[block as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        self.cached -= 1;
    }
}
