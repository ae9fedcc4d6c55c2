//! The invariants of KV memory; for `Scheduler::check`.

use super::chain::SequenceKv;
use super::group::Group;
use super::{KvMemory, PendingCopy};
use crate::ids::BlockId;
use crate::violation::{Violation, ensure};

impl KvMemory {
    /// Verifies that every block has one state and the references that sequences and pending copies
    /// hold, and that the prefix cache is consistent.
    pub(crate) fn check<'a>(
        &self,
        sequences: impl Iterator<Item = &'a SequenceKv>,
        copies: impl Iterator<Item = &'a PendingCopy>,
    ) -> Result<(), Violation> {
        ensure(self.copies.is_empty(), || {
            "copies of states are left from the last plan".to_owned()
        })?;
        let pools = self.groups.iter().map(|group| group.pool.total() as usize);
        let mut held: Vec<_> = pools.map(|total| vec![0_u32; total]).collect();
        for kv in sequences {
            for (blocks, chain) in held.iter_mut().zip(&kv.chains) {
                for lease in &chain.leases {
                    blocks[lease.block().0 as usize] += 1;
                }
            }
            for checkpoint in &kv.checkpoints {
                for (&group, lease) in self.states.iter().zip(&checkpoint.leases) {
                    held[group][lease.block().0 as usize] += 1;
                }
            }
        }
        for copy in copies {
            held[copy.group][copy.source.block().0 as usize] += 1;
        }
        for (index, held) in held.iter().enumerate() {
            self.check_references(index, held)?;
            self.check_states(index)?;
            self.check_names(index)?;
        }
        Ok(())
    }

    /// Verifies the blocks of a running sequence with `computed` tokens and room for `room`.
    pub(crate) fn check_sequence(
        &self,
        kv: &SequenceKv,
        computed: u32,
        room: u32,
    ) -> Result<(), Violation> {
        for (group, chain) in self.groups.iter().zip(&kv.chains) {
            let behind = group.blocks_behind_window(computed);
            ensure(
                (chain.behind_window..=chain.behind_window + 1).contains(&behind),
                || {
                    format!(
                        "{} of {behind} blocks behind the window were released",
                        chain.behind_window
                    )
                },
            )?;
            let held = chain.len();
            ensure(group.room(held) >= computed.max(room), || {
                format!("{held} blocks for {computed} computed tokens and room for {room}")
            })?;
        }
        let indexed = kv.cursor.indexed;
        let full = match self.caches {
            true => computed / self.block_tokens,
            false => 0,
        };
        ensure(indexed == full, || {
            format!("{indexed} of {full} computed blocks are indexed")
        })?;
        let positions = kv.checkpoints.iter().map(|c| c.position);
        ensure(positions.clone().all(|at| at >= computed), || {
            format!("{computed} tokens are computed, and checkpoints before are unconfirmed")
        })
    }

    fn check_references(&self, index: usize, held: &[u32]) -> Result<(), Violation> {
        for (block, &count) in held.iter().enumerate() {
            let references = self.groups[index].pool.references(BlockId(block as u32));
            ensure(references == count, || {
                format!(
                    "group {index}, block {block}: {references} references counted, {count} held"
                )
            })?;
        }
        Ok(())
    }

    fn check_states(&self, index: usize) -> Result<(), Violation> {
        let pool = &self.groups[index].pool;
        let mut seen = vec![0_u32; pool.total() as usize];
        for block in pool.free_blocks() {
            seen[block.0 as usize] += 1;
            ensure(!self.is_findable(index, block), || {
                format!("group {index}: free block {block} is in the prefix cache")
            })?;
        }
        for block in pool.cached_blocks() {
            seen[block.0 as usize] += 1;
            ensure(self.is_findable(index, block), || {
                format!("group {index}: cached block {block} is not in the prefix cache")
            })?;
        }
        for (block, &count) in seen.iter().enumerate() {
            let leased = pool.references(BlockId(block as u32)) > 0;
            ensure(count + u32::from(leased) == 1, || {
                format!("group {index}: block {block} is in {count} lists, leased: {leased}")
            })?;
        }
        let sum = pool.free() + pool.leased() + pool.cached();
        ensure(sum == pool.total(), || {
            format!("group {index}: {sum} of {} blocks", pool.total())
        })
    }

    /// Verifies that what is in the prefix cache can be found.
    fn check_names(&self, index: usize) -> Result<(), Violation> {
        let blocks = |group: &Group| (0..group.pool.total()).map(BlockId);
        let group = &self.groups[index];
        for block in blocks(group).filter(|&block| self.is_findable(index, block)) {
            let found = match (index == self.naming, group.named.name(block)) {
                (true, _) => self.prefix.finds(block),
                (false, Some(name)) => {
                    self.prefix.contains(name) && group.named.find(name) == Some(block)
                }
                (false, None) => false,
            };
            ensure(found, || {
                format!("group {index}: block {block} is in the prefix cache and cannot be found")
            })?;
        }
        Ok(())
    }
}
