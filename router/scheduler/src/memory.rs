//! KV memory: per group a pool of blocks and a prefix index, and per sequence its chains of blocks.
//!
//! In a group with a sliding window, a sequence gives its blocks back as the window passes them. Those
//! that others read stay leased by them, the others stay cached as long as any: they go before the
//! blocks that the sequence still holds, so a later request finds its prefix only while memory lasts.
//! A hit needs all blocks from the first on, also those that the window has passed.

use crate::blocks::{AfterRelease, BlockLease, Pool};
use crate::config::KvGroup;
use crate::ids::{BlockId, TokenId};
use crate::prefix::{Link, Node, Prefix, block_key, root_key};

/// A sequence's blocks in one group, in order of position.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Its blocks but for the first `behind_window`.
    pub(crate) leases: Vec<BlockLease>,
    /// Leading blocks that lie behind the window, and were given back.
    pub(crate) behind_window: u32,
    /// Leading blocks whose contents the prefix index knows (in this block or an equal one).
    pub(crate) indexed: u32,
    /// Entry of the last indexed block.
    pub(crate) node: Node,
    /// Its key.
    key: u64,
    /// Key of the first block that is not indexed, if it was made already.
    next_key: Option<u64>,
    /// Prefix keys of its leading full blocks, as far as they were searched for.
    pub(crate) keys: Vec<u64>,
}

/// What a sequence looks like to the prefix index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) salt: &'a [u64],
    pub(crate) tokens: &'a [TokenId],
}

/// Blocks that a prefix search found in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// Leading blocks found.
    pub(crate) blocks: u32,
    /// How many of them nobody else leases: they count as taken from what is available.
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
    /// Its blocks, those that were given back included.
    pub(crate) fn len(&self) -> u32 {
        self.behind_window + self.leases.len() as u32
    }

    pub(crate) fn lease(&self, block: u32) -> Option<&BlockLease> {
        self.leases
            .get(block.checked_sub(self.behind_window)? as usize)
    }

    /// The block of every position. Nobody reads where the window has passed: any block does there.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        let held = self.leases.iter().map(BlockLease::block);
        let any = self.leases.first().map_or(BlockId(0), BlockLease::block);
        let behind_window = std::iter::repeat_n(any, self.behind_window as usize);
        behind_window.chain(held).collect()
    }

    /// A chain of the same tokens, with leases of its own.
    pub(crate) fn copy_with(&self, leases: Vec<BlockLease>) -> Self {
        Self {
            leases,
            keys: self.keys.clone(),
            ..*self
        }
    }

    /// Forgets the keys of all but the first `blocks` blocks.
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

    /// Blocks that hold `tokens` tokens.
    pub(crate) fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.geometry.block_tokens)
    }

    /// A block for new contents; evicts the least recently used cached one when none is free.
    pub(crate) fn take(&mut self) -> Option<BlockLease> {
        if let Some(lease) = self.pool.lease_free() {
            return Some(lease);
        }
        let lease = self.pool.lease_oldest()?;
        self.prefix.remove(lease.block());
        Some(lease)
    }

    /// Reads what `take` will read `count` times, so that its cache misses overlap.
    pub(crate) fn prefetch(&self, count: usize) {
        let evicted = count.saturating_sub(self.pool.free() as usize);
        let oldest = self.pool.cached_blocks().take(evicted);
        self.prefix.prefetch_removal(oldest);
    }

    /// Takes the blocks that `tokens` tokens need beyond those held, as far as there are any. How
    /// many tokens the chain then holds.
    pub(crate) fn extend(&mut self, chain: &mut Chain, tokens: u32) -> u32 {
        let blocks = self.blocks_for(tokens);
        while chain.len() < blocks {
            let Some(lease) = self.take() else { break };
            chain.leases.push(lease);
        }
        chain.len() * self.geometry.block_tokens
    }

    /// Blocks that lie behind the window of whatever runs after `computed` tokens.
    pub(crate) fn blocks_behind_window(&self, computed: u32) -> u32 {
        match self.geometry.window {
            0 => 0,
            window => (computed + 1).saturating_sub(window) / self.geometry.block_tokens,
        }
    }

    /// Gives the blocks behind the window back. Runs in flight do not read them either: they come
    /// after `computed`.
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

    /// Blocks that a sequence holds at most, with `running` tokens in flight.
    pub(crate) fn max_held_blocks(&self, running: u32) -> u32 {
        match self.geometry.window {
            0 => u32::MAX,
            window => self.blocks_for(window.saturating_add(running)) + 2,
        }
    }

    /// Gives a sequence's blocks back, tail first. Indexed ones stay cached.
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

    /// How many leading blocks of `contents`, at most `limit`, are cached or leased by others.
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

    /// Makes the blocks of the first `computed` tokens findable by others.
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

    /// The key of the first block that is not indexed, if it is full.
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

    /// Makes the keys of all full blocks that have none.
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

    /// The tokens of a block, if it is full.
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
