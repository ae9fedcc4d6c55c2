//! Admission: a sequence enters a slot if all known tokens of all sequences, and some growth, have
//! room.

use crate::config::Reserve;
use crate::flight::Reach;
use crate::ids::Micros;
use crate::memory::{Group, Hits};
use crate::plan_builder::{PlanBuilder, Shortage, full, tables};
use crate::planner::chunk;
use crate::scheduler::Scheduler;
use crate::sequence::{QueueClass, Sequence, SequenceKey};

/// Queued sequences that a plan tries without success. Bounds its time behind a long queue.
const MISSES: usize = 16;

/// The result of trying to admit one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Entered,
    /// It waits for its own outcomes, for blocks that another sequence computes, for the next
    /// budget, or for a long prompt that it is not short enough to pass.
    Later,
    /// Its blocks would not last.
    NoRoom,
}

/// The result of a prefix search over all groups.
struct PrefixMatch {
    /// Leading tokens, a whole number of blocks in every group.
    tokens: u32,
    hits: Vec<Hits>,
}

impl Scheduler {
    /// Admits from the queue while tokens and slots are left. Later sequences pass one without room
    /// until it has waited for `aging`; then all behind it wait too.
    pub(crate) fn admit(&mut self, builder: &mut PlanBuilder) {
        let nothing = self.queue.is_empty() || self.slots.free() == 0 || builder.budget == 0;
        if nothing || builder.shortage == Shortage::Blocks {
            return;
        }
        let mut spare = self.spare(builder);
        if spare.iter().any(|&blocks| blocks < 1) {
            // The last known token's block is never found in the cache, so every sequence needs one
            // block.
            return;
        }
        let aged = builder.now.0.checked_sub(self.config.aging).map(Micros);
        let is_aged = |sequence: &Sequence| aged.is_some_and(|aged| sequence.since <= aged);
        let mut misses = 0;
        for key in self.queue.candidates(aged, self.slots.free() + MISSES) {
            if self.slots.free() == 0 || builder.budget == 0 || misses == MISSES {
                return;
            }
            let aged = is_aged(&self.store[key]);
            match self.try_admit(key, aged, &mut spare, builder) {
                Admission::Entered => {}
                Admission::NoRoom if aged => return,
                Admission::NoRoom | Admission::Later => misses += 1,
            }
        }
    }

    /// Returns the blocks per group that no running sequence needs for its target.
    fn spare(&self, builder: &PlanBuilder) -> Vec<i64> {
        // The target is one block beyond the known tokens; decodes were counted when they were
        // planned.
        let (wanting, keys) = match self.config.reserve {
            Reserve::Growth => (builder.decode_stats.wanting, &builder.others),
            Reserve::ToFinish => (0, &self.running),
        };
        let spare = |group: &Group| i64::from(group.pool.available()) - i64::from(wanting);
        let mut spare: Vec<_> = self.groups.iter().map(spare).collect();
        for &key in keys {
            let sequence = &self.store[key];
            for (spare, group) in spare.iter_mut().zip(&self.groups) {
                let block_tokens = group.geometry.block_tokens;
                // A lower bound of the missing blocks: `room` is the least over all groups.
                let short = self
                    .target(sequence, block_tokens)
                    .saturating_sub(sequence.room);
                let missing = short.div_ceil(block_tokens);
                *spare -= i64::from(missing.min(self.max_held_blocks(group)));
            }
        }
        spare
    }

    /// Returns the tokens that should have room if a sequence is to continue without preemption.
    fn target(&self, sequence: &Sequence, headroom: u32) -> u32 {
        if self.config.reserve == Reserve::ToFinish {
            return sequence.max_room();
        }
        let known = sequence.room_to_yield(self.config.max_tokens_per_run);
        known.saturating_add(headroom).min(sequence.max_room())
    }

    /// Returns the most blocks of a group that a sequence holds at once.
    fn max_held_blocks(&self, group: &Group) -> u32 {
        let plans = u32::from(self.config.depth);
        group.max_held_blocks(self.config.max_step_tokens.saturating_mul(plans))
    }

    fn try_admit(
        &mut self,
        key: SequenceKey,
        aged: bool,
        spare: &mut [i64],
        builder: &mut PlanBuilder,
    ) -> Admission {
        if self.store[key].in_flight > 0 {
            return Admission::Later;
        }
        let found = self.search(key);
        if !aged && self.claimed(key, found.tokens, &builder.claimants) {
            return Admission::Later;
        }
        let needs = self.needs(key, &found);
        if needs
            .iter()
            .zip(spare.iter())
            .any(|(need, spare)| need > spare)
        {
            return Admission::NoRoom;
        }
        let remaining = self.store[key].len() - found.tokens;
        // If only the last token is left, forks find the same blocks as their parent.
        let forks_to_make = match remaining {
            1 => 0,
            _ => self.store[key].forks_to_make,
        };
        let (tokens, reach) = chunk(
            remaining,
            forks_to_make,
            builder.budget,
            self.config.max_tokens_per_run,
        );
        if tokens == 0 || !builder.may_prefill(remaining) {
            return Admission::Later;
        }
        for (spare, need) in spare.iter_mut().zip(needs) {
            *spare -= need;
        }
        self.begin(key, &found, builder.now);
        self.first_run(key, tokens, reach, builder);
        if remaining == 1 {
            self.make_forks(key, builder.now);
        }
        Admission::Entered
    }

    fn search(&mut self, key: SequenceKey) -> PrefixMatch {
        let sequence = &mut self.store[key];
        let last = (sequence.len() - 1).min(sequence.max_cached_tokens);
        let mut found = PrefixMatch {
            tokens: 0,
            hits: vec![Hits::default(); self.groups.len()],
        };
        if !self.config.prefix_cache {
            return found;
        }
        // Shrinks until it is a whole number of found blocks in every group. The last known token
        // must run, so at least its block is computed again.
        found.tokens = last;
        loop {
            let (chains, contents) = sequence.parts();
            let mut first = None;
            for ((group, chain), hits) in self.groups.iter().zip(chains).zip(&mut found.hits) {
                let block_tokens = group.geometry.block_tokens;
                *hits = group.search(chain, contents, found.tokens / block_tokens);
                found.tokens = found.tokens.min(hits.blocks * block_tokens);
                first.get_or_insert(found.tokens);
            }
            // A group must not take what a later group lacks.
            if first.is_none_or(|first| first == found.tokens) {
                return found;
            }
        }
    }

    /// Returns whether a running sequence is about to compute the next block that this one lacks.
    fn claimed(&self, key: SequenceKey, hit: u32, claimants: &[SequenceKey]) -> bool {
        let Some(group) = self.groups.first() else {
            return false;
        };
        let block = (hit / group.geometry.block_tokens) as usize;
        let end = hit + group.geometry.block_tokens;
        let sequence = &self.store[key];
        if end >= sequence.len() || end > sequence.max_cached_tokens {
            return false;
        }
        let block_key = sequence
            .chains
            .first()
            .and_then(|chain| chain.keys.get(block));
        block_key.is_some()
            && claimants
                .iter()
                .map(|&claimant| &self.store[claimant])
                .any(|other| {
                    let theirs = other.chains.first().and_then(|chain| chain.keys.get(block));
                    theirs == block_key && other.computed < end && end <= other.claimed
                })
    }

    /// Returns the blocks per group that an admission takes from the spare ones. A resumed sequence
    /// needs room to generate as many tokens as it recomputes, or it would soon be preempted again.
    fn needs(&self, key: SequenceKey, found: &PrefixMatch) -> Vec<i64> {
        let sequence = &self.store[key];
        let recomputed = match sequence.queue_class {
            QueueClass::Resumed => sequence.len() - found.tokens,
            QueueClass::Fresh => 0,
        };
        let need = |(group, hits): (&Group, &Hits)| {
            let headroom = recomputed.max(group.geometry.block_tokens);
            let target = group.blocks_for(self.target(sequence, headroom));
            let shared = i64::from(hits.blocks - hits.unleased);
            (i64::from(target) - shared).min(i64::from(self.max_held_blocks(group)))
        };
        self.groups.iter().zip(&found.hits).map(need).collect()
    }

    /// Moves a sequence from the queue into a slot, with the found blocks.
    fn begin(&mut self, key: SequenceKey, found: &PrefixMatch, now: Micros) {
        let Some(slot) = self.slots.take() else {
            return;
        };
        self.dequeue(key);
        self.counters
            .count_start(&self.store[key], found.tokens, now);
        let sequence = &mut self.store[key];
        sequence.computed = found.tokens;
        sequence.planned = found.tokens;
        let (chains, contents) = sequence.parts();
        for (group, chain) in self.groups.iter_mut().zip(chains) {
            group.lease_hits(chain, contents, found.tokens / group.geometry.block_tokens);
            group.release_behind_window(chain, found.tokens);
        }
        let smallest = self
            .groups
            .iter()
            .map(|group| group.geometry.block_tokens)
            .min();
        sequence.boundary = found.tokens + smallest.unwrap_or(0);
        if self.config.prefix_cache {
            let size = self
                .groups
                .first()
                .map_or(1, |group| group.geometry.block_tokens);
            sequence.claimed = sequence.len() / size * size;
        }
        self.enter(key, slot);
    }

    fn first_run(
        &mut self,
        key: SequenceKey,
        tokens: u32,
        reach: Reach,
        builder: &mut PlanBuilder,
    ) {
        let sequence = &self.store[key];
        let Some(slot) = sequence.slot() else { return };
        let wanted = match reach {
            Reach::Yields => sequence.room_to_yield(self.config.max_tokens_per_run),
            Reach::Part => sequence.planned + tokens,
        };
        self.extend(key, wanted);
        let sequence = &self.store[key];
        builder.claimants.push(key);
        builder
            .new
            .push(full(sequence, slot, tables(sequence), sequence.planned));
        self.push_prompt(key, tokens, reach, builder);
    }
}
