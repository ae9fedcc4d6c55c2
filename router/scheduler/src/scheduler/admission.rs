//! Admission: a sequence enters a slot if all known tokens of all sequences, and some growth, have
//! room.

use super::Scheduler;
use crate::config::Reserve;
use crate::ids::{Micros, SequenceKey};
use crate::memory::PrefixMatch;
use crate::plan::Chunk;
use crate::plan_builder::{PlanBuilder, Shortage, full};
use crate::sequence::{QueueClass, Sequence};

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

impl Scheduler {
    /// Admits from the queue while tokens and slots are left. Later sequences pass one without room
    /// until it has waited for `aging`; then all behind it wait too.
    pub(super) fn admit(&mut self, builder: &mut PlanBuilder) {
        let nothing =
            self.waiting.is_empty() || self.running.free_slots() == 0 || builder.budget == 0;
        if nothing {
            return;
        }
        if builder.shortage == Shortage::Blocks {
            self.request_blocks();
            return;
        }
        let mut spare = self.spare(builder);
        if spare.iter().any(|&blocks| blocks < 1) {
            // The last known token's block is never found in the cache, so every sequence needs one
            // block.
            self.request_blocks();
            return;
        }
        let aged = builder.now.0.checked_sub(self.config.aging).map(Micros);
        let is_aged = |sequence: &Sequence| aged.is_some_and(|aged| sequence.since <= aged);
        let mut misses = 0;
        for key in self
            .waiting
            .candidates(&self.accounts, aged, self.running.free_slots() + MISSES)
        {
            if self.running.free_slots() == 0 || builder.budget == 0 || misses == MISSES {
                return;
            }
            let aged = is_aged(&self.store[key]);
            match self.try_admit(key, aged, &mut spare, builder) {
                Admission::Entered => {}
                Admission::NoRoom if self.is_starved(key) && self.request_blocks() => return,
                // The slot was freed for it.
                Admission::Later if self.running.free_slots() == 1 && self.is_starved(key) => {
                    return;
                }
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
            Reserve::Growth => (builder.decode_stats.wanting, &builder.others[..]),
            Reserve::ToFinish => (0, self.running.keys()),
        };
        let mut spare = self.memory.available(wanting);
        for &key in keys {
            let sequence = &self.store[key];
            // A lower bound of the missing tokens: `room` is the least over all groups.
            let target = self.target(sequence, self.memory.block_tokens());
            let missing = target.saturating_sub(sequence.room);
            for (spare, blocks) in spare.iter_mut().zip(self.memory.missing_blocks(missing)) {
                *spare -= blocks;
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
        let mut found = self.search(key);
        if !aged && self.claimed(key, found.tokens, &builder.claimants) {
            return Admission::Later;
        }
        let mut needs = self.needs(key, &found);
        if !fits(&needs, spare) {
            // A checkpoint needs a block beside the state that is restored from it.
            found = PrefixMatch::default();
            needs = self.needs(key, &found);
            if !fits(&needs, spare) {
                return Admission::NoRoom;
            }
        }
        let length = self.store[key].len();
        let remaining = length - found.tokens;
        // If only the last token is left, forks find the same blocks as their parent.
        let forks_to_make = match remaining {
            1 => 0,
            _ => self.store[key].forks_to_make,
        };
        let chunk = self.chunk(key, found.tokens, forks_to_make, builder.budget);
        if chunk.tokens == 0 || !builder.may_prefill(remaining) {
            return Admission::Later;
        }
        // Groups with windows may hold less than the first chunk.
        let k = self.config.max_tokens_per_run;
        let wanted = self.store[key].room_to_run(chunk, found.tokens, k);
        let room = self.memory.room_after(&found);
        let chunk = match wanted <= room {
            true => chunk,
            false => chunk.within(room, found.tokens, length),
        };
        if chunk.tokens == 0 {
            return Admission::NoRoom;
        }
        for (spare, need) in spare.iter_mut().zip(needs) {
            *spare -= need;
        }
        self.begin(key, &found, builder.now);
        self.first_run(key, chunk, builder);
        if remaining == 1 {
            self.make_forks(key, builder.now);
        }
        Admission::Entered
    }

    fn search(&mut self, key: SequenceKey) -> PrefixMatch {
        let sequence = &mut self.store[key];
        // The last known token must run, so at least its block is computed again.
        let last = (sequence.len() - 1).min(sequence.max_cached_tokens);
        let (kv, contents) = sequence.parts();
        self.memory.search(kv, contents, last)
    }

    /// Returns whether a running sequence is about to compute the next block that this one lacks.
    fn claimed(&self, key: SequenceKey, hit: u32, claimants: &[SequenceKey]) -> bool {
        let block_tokens = self.memory.block_tokens();
        let (block, end) = (hit / block_tokens, hit + block_tokens);
        let sequence = &self.store[key];
        if end >= sequence.len() || end > sequence.max_cached_tokens {
            return false;
        }
        let block_key = sequence.kv.block_key(block);
        let mut others = claimants.iter().map(|&claimant| &self.store[claimant]);
        block_key.is_some()
            && others.any(|other| {
                let same = other.kv.block_key(block) == block_key;
                same && other.computed < end && end <= other.claimed
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
        let headroom = recomputed.max(self.memory.block_tokens());
        self.memory
            .blocks_needed(found, self.target(sequence, headroom))
    }

    /// Moves a sequence from the queue into a slot, with the found blocks.
    fn begin(&mut self, key: SequenceKey, found: &PrefixMatch, now: Micros) {
        let Some(slot) = self.running.take_slot() else {
            return;
        };
        self.end_waiting(key);
        self.counters
            .count_start(&self.store[key], found.tokens, now);
        let sequence = &mut self.store[key];
        sequence.charged = sequence.charged.max(found.tokens);
        sequence.computed = found.tokens;
        sequence.planned = found.tokens;
        self.memory.lease_hit(&mut sequence.kv, found);
        let block_tokens = self.memory.block_tokens();
        sequence.boundary = found.tokens + block_tokens;
        if self.memory.caches() {
            sequence.claimed = sequence.len() / block_tokens * block_tokens;
        }
        self.count_begun(key);
        self.enter(key, slot);
    }

    fn first_run(&mut self, key: SequenceKey, chunk: Chunk, builder: &mut PlanBuilder) {
        let sequence = &self.store[key];
        let Some(slot) = sequence.slot() else { return };
        let k = self.config.max_tokens_per_run;
        let wanted = sequence.room_to_run(chunk, sequence.planned, k);
        self.extend(key, wanted);
        let sequence = &self.store[key];
        builder.claimants.push(key);
        builder
            .new
            .push(full(sequence, slot, sequence.kv.tables(), sequence.planned));
        self.push_prompt(key, chunk, builder);
    }
}

/// Returns whether the needed blocks are spare in every group.
fn fits(needs: &[i64], spare: &[i64]) -> bool {
    needs.iter().zip(spare).all(|(need, spare)| need <= spare)
}
