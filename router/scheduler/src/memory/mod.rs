//! KV memory: a pool of blocks per group, a prefix cache over all groups, and the blocks of each
//! sequence.
//!
//! **Kinds of groups.** In a group of full attention, a sequence holds a block for each
//! `block_tokens` tokens. With a sliding window, it releases its blocks as the window passes them;
//! blocks that other sequences share stay leased, the others stay cached and are evicted before the
//! blocks that the sequence still holds. In a group of states (recurrent layers), it holds one block
//! with its state, which every run overwrites.
//!
//! **Prefix cache.** One group names prefixes: the first one with full attention, else the first one
//! with a window. Its blocks are found by their token ids (`prefix`). The other groups keep their
//! blocks under these names (`names`), and lose them when the name's block is evicted. A hit is the
//! longest prefix that all groups have: in the naming group and in groups of full attention all
//! blocks, with a window the blocks that the next token attends to, in a group of states a checkpoint
//! at the end of the prefix.
//!
//! **Checkpoints** are copies of states at block boundaries. A prompt's chunk ends at a boundary where
//! it can; the next plan of the sequence copies its state before it runs on. A hit copies the
//! checkpoint to the block of the new sequence's state. Where a prompt has more in common with
//! earlier ones than the hit, a chunk ends there too: the next prompt that begins so finds a
//! checkpoint.

mod chain;
mod check;
mod group;
mod hit;
mod names;
mod prefix;
mod state;

pub(crate) use chain::{Contents, SequenceKv};
pub(crate) use group::BlockLease;

use crate::config::{GroupKind, SchedulerConfig};
use crate::ids::{BlockId, GroupId};
use crate::plan::BlockCopy;
use chain::Chain;
use group::Group;
pub(crate) use hit::PrefixMatch;
use prefix::{Link, Prefix};

/// The KV memory of all groups, and its prefix cache.
#[derive(Debug)]
pub(crate) struct KvMemory {
    block_tokens: u32,
    /// Whether computed blocks are kept for later requests.
    caches: bool,
    groups: Vec<Group>,
    /// Index of the group whose blocks name prefixes.
    naming: usize,
    prefix: Prefix,
    /// Tokens in flight of one sequence for which admission keeps room: those of one step. Chunks
    /// become shorter where a window's pool has no room for more.
    max_running: u32,
    /// Indices of the groups of states.
    states: Vec<usize>,
    /// Copies of states in the plan under construction.
    copies: Vec<PendingCopy>,
}

/// A block to copy in the next plan. The lease keeps the source until then.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    group: usize,
    source: BlockLease,
    destination: BlockId,
}

/// The memory of a fork.
pub(crate) struct ForkedKv {
    pub(crate) kv: SequenceKv,
    /// Tokens that its blocks hold.
    pub(crate) room: u32,
    /// At most one block per group.
    pub(crate) copies: Vec<PendingCopy>,
}

/// Blocks of all groups, by state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockCounts {
    pub(crate) free: u64,
    pub(crate) leased: u64,
    pub(crate) cached: u64,
    pub(crate) references: u64,
}

impl KvMemory {
    /// Creates an empty memory.
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let position = |wanted: fn(GroupKind) -> bool| {
            let mut kinds = config.groups.iter().map(|group| group.kind);
            kinds.position(wanted)
        };
        let naming = position(|kind| kind == GroupKind::Full)
            .or_else(|| position(|kind| kind != GroupKind::State));
        let index = naming.unwrap_or(0);
        let names = config.groups.get(index).map_or(0, |group| group.blocks);
        let group = |&group| Group::new(group, config.block_tokens, names);
        let is_state = |&index: &usize| config.groups[index].kind == GroupKind::State;
        Self {
            block_tokens: config.block_tokens,
            caches: config.prefix_cache && naming.is_some(),
            groups: config.groups.iter().map(group).collect(),
            naming: index,
            prefix: Prefix::new(names, config.block_tokens),
            max_running: config.max_step_tokens,
            states: (0..config.groups.len()).filter(is_state).collect(),
            copies: Vec::new(),
        }
    }

    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether computed blocks are kept for later requests.
    pub(crate) fn caches(&self) -> bool {
        self.caches
    }

    /// Returns whether `sequences` sequences can each take a block in every group that grows.
    pub(crate) fn has_blocks_for(&self, sequences: usize) -> bool {
        let mut growing = self.groups.iter().filter(|group| group.grows());
        growing.all(|group| group.pool.available() as usize >= sequences)
    }

    /// Returns whether every group has a block for a fork.
    pub(crate) fn can_fork(&self) -> bool {
        self.groups.iter().all(|group| group.pool.available() > 0)
    }

    /// Returns how many tokens a sequence could hold with all available blocks.
    pub(crate) fn possible_room(&self, kv: &SequenceKv) -> u32 {
        let chains = self.groups.iter().zip(&kv.chains);
        let rooms = chains.map(|(group, chain)| group.possible_room(chain));
        rooms.min().unwrap_or(0)
    }

    /// Returns the available blocks per group, less one for each of `growing` sequences.
    pub(crate) fn available(&self, growing: u32) -> Vec<i64> {
        let available = |group: &Group| {
            let taken = if group.grows() { growing } else { 0 };
            i64::from(group.pool.available()) - i64::from(taken)
        };
        self.groups.iter().map(available).collect()
    }

    /// Returns the blocks per group that a running sequence takes for `tokens` more tokens.
    pub(crate) fn missing_blocks(&self, tokens: u32) -> impl Iterator<Item = i64> + '_ {
        self.groups.iter().map(move |group| {
            let missing = tokens.div_ceil(self.block_tokens);
            match group.grows() {
                true => i64::from(missing.min(group.max_held_blocks(self.max_running))),
                false => 0,
            }
        })
    }

    /// Touches the memory that `count` sequences will read when each takes a block, so that their
    /// cache misses overlap.
    pub(crate) fn prefetch(&self, count: usize) {
        let pool = &self.groups[self.naming].pool;
        let evicted = count.saturating_sub(pool.free() as usize);
        self.prefix
            .prefetch_removal(pool.cached_blocks().take(evicted));
    }

    /// Takes blocks until the sequence holds `tokens` tokens or a group has none left. Calls
    /// `gained` with each group and its new blocks. Returns how many tokens the sequence then holds.
    pub(crate) fn extend(
        &mut self,
        kv: &mut SequenceKv,
        tokens: u32,
        mut gained: impl FnMut(usize, &[BlockLease]),
    ) -> u32 {
        let mut room = u32::MAX;
        for (index, chain) in kv.chains.iter_mut().enumerate() {
            let blocks = self.groups[index].blocks_for(tokens);
            let held = chain.leases.len();
            while chain.len() < blocks {
                let Some(lease) = self.take(index) else { break };
                chain.leases.push(lease);
            }
            gained(index, &chain.leases[held..]);
            room = room.min(self.groups[index].room(chain.len()));
        }
        room
    }

    /// Returns the memory of a fork after `computed` tokens of its parent: shared full blocks, and
    /// copies of partial blocks and of states.
    pub(crate) fn fork(&mut self, parent: &SequenceKv, computed: u32) -> ForkedKv {
        let mut forked = ForkedKv {
            kv: SequenceKv {
                chains: Vec::with_capacity(parent.chains.len()),
                cursor: parent.cursor.clone(),
                checkpoints: Vec::new(),
                // A plan must not copy from the block that it copies the state to.
                last_checkpoint: computed,
                shared: 0,
            },
            room: u32::MAX,
            copies: Vec::new(),
        };
        for (index, original) in parent.chains.iter().enumerate() {
            let group = &mut self.groups[index];
            let shared = group.shared_blocks(computed) - original.behind_window;
            let (shared, rest) = original.leases.split_at(shared as usize);
            let mut chain = Chain {
                leases: Vec::with_capacity(shared.len() + 1),
                behind_window: original.behind_window,
            };
            let share = |lease: &BlockLease| group.pool.share(lease.block());
            chain.leases.extend(shared.iter().map(share));
            let partial = rest.first().filter(|_| group.copies_for_fork(computed));
            if let Some(partial) = partial
                && let Some(copy) = self.take(index)
            {
                let source = self.groups[index].pool.share(partial.block());
                let destination = copy.block();
                forked.copies.push(PendingCopy {
                    group: index,
                    source,
                    destination,
                });
                chain.leases.push(copy);
            }
            forked.room = forked.room.min(self.groups[index].room(chain.len()));
            forked.kv.chains.push(chain);
        }
        forked
    }

    /// Computes the key of a sequence's next block for each of them, and touches the buckets, so that
    /// their cache misses overlap.
    pub(crate) fn prefetch_index(&self, keys: impl Iterator<Item = u64>) {
        self.prefix.prefetch(keys);
    }

    /// Returns the key of the first block that is not indexed, if that block is full.
    pub(crate) fn next_key(&self, kv: &mut SequenceKv, contents: Contents<'_>) -> Option<u64> {
        kv.cursor.next_key(contents, self.block_tokens)
    }

    /// Makes the full blocks of a sequence's `computed` tokens findable, and its checkpoints before
    /// them, and releases the blocks behind its windows. Runs in flight do not read these: they
    /// continue after `computed`. Returns the computed length at which it must be called again.
    pub(crate) fn settle(
        &mut self,
        kv: &mut SequenceKv,
        contents: Contents<'_>,
        computed: u32,
    ) -> u32 {
        if self.caches {
            self.index(kv, contents, computed);
            self.settle_checkpoints(kv, computed);
        }
        self.release_behind_windows(kv, computed);
        let boundary = (computed / self.block_tokens + 1) * self.block_tokens;
        match kv.checkpoints.first() {
            Some(checkpoint) => boundary.min(checkpoint.position + 1),
            None => boundary,
        }
    }

    /// Releases a sequence's blocks, tail first. Findable blocks stay cached.
    pub(crate) fn release(&mut self, kv: &mut SequenceKv) {
        for (index, chain) in kv.chains.iter_mut().enumerate() {
            while let Some(lease) = chain.leases.pop() {
                self.end_lease(index, lease);
            }
        }
        for checkpoint in std::mem::take(&mut kv.checkpoints) {
            self.drop_checkpoint(checkpoint);
        }
        kv.clear();
    }

    /// Returns the copies of states that the plan under construction makes.
    pub(crate) fn take_copies(&mut self) -> Vec<BlockCopy> {
        let copies = std::mem::take(&mut self.copies).into_iter();
        copies.map(|copy| self.plan_copy(copy)).collect()
    }

    /// Turns a pending copy into one of the plan.
    pub(crate) fn plan_copy(&mut self, copy: PendingCopy) -> BlockCopy {
        let planned = BlockCopy {
            group: GroupId(copy.group as u32),
            source: copy.source.block(),
            destination: copy.destination,
        };
        self.cancel_copy(copy);
        planned
    }

    /// Gives up a pending copy; its destination belongs to the sequence that needed it.
    pub(crate) fn cancel_copy(&mut self, copy: PendingCopy) {
        self.end_lease(copy.group, copy.source);
    }

    /// Returns the blocks of all groups, by state.
    pub(crate) fn counts(&self) -> BlockCounts {
        let mut counts = BlockCounts::default();
        for pool in self.groups.iter().map(|group| &group.pool) {
            counts.free += u64::from(pool.free());
            counts.leased += u64::from(pool.leased());
            counts.cached += u64::from(pool.cached());
            counts.references += pool.total_references();
        }
        counts
    }

    /// Leases a block for new contents; evicts the least recently used cached one if none is free.
    fn take(&mut self, group: usize) -> Option<BlockLease> {
        let pool = &mut self.groups[group].pool;
        if let Some(lease) = pool.lease_free() {
            return Some(lease);
        }
        let lease = pool.lease_oldest()?;
        self.forget(group, lease.block());
        Some(lease)
    }

    /// Removes a block from the prefix cache, and with a name the blocks that other groups keep under
    /// it.
    fn forget(&mut self, group: usize, block: BlockId) {
        if group != self.naming {
            self.groups[group].named.remove(block);
            return;
        }
        self.prefix.remove(block);
        let others = self.groups.iter_mut().enumerate();
        for (_, other) in others.filter(|&(index, _)| index != group) {
            other.forget_name(block);
        }
    }

    /// Ends a lease: the way of every release (end or preemption, blocks behind a window, checkpoints,
    /// copies).
    fn end_lease(&mut self, group: usize, lease: BlockLease) {
        let after_release = match self.is_findable(group, lease.block()) {
            true => group::AfterRelease::Cached,
            false => group::AfterRelease::Free,
        };
        self.groups[group].pool.release(lease, after_release);
    }

    fn is_findable(&self, group: usize, block: BlockId) -> bool {
        match group == self.naming {
            true => self.prefix.contains(block),
            false => self.groups[group].named.contains(block),
        }
    }

    fn release_behind_windows(&mut self, kv: &mut SequenceKv, computed: u32) {
        for (index, chain) in kv.chains.iter_mut().enumerate() {
            let behind = self.groups[index].blocks_behind_window(computed);
            let count = behind - chain.behind_window;
            if count == 0 {
                continue;
            }
            for lease in chain.leases.drain(..count as usize) {
                self.end_lease(index, lease);
            }
            chain.behind_window = behind;
        }
    }

    /// Makes the blocks of the first `computed` tokens findable in every group.
    fn index(&mut self, kv: &mut SequenceKv, contents: Contents<'_>, computed: u32) {
        let full = computed / self.block_tokens;
        let SequenceKv { chains, cursor, .. } = kv;
        while cursor.indexed < full {
            let at = cursor.indexed;
            let Some(key) = cursor.next_key(contents, self.block_tokens) else {
                break;
            };
            let Some(lease) = chains[self.naming].lease(at) else {
                break;
            };
            let link = Link {
                key,
                parent: cursor.name.node,
                salt: contents.salt,
                tokens: contents.block(at, self.block_tokens).unwrap_or_default(),
            };
            let name = self.prefix.insert(lease.block(), &link);
            for (index, (group, chain)) in self.groups.iter_mut().zip(&*chains).enumerate() {
                if index != self.naming
                    && group.grows()
                    && let Some(lease) = chain.lease(at)
                {
                    group.named.insert(name.block, lease.block());
                }
            }
            cursor.step(key, name);
        }
    }
}
