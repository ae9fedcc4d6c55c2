//! The KV memory that one sequence holds.

use super::group::BlockLease;
use super::prefix::{Link, Name, Node, block_key, root_key};
use crate::ids::{BlockId, GroupId, TokenId};
use crate::plan::Table;
use std::hint::black_box;

/// The contents of a sequence, as the prefix index sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) salt: &'a [u64],
    pub(crate) tokens: &'a [TokenId],
}

impl<'a> Contents<'a> {
    /// Returns the tokens of a block, if it is full.
    pub(super) fn block(&self, block: u32, block_tokens: u32) -> Option<&'a [TokenId]> {
        let size = block_tokens as usize;
        let start = block as usize * size;
        self.tokens.get(start..start + size)
    }
}

/// A sequence's blocks in one group, in order of position. In a group of states: the one block of
/// its state.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Its blocks, except the first `behind_window`.
    pub(super) leases: Vec<BlockLease>,
    /// Leading blocks behind the window: already released, or never leased after a prefix hit.
    pub(super) behind_window: u32,
}

/// How far a sequence's blocks are in the prefix index.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    /// Leading blocks whose contents are in the index (in this block or an equal one).
    pub(super) indexed: u32,
    /// Name of the last indexed block.
    pub(super) name: Name,
    /// Key of the last indexed block.
    key: u64,
    /// Key of the first block that is not indexed, if already computed.
    next_key: Option<u64>,
    /// Keys of its leading full blocks, as far as it was searched for.
    keys: Vec<u64>,
}

/// A copy of a sequence's state at a block boundary. It is in a plan, and no outcome has confirmed
/// it.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Tokens that the state has seen.
    pub(super) position: u32,
    /// The prefix of these tokens, once an outcome has confirmed them.
    pub(super) name: Option<Name>,
    /// One block per group of states, in the order of groups.
    pub(super) leases: Vec<BlockLease>,
}

/// All KV memory of one sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceKv {
    /// One chain per group.
    pub(super) chains: Vec<Chain>,
    pub(super) cursor: Cursor,
    /// Unconfirmed checkpoints, in order of position.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// Position of the last checkpoint, made or found.
    pub(super) last_checkpoint: u32,
    /// Tokens of the prefix that other sequences have computed too, without a checkpoint at its end;
    /// 0 = none, or hardly longer than what was found.
    pub(super) shared: u32,
}

impl Chain {
    /// Returns the number of its blocks, those behind the window included.
    pub(super) fn len(&self) -> u32 {
        self.behind_window + self.leases.len() as u32
    }

    pub(super) fn lease(&self, block: u32) -> Option<&BlockLease> {
        self.leases
            .get(block.checked_sub(self.behind_window)? as usize)
    }

    /// Returns the block of every position. The kernels never read behind the window, so those
    /// entries are an arbitrary block.
    fn blocks(&self) -> Vec<BlockId> {
        let held = self.leases.iter().map(BlockLease::block);
        let any = self.leases.first().map_or(BlockId(0), BlockLease::block);
        let behind_window = std::iter::repeat_n(any, self.behind_window as usize);
        behind_window.chain(held).collect()
    }
}

impl Cursor {
    /// Returns the key of the first block that is not indexed, if that block is full.
    pub(super) fn next_key(&mut self, contents: Contents<'_>, block_tokens: u32) -> Option<u64> {
        if self.next_key.is_none() {
            let parent = match self.indexed {
                0 => root_key(contents.salt),
                _ => self.key,
            };
            let tokens = contents.block(self.indexed, block_tokens)?;
            self.next_key = Some(block_key(parent, tokens));
        }
        self.next_key
    }

    /// Advances past one block that is in the index.
    pub(super) fn step(&mut self, key: u64, name: Name) {
        self.indexed += 1;
        self.key = key;
        self.name = name;
        self.next_key = None;
    }

    /// Moves to the end of a found prefix.
    pub(super) fn move_to(&mut self, names: &[Name]) {
        let Some((&name, before)) = names.split_last() else {
            return;
        };
        if let Some(&key) = self.keys.get(before.len()) {
            self.indexed = before.len() as u32;
            self.step(key, name);
        }
    }

    /// Computes the keys of all full blocks that have none.
    pub(super) fn extend_keys(&mut self, contents: Contents<'_>, block_tokens: u32) {
        let mut parent = match self.keys.last() {
            Some(&key) => key,
            None => root_key(contents.salt),
        };
        while let Some(tokens) = contents.block(self.keys.len() as u32, block_tokens) {
            parent = block_key(parent, tokens);
            self.keys.push(parent);
        }
    }

    /// Returns the search for a block after the prefix that ends with `parent`.
    pub(super) fn link<'a>(
        &self,
        contents: Contents<'a>,
        block: u32,
        block_tokens: u32,
        parent: Node,
    ) -> Option<Link<'a>> {
        Some(Link {
            key: *self.keys.get(block as usize)?,
            parent,
            salt: contents.salt,
            tokens: contents.block(block, block_tokens)?,
        })
    }
}

impl SequenceKv {
    /// Returns the memory of a sequence that holds nothing.
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            chains: std::iter::repeat_with(Chain::default)
                .take(groups)
                .collect(),
            ..Self::default()
        }
    }

    /// Returns the block tables, one per group.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let table = |(group, chain): (usize, &Chain)| Table {
            group: GroupId(group as u32),
            blocks: chain.blocks(),
        };
        self.chains.iter().enumerate().map(table).collect()
    }

    /// Returns the number of blocks per group, those behind the window included.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        let lengths = self.chains.iter().map(|chain| chain.len() as usize);
        lengths.collect()
    }

    /// Returns the blocks that it holds in all groups.
    pub(crate) fn held(&self) -> usize {
        let chains: usize = self.chains.iter().map(|chain| chain.leases.len()).sum();
        let checkpoints = self.checkpoints.iter().map(|c| c.leases.len());
        chains + checkpoints.sum::<usize>()
    }

    /// Returns the prefix key of a full block, if it was computed.
    pub(crate) fn block_key(&self, block: u32) -> Option<u64> {
        self.cursor.keys.get(block as usize).copied()
    }

    /// Drops the keys of all blocks but the first `blocks`, because later tokens have changed.
    pub(crate) fn forget_keys(&mut self, blocks: u32) {
        self.cursor.keys.truncate(blocks as usize);
        self.cursor.next_key = None;
    }

    /// Touches the ends of its lists, so that the cache misses of several sequences overlap.
    pub(crate) fn prefetch(&self) {
        for chain in &self.chains {
            black_box(chain.leases.last().map(BlockLease::block));
        }
    }

    /// Forgets everything but the keys; the leases must have been given back.
    pub(super) fn clear(&mut self) {
        for chain in &mut self.chains {
            *chain = Chain::default();
        }
        self.cursor = Cursor {
            keys: std::mem::take(&mut self.cursor.keys),
            ..Cursor::default()
        };
        self.last_checkpoint = 0;
        self.shared = 0;
    }
}
