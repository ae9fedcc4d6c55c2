//! KV memory: a pool of blocks and a prefix index per group, and a chain of blocks per sequence and
//! group.
//!
//! In a group with a sliding window, a sequence releases its blocks as the window passes them.
//! Blocks that other sequences share stay leased. The others stay cached, and are evicted before
//! the blocks that the sequence still holds; so a later request finds its prefix only while memory
//! lasts. A hit needs all blocks from the first on, also those that the window has passed.

use crate::blocks::{AfterRelease, BlockLease, Pool};
use crate::config::KvGroup;
use crate::ids::{BlockId, TokenId};
use crate::prefix::{Link, Node, Prefix, block_key, root_key};

/// A sequence's blocks in one group, in order of position.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Its blocks, except the first `behind_window`.
    pub(crate) leases: Vec<BlockLease>,
    /// Leading blocks behind the window, already released.
    pub(crate) behind_window: u32,
    /// Leading blocks whose contents are in the prefix index (in this block or an equal one).
    pub(crate) indexed: u32,
    /// Entry of the last indexed block.
    pub(crate) node: Node,
    /// Key of the last indexed block.
    key: u64,
    /// Key of the first block that is not indexed, if already computed.
    next_key: Option<u64>,
    /// Prefix keys of its leading full blocks, as far as it was searched for.
    pub(crate) keys: Vec<u64>,
}

/// The contents of a sequence, as the prefix index sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) salt: &'a [u64],
    pub(crate) tokens: &'a [TokenId],
}

/// The blocks that a prefix search found in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// Leading blocks found.
    pub(crate) blocks: u32,
    /// Number of them without a lease: leasing them reduces the available blocks.
    pub(crate) unleased: u32,
}

/// One KV group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) geometry: KvGroup,
    pub(crate) pool: Pool,
    pub(crate) prefix: Prefix,
}

impl Chain {
    /// Returns the number of its blocks, released ones included.
    pub(crate) fn len(&self) -> u32 {
        self.behind_window + self.leases.len() as u32
    }

    pub(crate) fn lease(&self, block: u32) -> Option<&BlockLease> {
        self.leases
            .get(block.checked_sub(self.behind_window)? as usize)
    }

    /// Returns the block of every position. The kernels never read behind the window, so any block
    /// stands there.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        let held = self.leases.iter().map(BlockLease::block);
        let any = self.leases.first().map_or(BlockId(0), BlockLease::block);
        let behind_window = std::iter::repeat_n(any, self.behind_window as usize);
        behind_window.chain(held).collect()
    }

    /// Returns a chain of the same tokens with the given leases.
    pub(crate) fn copy_with(&self, leases: Vec<BlockLease>) -> Self {
        Self {
            leases,
            keys: self.keys.clone(),
            ..*self
        }
    }

    /// Drops the keys of all blocks but the first `blocks`.
    pub(crate) fn forget_keys(&mut self, blocks: usize) {
        self.keys.truncate(blocks);
        self.next_key = None;
    }

    fn step(&mut self, key: u64, node: Node) {
        self.indexed += 1;
        self.key = key;
        self.node = node;
        self.next_key = None;
    }
}

impl Group {
    pub(crate) fn new(geometry: KvGroup) -> Self {
        Self {
            geometry,
            pool: Pool::new(geometry.blocks),
            prefix: Prefix::new(geometry.blocks, geometry.block_tokens),
        }
    }

    /// Returns the number of blocks that hold `tokens` tokens.
    pub(crate) fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.geometry.block_tokens)
    }

    /// Leases a block for new contents; evicts the least recently used cached one if none is free.
    pub(crate) fn take(&mut self) -> Option<BlockLease> {
        if let Some(lease) = self.pool.lease_free() {
            return Some(lease);
        }
        let lease = self.pool.lease_oldest()?;
        self.prefix.remove(lease.block());
        Some(lease)
    }

    /// Touches the memory that `count` calls of `take` will read, so that their cache misses
    /// overlap.
    pub(crate) fn prefetch(&self, count: usize) {
        let evicted = count.saturating_sub(self.pool.free() as usize);
        let oldest = self.pool.cached_blocks().take(evicted);
        self.prefix.prefetch_removal(oldest);
    }

    /// Takes blocks until the chain holds `tokens` tokens or none is left. Returns how many tokens
    /// it then holds.
    pub(crate) fn extend(&mut self, chain: &mut Chain, tokens: u32) -> u32 {
        let blocks = self.blocks_for(tokens);
        while chain.len() < blocks {
            let Some(lease) = self.take() else { break };
            chain.leases.push(lease);
        }
        chain.len() * self.geometry.block_tokens
    }

    /// Returns the number of blocks that no run after `computed` tokens reads.
    pub(crate) fn blocks_behind_window(&self, computed: u32) -> u32 {
        match self.geometry.window {
            0 => 0,
            window => (computed + 1).saturating_sub(window) / self.geometry.block_tokens,
        }
    }

    /// Releases the blocks behind the window. Runs in flight do not read them: they continue after
    /// `computed`.
    pub(crate) fn release_behind_window(&mut self, chain: &mut Chain, computed: u32) {
        let count = self.blocks_behind_window(computed) - chain.behind_window;
        if count == 0 {
            return;
        }
        for lease in chain.leases.drain(..count as usize) {
            self.give_back(lease);
        }
        chain.behind_window += count;
    }

    /// Returns the most blocks that a sequence holds, with `running` tokens in flight.
    pub(crate) fn max_held_blocks(&self, running: u32) -> u32 {
        match self.geometry.window {
            0 => u32::MAX,
            window => self.blocks_for(window.saturating_add(running)) + 2,
        }
    }

    /// Releases a sequence's blocks, tail first. Indexed blocks stay cached.
    pub(crate) fn release(&mut self, chain: &mut Chain) {
        while let Some(lease) = chain.leases.pop() {
            self.give_back(lease);
        }
        *chain = Chain {
            keys: std::mem::take(&mut chain.keys),
            ..Chain::default()
        };
    }

    pub(crate) fn give_back(&mut self, lease: BlockLease) {
        let after_release = match self.prefix.contains(lease.block()) {
            true => AfterRelease::Cached,
            false => AfterRelease::Free,
        };
        self.pool.release(lease, after_release);
    }

    /// Searches leading blocks of `contents`, at most `limit`, that are cached or leased.
    pub(crate) fn search(&self, chain: &mut Chain, contents: Contents<'_>, limit: u32) -> Hits {
        self.extend_keys(chain, contents);
        let mut hits = Hits::default();
        let mut node = Node::ROOT;
        while hits.blocks < limit {
            let Some(link) = self.link(chain, contents, hits.blocks, node) else {
                break;
            };
            let Some((block, found)) = self.prefix.find(&link) else {
                break;
            };
            node = found;
            hits.blocks += 1;
            hits.unleased += u32::from(self.pool.references(block) == 0);
        }
        hits
    }

    /// Leases the first `blocks` blocks that `search` found.
    pub(crate) fn lease_hits(&mut self, chain: &mut Chain, contents: Contents<'_>, blocks: u32) {
        while chain.indexed < blocks {
            let Some(link) = self.link(chain, contents, chain.indexed, chain.node) else {
                break;
            };
            let Some((block, node)) = self.prefix.find(&link) else {
                break;
            };
            let key = link.key;
            chain.leases.push(self.pool.share(block));
            chain.step(key, node);
        }
    }

    /// Makes the blocks of the first `computed` tokens findable.
    pub(crate) fn index(&mut self, chain: &mut Chain, contents: Contents<'_>, computed: u32) {
        let full = computed / self.geometry.block_tokens;
        while chain.indexed < full {
            let Some(key) = self.next_key(chain, contents) else {
                break;
            };
            let Some(lease) = chain.lease(chain.indexed) else {
                break;
            };
            let link = Link {
                key,
                parent: chain.node,
                salt: contents.salt,
                tokens: self.tokens(contents, chain.indexed).unwrap_or_default(),
            };
            let node = self.prefix.insert(lease.block(), &link);
            chain.step(key, node);
        }
    }

    /// Returns the key of the first block that is not indexed, if that block is full.
    pub(crate) fn next_key(&self, chain: &mut Chain, contents: Contents<'_>) -> Option<u64> {
        if chain.next_key.is_none() {
            let parent = match chain.indexed {
                0 => root_key(contents.salt),
                _ => chain.key,
            };
            let tokens = self.tokens(contents, chain.indexed)?;
            chain.next_key = Some(block_key(parent, tokens));
        }
        chain.next_key
    }

    /// Computes the keys of all full blocks that have none.
    fn extend_keys(&self, chain: &mut Chain, contents: Contents<'_>) {
        let mut parent = match chain.keys.last() {
            Some(&key) => key,
            None => root_key(contents.salt),
        };
        while let Some(tokens) = self.tokens(contents, chain.keys.len() as u32) {
            parent = block_key(parent, tokens);
            chain.keys.push(parent);
        }
    }

    /// Returns the tokens of a block, if it is full.
    fn tokens<'a>(&self, contents: Contents<'a>, block: u32) -> Option<&'a [TokenId]> {
        let size = self.geometry.block_tokens as usize;
        let start = block as usize * size;
        contents.tokens.get(start..start + size)
    }

    fn link<'a>(
        &self,
        chain: &Chain,
        contents: Contents<'a>,
        block: u32,
        parent: Node,
    ) -> Option<Link<'a>> {
        Some(Link {
            key: *chain.keys.get(block as usize)?,
            parent,
            salt: contents.salt,
            tokens: self.tokens(contents, block)?,
        })
    }
}
