//! The prefix search: how much of a sequence is cached in all groups.

use super::chain::{Contents, SequenceKv};
use super::prefix::{Name, Node};
use super::{KvMemory, PendingCopy};
use crate::config::GroupKind;
use crate::ids::BlockId;
use std::ops::Range;

/// Blocks that a checkpoint at the end of a shared prefix must save later sequences, to be worth a
/// chunk that ends there.
const CHECKPOINT_GAIN: usize = 8;

/// The result of a prefix search.
#[derive(Debug, Default)]
pub(crate) struct PrefixMatch {
    /// Leading tokens found, a whole number of blocks.
    pub(crate) tokens: u32,
    names: Vec<Name>,
}

impl KvMemory {
    /// Searches the longest prefix of at most `limit` tokens that all groups have.
    pub(crate) fn search(
        &self,
        kv: &mut SequenceKv,
        contents: Contents<'_>,
        limit: u32,
    ) -> PrefixMatch {
        if !self.caches {
            return PrefixMatch::default();
        }
        kv.cursor.extend_keys(contents, self.block_tokens);
        let mut names = Vec::new();
        let mut node = Node::ROOT;
        while (names.len() as u32) < limit / self.block_tokens {
            let block = names.len() as u32;
            let link = kv.cursor.link(contents, block, self.block_tokens, node);
            let Some(name) = link.and_then(|link| self.prefix.find(&link)) else {
                break;
            };
            node = name.node;
            names.push(name);
        }
        let shared = self.shared_prefix(&names, |kind| kind != GroupKind::State);
        names.truncate(self.shared_prefix(&names, |_| true));
        kv.shared = match shared - names.len() >= CHECKPOINT_GAIN {
            true => shared as u32 * self.block_tokens,
            false => 0,
        };
        PrefixMatch {
            tokens: names.len() as u32 * self.block_tokens,
            names,
        }
    }

    /// Returns the blocks per group that a sequence takes to hold `target` tokens after a hit.
    pub(crate) fn blocks_needed(&self, found: &PrefixMatch, target: u32) -> Vec<i64> {
        let need = |index: usize| {
            let group = &self.groups[index];
            let range = self.hit_range(index, found);
            let unleased = i64::from(self.unleased(index, found, range.clone()));
            if group.kind == GroupKind::State {
                // The checkpoint is leased beside the state until the plan is made.
                return 1 + unleased;
            }
            let missing = i64::from(group.blocks_for(target)) - i64::from(range.end);
            let held = i64::from(group.max_held_blocks(self.max_running));
            (missing + unleased).min(held)
        };
        (0..self.groups.len()).map(need).collect()
    }

    /// Returns the tokens that a sequence can hold after a hit, with all available blocks.
    pub(crate) fn room_after(&self, found: &PrefixMatch) -> u32 {
        let blocks = found.names.len() as u32;
        let room = |index: usize| {
            let group = &self.groups[index];
            // Blocks behind the window are released at once.
            let kept = self.unleased(index, found, group.required(blocks));
            match group.grows() {
                true => group.room(blocks + group.pool.available() - kept),
                false => u32::MAX,
            }
        };
        let rooms = (0..self.groups.len()).map(room);
        rooms.min().unwrap_or(0)
    }

    /// Leases the found blocks, and plans the copies of found checkpoints.
    pub(crate) fn lease_hit(&mut self, kv: &mut SequenceKv, found: &PrefixMatch) {
        if found.names.is_empty() {
            return;
        }
        for index in 0..self.groups.len() {
            let range = self.hit_range(index, found);
            let hits: Vec<_> = self.hit_blocks(index, found, range.clone()).collect();
            if self.groups[index].kind == GroupKind::State {
                self.restore(kv, index, &hits);
                continue;
            }
            let pool = &mut self.groups[index].pool;
            let chain = &mut kv.chains[index];
            chain.behind_window = range.start;
            let leases = hits.into_iter().map(|block| pool.share(block));
            chain.leases.extend(leases);
        }
        kv.cursor.move_to(&found.names);
        kv.last_checkpoint = found.tokens;
        self.release_behind_windows(kv, found.tokens);
    }

    /// Copies a checkpoint to the block of a new state.
    fn restore(&mut self, kv: &mut SequenceKv, group: usize, hits: &[BlockId]) {
        // The checkpoint's lease comes first, so that the state does not take its block.
        let leases = hits.iter().map(|&hit| self.groups[group].pool.share(hit));
        for source in leases.collect::<Vec<_>>() {
            let Some(state) = self.take(group) else {
                self.end_lease(group, source);
                continue;
            };
            let destination = state.block();
            kv.chains[group].leases.push(state);
            self.copies.push(PendingCopy {
                group,
                source,
                destination,
            });
        }
    }

    /// Returns how many of the found blocks of the naming group all groups of the wanted kinds have.
    /// Shrinks until it is right for each of them.
    fn shared_prefix(&self, names: &[Name], wanted: fn(GroupKind) -> bool) -> usize {
        let mut blocks = names.len();
        loop {
            let before = blocks;
            for (index, group) in self.groups.iter().enumerate() {
                if index != self.naming && wanted(group.kind) {
                    blocks = group.longest_prefix(&names[..blocks]);
                }
            }
            if blocks == before {
                return blocks;
            }
        }
    }

    /// Returns the blocks of a hit that a group leases, by position.
    fn hit_range(&self, group: usize, found: &PrefixMatch) -> Range<u32> {
        let blocks = found.names.len() as u32;
        match group == self.naming {
            true => 0..blocks,
            false => self.groups[group].required(blocks),
        }
    }

    /// Returns how many of a group's found blocks have no lease.
    fn unleased(&self, group: usize, found: &PrefixMatch, range: Range<u32>) -> u32 {
        let pool = &self.groups[group].pool;
        let hits = self.hit_blocks(group, found, range);
        hits.filter(|&block| pool.references(block) == 0).count() as u32
    }

    fn hit_blocks<'a>(
        &'a self,
        group: usize,
        found: &'a PrefixMatch,
        range: Range<u32>,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let names = &found.names[range.start as usize..range.end as usize];
        names
            .iter()
            .filter_map(move |name| match group == self.naming {
                true => Some(name.block),
                false => self.groups[group].named.find(name.block),
            })
    }
}
