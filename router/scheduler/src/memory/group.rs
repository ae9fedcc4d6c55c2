//! One KV group: its pool, and the rules of its kind.

use super::chain::Chain;
use super::names::NamedBlocks;
use super::pool::Pool;
use super::prefix::Name;
use crate::config::{GroupKind, KvGroup};
use crate::ids::BlockId;
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
