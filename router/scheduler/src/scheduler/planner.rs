//! `Scheduler::plan`: running sequences in order of seniority, then admissions.

use super::Scheduler;
use crate::cost::StepLoad;
use crate::ids::{Micros, SequenceKey};
use crate::memory::BlockLease;
use crate::plan::{Chunk, Reach, StepPlan};
use crate::plan_builder::{
    DecodeStats, PendingGrowth, PlanBuilder, PlanSection, Shortage, Streams,
};
use crate::request::{Pipelining, SequenceFacts};
use crate::sequence::{Phase, Sequence};

/// Plans that may always be in flight: one runs, one waits.
const BASE_DEPTH: usize = 2;

/// What one running sequence may do in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Nothing,
    Decode,
    Prefill,
    /// All of its prompt but the last token is computed: its forks are made now.
    Fork,
}

impl Scheduler {
    /// Returns the next step. None when nothing can run or enough plans are in flight. The next
    /// plan that runs something drops the slots of ended sequences.
    pub fn plan(&mut self, now: Micros) -> Option<StepPlan> {
        if self.has_lead() {
            return None;
        }
        self.make_way(now);
        loop {
            let mut builder = self.plan_builder(now);
            self.plan_running(&mut builder);
            self.admit(&mut builder);
            self.prefill_deferred(&mut builder);
            self.prefill_yielded(&mut builder);
            if !builder.decodes.runs.is_empty() || !builder.prompts.runs.is_empty() {
                return Some(self.finish_plan(builder));
            }
            if self.pending_forks.is_empty() && !self.preempt_held(now) {
                return None;
            }
            // The source blocks of pending forks may be all that is missing.
            while let Some(pending) = self.pending_forks.last() {
                self.preempt(pending.child, now);
            }
        }
    }

    /// Returns whether the workers have enough work until the next plan can reach them.
    fn has_lead(&self) -> bool {
        let flying = self.flights.len();
        let long = || {
            let times = self.flights.loads().map(|load| self.pacing.predict(load));
            let time: Option<f64> = times.sum();
            // Step times are unknown at first.
            time.is_none_or(|time| time >= self.config.lead as f64)
        };
        flying >= usize::from(self.config.depth) || flying >= BASE_DEPTH && long()
    }

    fn plan_builder(&mut self, now: Micros) -> PlanBuilder {
        let runs = self.flights.take_runs();
        let groups = self.memory.groups();
        PlanBuilder {
            now,
            new: Vec::new(),
            decodes: PlanSection::new(groups, runs, self.running.len()),
            prompts: PlanSection::new(groups, Vec::new(), 0),
            prefill: StepLoad::default(),
            streams: Streams::default(),
            pending_growth: Vec::new(),
            others: Vec::new(),
            decode_stats: DecodeStats::default(),
            budget: self.prompt_budget(now),
            deferred: None,
            yielded: Vec::new(),
            claimants: Vec::new(),
            shortage: Shortage::None,
        }
    }

    /// Gives running sequences their tokens, the most senior first. Preemption takes from the end
    /// of the list, so a plan never preempts a sequence that it runs.
    fn plan_running(&mut self, builder: &mut PlanBuilder) {
        let mut at = self.decode_fast_path(0, builder);
        while let Some(key) = self.running.get(at) {
            at += 1;
            let sequence = &self.store[key];
            if sequence.computed < sequence.claimed {
                builder.claimants.push(key);
            }
            match demand(sequence) {
                Demand::Nothing => {
                    builder.others.push(key);
                    // A steered sequence decodes in the next plan.
                    if sequence.phase == Phase::Decode {
                        builder.streams.count(sequence);
                    }
                }
                Demand::Decode => self.decode(key, at, builder),
                Demand::Prefill => {
                    builder.others.push(key);
                    let yields = self.yields_to_tenant(key, builder);
                    if !yields && !self.yields_to_shorter(key, builder) {
                        self.prefill(key, at, builder);
                    }
                }
                Demand::Fork => {
                    builder.others.push(key);
                    // Blocks of decodes are reserved first.
                    self.grow_decodes(builder);
                    self.make_forks(key, builder.now);
                    self.prefill(key, at, builder);
                }
            }
            at = self.decode_fast_path(at, builder);
        }
        self.grow_decodes(builder);
    }

    /// Plans decodes from index `at` of the running list, for as long as a decode needs nothing but
    /// its run. Returns the index of the first sequence that needs more.
    fn decode_fast_path(&mut self, mut at: usize, builder: &mut PlanBuilder) -> usize {
        let k = self.config.max_tokens_per_run;
        // A copy, so that it stays in registers.
        let mut decode_stats = builder.decode_stats;
        while let Some(key) = self.running.get(at) {
            let sequence = &mut self.store[key];
            let fast = demand(sequence) == Demand::Decode
                && sequence.room_to_yield(k) <= sequence.room
                && sequence.computed >= sequence.claimed;
            if !fast {
                break;
            }
            builder.decodes.push_decode(sequence, key);
            decode_stats.count(sequence);
            at += 1;
        }
        builder.decode_stats = decode_stats;
        at
    }

    fn decode(&mut self, key: SequenceKey, after: usize, builder: &mut PlanBuilder) {
        let wanted = self.store[key].room_to_yield(self.config.max_tokens_per_run);
        let run = builder.decodes.runs.len();
        if wanted > self.store[key].room {
            if self.can_grow_later(key, wanted, builder) {
                builder
                    .pending_growth
                    .push(PendingGrowth { key, run, wanted });
            } else {
                self.grow_decodes(builder);
                if self.make_room(key, wanted, after, builder) < wanted {
                    return;
                }
                self.grow(key, wanted, run, &mut builder.decodes);
            }
        }
        let sequence = &mut self.store[key];
        builder.decodes.push_decode(sequence, key);
        builder.decode_stats.count(sequence);
    }

    /// Returns whether one block per group is enough, beyond those that `builder.pending_growth`
    /// will take.
    fn can_grow_later(&self, key: SequenceKey, wanted: u32, builder: &PlanBuilder) -> bool {
        let missing = wanted - self.store[key].room;
        let sequences = builder.pending_growth.len() + 1;
        missing <= self.memory.block_tokens() && self.memory.has_blocks_for(sequences)
    }

    /// Takes the blocks of all decodes together, so that their cache misses overlap.
    fn grow_decodes(&mut self, builder: &mut PlanBuilder) {
        for pending_growth in &builder.pending_growth {
            self.store[pending_growth.key].prefetch();
        }
        self.memory.prefetch(builder.pending_growth.len());
        for PendingGrowth { key, run, wanted } in builder.pending_growth.drain(..) {
            self.grow(key, wanted, run, &mut builder.decodes);
        }
    }

    pub(super) fn prefill(&mut self, key: SequenceKey, after: usize, builder: &mut PlanBuilder) {
        let sequence = &self.store[key];
        let k = self.config.max_tokens_per_run;
        let remaining = sequence.len() - sequence.planned;
        let forks_to_make = sequence.forks_to_make;
        let (planned, length) = (sequence.planned, sequence.len());
        let mut chunk = self.chunk(key, planned, forks_to_make, builder.budget);
        let mut wanted = sequence.room_to_run(chunk, planned, k);
        if chunk.tokens == 0 || !builder.may_prefill(remaining) {
            return;
        }
        let room = match wanted <= sequence.room {
            true => wanted,
            false => {
                self.grow_decodes(builder);
                self.make_room(key, wanted, after, builder)
            }
        };
        if room < wanted {
            chunk = chunk.within(room, planned, length);
            wanted = room;
            if chunk.tokens == 0 {
                return;
            }
        }
        let run = builder.prompts.runs.len();
        self.grow(key, wanted, run, &mut builder.prompts);
        self.push_prompt(key, chunk, builder);
    }

    /// Records a run over known tokens that have room.
    pub(super) fn push_prompt(
        &mut self,
        key: SequenceKey,
        chunk: Chunk,
        builder: &mut PlanBuilder,
    ) {
        let Chunk { tokens, reach } = chunk;
        let sequence = &mut self.store[key];
        if self
            .memory
            .plan_checkpoint(&mut sequence.kv, sequence.planned)
        {
            sequence.boundary = sequence.boundary.min(sequence.planned + 1);
        }
        let uncharged = (sequence.planned + tokens).saturating_sub(sequence.charged);
        self.accounts
            .charge_prompt(sequence.account, uncharged.min(tokens));
        sequence.charged = sequence.charged.max(sequence.planned + tokens);
        sequence.planned += tokens;
        sequence.in_flight += 1;
        let mut spent = tokens;
        if reach == Reach::Yields {
            sequence.phase = Phase::Decode;
            sequence.yielding += 1;
            builder.streams.count(sequence);
            self.running.end_prefill();
            spent += self.config.max_tokens_per_run - 1;
        }
        builder.budget -= spent;
        builder
            .prefill
            .add_prompt(sequence.planned - tokens, tokens);
        builder.prompts.push(sequence, key, chunk);
    }

    /// Preempts juniors (from index `after` of the running list) until `key` can hold `wanted`
    /// tokens. Returns how many it can hold, at most `wanted`.
    fn make_room(
        &mut self,
        key: SequenceKey,
        wanted: u32,
        after: usize,
        builder: &mut PlanBuilder,
    ) -> u32 {
        loop {
            let possible = self.possible_room(key).min(wanted);
            if possible >= wanted {
                return wanted;
            }
            builder.shortage = Shortage::Blocks;
            if self.running.len() <= after {
                return possible;
            }
            let victim = self.victim(after);
            builder.claimants.retain(|&claimant| claimant != victim);
            self.counters.preemptions += 1;
            self.preempt(victim, builder.now);
        }
    }

    /// Returns how many tokens a sequence could hold with all available blocks.
    pub(super) fn possible_room(&self, key: SequenceKey) -> u32 {
        self.memory.possible_room(&self.store[key].kv)
    }

    /// Returns how many of a sequence's known tokens to run from `position` within `budget`, and how
    /// far they reach. With `forks_to_make`, the last token is excluded: each fork runs it. A run
    /// that reaches the last token may yield several tokens and runs all of them but one in the
    /// same step.
    pub(super) fn chunk(
        &self,
        key: SequenceKey,
        position: u32,
        forks_to_make: u32,
        budget: u32,
    ) -> Chunk {
        let sequence = &self.store[key];
        let length = sequence.len();
        let remaining = length - position;
        let all = forks_to_make == 0 && remaining + self.config.max_tokens_per_run - 1 <= budget;
        let (tokens, reach) = match all {
            true => (remaining, Reach::Yields),
            false => (budget.min(remaining - 1), Reach::Part),
        };
        match (self.memory).tokens_to_checkpoint(&sequence.kv, position, tokens, length) {
            Some(tokens) => Chunk {
                tokens,
                reach: Reach::Part,
            },
            None => Chunk { tokens, reach },
        }
    }

    fn victim(&self, after: usize) -> SequenceKey {
        let juniors: Vec<_> = self.running.keys()[after..]
            .iter()
            .map(|&key| self.facts(key))
            .collect();
        let chosen = self.policy.victim(&juniors).min(juniors.len() - 1);
        self.running.keys()[after + chosen]
    }

    fn facts(&self, key: SequenceKey) -> SequenceFacts<'_> {
        let sequence = &self.store[key];
        SequenceFacts {
            sequence: sequence.id,
            class: &sequence.class,
            tokens: sequence.len(),
            max_tokens: sequence.max_tokens,
            since: sequence.since,
            served: self.accounts.served(sequence.account),
        }
    }

    /// Takes the blocks for `wanted` tokens, which must be available, and records them as growth.
    fn grow(&mut self, key: SequenceKey, wanted: u32, run: usize, section: &mut PlanSection) {
        let sequence = &mut self.store[key];
        let gained = |group, leases: &[BlockLease]| section.gain(run, group, leases);
        sequence.room = self.memory.extend(&mut sequence.kv, wanted, gained);
    }

    /// Takes the blocks for `wanted` tokens, which must be available.
    pub(super) fn extend(&mut self, key: SequenceKey, wanted: u32) {
        let sequence = &mut self.store[key];
        sequence.room = self.memory.extend(&mut sequence.kv, wanted, |_, _| ());
    }

    fn finish_plan(&mut self, builder: PlanBuilder) -> StepPlan {
        let PlanBuilder {
            now,
            mut new,
            mut decodes,
            prompts,
            prefill,
            streams,
            decode_stats,
            ..
        } = builder;
        decodes.append(prompts);
        let (forks, mut copies) = self.flush_forks(&mut new);
        copies.append(&mut self.memory.take_copies());
        let steered = self.flush_steered(&new);
        let plan = StepPlan {
            epoch: self.flights.epoch(),
            step: self.flights.next(),
            finished: self.running.take_finished(),
            new,
            forks,
            copies,
            steered,
            growth: decodes.take_growth(),
            runs: decodes.runs,
        };
        let runs = decodes.flight;
        self.pacing.expect(Streams {
            sequences: streams.sequences + decode_stats.decodes - decode_stats.ending,
            context: streams.context + decode_stats.context,
        });
        let load = StepLoad {
            decodes: decode_stats.decodes,
            context: decode_stats.context,
            ..prefill
        };
        self.flights.push(now, runs, load);
        plan
    }
}

/// Returns what a running sequence may do while the outcomes of its runs in flight are unknown.
#[inline]
fn demand(sequence: &Sequence) -> Demand {
    let waits = sequence.pipelining != Pipelining::Ahead;
    if waits && (sequence.in_flight > 0 || sequence.held) {
        return Demand::Nothing;
    }
    match sequence.phase {
        Phase::Prefill if sequence.prefill_left() > 0 => Demand::Prefill,
        Phase::Prefill if sequence.in_flight > 0 => Demand::Nothing,
        Phase::Prefill => Demand::Fork,
        Phase::Decode if sequence.will_end() => Demand::Nothing,
        Phase::Decode => Demand::Decode,
    }
}
