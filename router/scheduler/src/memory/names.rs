//! The prefix cache of a group that does not name prefixes: which of its blocks belongs to which name.
//!
//! A name is a block of the naming group, which the prefix index has found by comparing token ids. So
//! this map compares nothing: it is an array in each direction.

use crate::ids::BlockId;

/// No block.
const ABSENT: u32 = u32::MAX;

/// The cached blocks of one group, by name.
#[derive(Debug)]
pub(super) struct NamedBlocks {
    /// This group's block of each block of the naming group.
    blocks: Vec<u32>,
    /// The name of each block of this group.
    names: Vec<u32>,
}

impl NamedBlocks {
    /// `names`: blocks of the naming group. `blocks`: blocks of this group.
    pub(super) fn new(names: u32, blocks: u32) -> Self {
        Self {
            blocks: vec![ABSENT; names as usize],
            names: vec![ABSENT; blocks as usize],
        }
    }

    pub(super) fn find(&self, name: BlockId) -> Option<BlockId> {
        let block = self.blocks[name.0 as usize];
        (block != ABSENT).then_some(BlockId(block))
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.names[block.0 as usize] != ABSENT
    }

    /// Makes a computed block findable, unless another block has the same name.
    pub(super) fn insert(&mut self, name: BlockId, block: BlockId) {
        if self.blocks[name.0 as usize] == ABSENT && !self.contains(block) {
            self.blocks[name.0 as usize] = block.0;
            self.names[block.0 as usize] = name.0;
        }
    }

    /// Forgets a block of this group.
    pub(super) fn remove(&mut self, block: BlockId) {
        let name = std::mem::replace(&mut self.names[block.0 as usize], ABSENT);
        if name != ABSENT {
            self.blocks[name as usize] = ABSENT;
        }
    }

    /// Forgets a name and returns the block that had it.
    pub(super) fn remove_name(&mut self, name: BlockId) -> Option<BlockId> {
        let block = self.find(name)?;
        self.remove(block);
        Some(block)
    }

    /// Returns the block's name; for `check`.
    pub(super) fn name(&self, block: BlockId) -> Option<BlockId> {
        let name = self.names[block.0 as usize];
        (name != ABSENT).then_some(BlockId(name))
    }
}
