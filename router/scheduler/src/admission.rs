//! Who enters a slot: room is checked for all known tokens and some growth, of everyone.

use crate::config::Reserve;
use crate::draft::{Draft, Shortage, full, tables};
use crate::flight::Reach;
use crate::ids::Micros;
use crate::memory::{Group, Hits};
use crate::planner::chunk;
use crate::scheduler::Scheduler;
use crate::sequence::{Place, Sequence, Standing};

/// Queued sequences that a plan tries in vain: bounds the time that it takes behind a long queue.
const MISSES: usize = 16;

/// What came of trying to admit one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Entered,
    /// It waits for its own outcomes, for blocks that another computes, for the next budget, or for
    /// a prompt that is not much longer.
    Later,
    /// Its blocks would not last.
    NoRoom,
}

/// What a prefix search found over all groups.
struct Found {
    /// Leading tokens, a whole number of blocks in every group.
    tokens: u32,
    hits: Vec<Hits>,
}

impl Scheduler {
    /// Admits from the queue while tokens and slots are left. A sequence without room is passed by
    /// later ones until it has waited for `aging`; then everybody behind it waits too.
    pub(crate) fn admit(&mut self, draft: &mut Draft) {
        let nothing = self.queue.is_empty() || self.slots.free() == 0 || draft.budget == 0;
        if nothing || draft.shortage == Shortage::Blocks {
            return;
        }
        let mut spare = self.spare(draft);
        if spare.iter().any(|&blocks| blocks < 1) {
            // The block of the last known token is never found: everyone needs at least that one.
            return;
        }
        let aged = draft.now.0.checked_sub(self.config.aging).map(Micros);
        let is_aged = |sequence: &Sequence| aged.is_some_and(|aged| sequence.since <= aged);
        let mut misses = 0;
        for place in self.queue.candidates(aged, self.slots.free() + MISSES) {
            if self.slots.free() == 0 || draft.budget == 0 || misses == MISSES {
                return;
            }
            let aged = is_aged(&self.store[place]);
            match self.try_admit(place, aged, &mut spare, draft) {
                Admission::Entered => {}
                Admission::NoRoom if aged => return,
                Admission::NoRoom | Admission::Later => misses += 1,
            }
        }
    }

    /// Blocks per group that nobody needs for its target.
    fn spare(&self, draft: &Draft) -> Vec<i64> {
        // With a target of one block beyond what is known, those who decode were counted on the way.
        let (wanting, places) = match self.config.reserve {
            Reserve::Growth => (draft.tally.wanting, &draft.others),
            Reserve::ToFinish => (0, &self.running),
        };
        let spare = |group: &Group| i64::from(group.pool.available()) - i64::from(wanting);
        let mut spare: Vec<_> = self.groups.iter().map(spare).collect();
        for &place in places {
            let sequence = &self.store[place];
            for (spare, group) in spare.iter_mut().zip(&self.groups) {
                let block_tokens = group.geometry.block_tokens;
                // At least the blocks that are missing: `room` is the least over all groups.
                let short = self
                    .target(sequence, block_tokens)
                    .saturating_sub(sequence.room);
                let missing = short.div_ceil(block_tokens);
                *spare -= i64::from(missing.min(self.most_held(group)));
            }
        }
        spare
    }

    /// Tokens for which a sequence should find room if it is to run on without preemption.
    fn target(&self, sequence: &Sequence, headroom: u32) -> u32 {
        if self.config.reserve == Reserve::ToFinish {
            return sequence.max_room();
        }
        let known = sequence.room_to_yield(self.config.max_tokens_per_run);
        known.saturating_add(headroom).min(sequence.max_room())
    }

    /// Blocks of a group that a sequence holds at most at once.
    fn most_held(&self, group: &Group) -> u32 {
        let plans = u32::from(self.config.depth);
        group.most_held(self.config.max_step_tokens.saturating_mul(plans))
    }

    fn try_admit(
        &mut self,
        place: Place,
        aged: bool,
        spare: &mut [i64],
        draft: &mut Draft,
    ) -> Admission {
        if self.store[place].in_flight > 0 {
            return Admission::Later;
        }
        let found = self.search(place);
        if !aged && self.claimed(place, found.tokens, &draft.claimants) {
            return Admission::Later;
        }
        let needs = self.needs(place, &found);
        if needs
            .iter()
            .zip(spare.iter())
            .any(|(need, spare)| need > spare)
        {
            return Admission::NoRoom;
        }
        let remaining = self.store[place].len() - found.tokens;
        // With nothing to compute before the last token, forks find what their parent finds.
        let unborn = match remaining {
            1 => 0,
            _ => self.store[place].unborn,
        };
        let (tokens, reach) = chunk(
            remaining,
            unborn,
            draft.budget,
            self.config.max_tokens_per_run,
        );
        if tokens == 0 || !draft.has_turn(remaining) {
            return Admission::Later;
        }
        for (spare, need) in spare.iter_mut().zip(needs) {
            *spare -= need;
        }
        self.begin(place, &found, draft.now);
        self.first_run(place, tokens, reach, draft);
        if remaining == 1 {
            self.divide(place, draft.now);
        }
        Admission::Entered
    }

    fn search(&mut self, place: Place) -> Found {
        let sequence = &mut self.store[place];
        let last = (sequence.len() - 1).min(sequence.cached_at_most);
        let mut found = Found {
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
            // What a later group lacks, those before it must not take.
            if first.is_none_or(|first| first == found.tokens) {
                return found;
            }
        }
    }

    /// Whether a running sequence is about to compute the next block that this one lacks.
    fn claimed(&self, place: Place, hit: u32, claimants: &[Place]) -> bool {
        let Some(group) = self.groups.first() else {
            return false;
        };
        let block = (hit / group.geometry.block_tokens) as usize;
        let end = hit + group.geometry.block_tokens;
        let sequence = &self.store[place];
        if end >= sequence.len() || end > sequence.cached_at_most {
            return false;
        }
        let key = sequence
            .chains
            .first()
            .and_then(|chain| chain.keys.get(block));
        key.is_some()
            && claimants
                .iter()
                .map(|&claimant| &self.store[claimant])
                .any(|other| {
                    let theirs = other.chains.first().and_then(|chain| chain.keys.get(block));
                    theirs == key && other.computed < end && end <= other.claimed
                })
    }

    /// Blocks per group that admission takes from what is spare. A resumed sequence needs room to
    /// generate as many tokens as it recomputes, or it would be preempted again for nothing.
    fn needs(&self, place: Place, found: &Found) -> Vec<i64> {
        let sequence = &self.store[place];
        let recomputed = match sequence.standing {
            Standing::Resumed => sequence.len() - found.tokens,
            Standing::Fresh => 0,
        };
        let need = |(group, hits): (&Group, &Hits)| {
            let headroom = recomputed.max(group.geometry.block_tokens);
            let target = group.blocks_for(self.target(sequence, headroom));
            let shared = i64::from(hits.blocks - hits.unleased);
            (i64::from(target) - shared).min(i64::from(self.most_held(group)))
        };
        self.groups.iter().zip(&found.hits).map(need).collect()
    }

    /// Moves a sequence from the queue into a slot, with the blocks that were found.
    fn begin(&mut self, place: Place, found: &Found, now: Micros) {
        let Some(slot) = self.slots.take() else {
            return;
        };
        self.dequeue(place);
        self.counters.begun(&self.store[place], found.tokens, now);
        let sequence = &mut self.store[place];
        sequence.computed = found.tokens;
        sequence.planned = found.tokens;
        let (chains, contents) = sequence.parts();
        for (group, chain) in self.groups.iter_mut().zip(chains) {
            group.lease_hits(chain, contents, found.tokens / group.geometry.block_tokens);
            group.pass(chain, found.tokens);
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
        self.enter(place, slot);
    }

    fn first_run(&mut self, place: Place, tokens: u32, reach: Reach, draft: &mut Draft) {
        let sequence = &self.store[place];
        let Some(slot) = sequence.slot() else { return };
        let wanted = match reach {
            Reach::Yields => sequence.room_to_yield(self.config.max_tokens_per_run),
            Reach::Part => sequence.planned + tokens,
        };
        self.extend(place, wanted);
        let sequence = &self.store[place];
        draft.claimants.push(place);
        draft
            .new
            .push(full(sequence, slot, tables(sequence), sequence.planned));
        self.push_prompt(place, tokens, reach, draft);
    }
}
