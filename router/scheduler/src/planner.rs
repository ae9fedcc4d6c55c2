//! `Scheduler::plan`: running sequences in order of seniority, then admissions.

use crate::cost::Load;
use crate::counters::Streams;
use crate::draft::{Draft, Growing, Lane, Shortage, Tally};
use crate::flight::{Flight, Reach};
use crate::ids::{Micros, StepId};
use crate::plan::StepPlan;
use crate::policy::Facts;
use crate::request::Pipelining;
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Place, Sequence};

/// Plans that may be in flight however long they take: one runs, one waits.
const PLAIN_DEPTH: usize = 2;

/// What one running sequence may do in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Nothing,
    Decode,
    Read,
    /// Its prompt is computed but for the last token: its forks are born.
    Divide,
}

impl Scheduler {
    /// The next step. None when nothing can run, or when enough plans are in flight. Slots of
    /// sequences that are over are dropped by the next plan that runs something.
    pub fn plan(&mut self, now: Micros) -> Option<StepPlan> {
        if self.has_lead() {
            return None;
        }
        loop {
            let mut draft = self.draft(now);
            self.plan_running(&mut draft);
            self.admit(&mut draft);
            self.read_overtaken(&mut draft);
            if !draft.decodes.runs.is_empty() || !draft.prompts.runs.is_empty() {
                return Some(self.seal(draft));
            }
            if self.births.is_empty() && !self.evict_held(now) {
                return None;
            }
            // The blocks that unborn forks are to be copied from may be all that is missing.
            while let Some(birth) = self.births.last() {
                self.evict(birth.child, now);
            }
        }
    }

    /// Whether the workers have enough to do until another plan can come.
    fn has_lead(&self) -> bool {
        let flying = self.flights.len();
        let long = || {
            let times = self.flights.iter().map(|f| self.cost.predict(f.load));
            let time: Option<f64> = times.sum();
            // What a step takes is not known at first.
            time.is_none_or(|time| time >= self.config.lead as f64)
        };
        flying >= usize::from(self.config.depth) || flying >= PLAIN_DEPTH && long()
    }

    fn draft(&mut self, now: Micros) -> Draft {
        let runs = std::mem::take(&mut self.spare_runs);
        let groups = self.groups.len();
        Draft {
            now,
            new: Vec::new(),
            decodes: Lane::new(groups, runs, self.running.len()),
            prompts: Lane::new(groups, Vec::new(), 0),
            reading: Load::default(),
            streams: Streams::default(),
            growing: Vec::new(),
            others: Vec::new(),
            tally: Tally::default(),
            budget: self.prompt_budget(),
            overtaken: None,
            claimants: Vec::new(),
            shortage: Shortage::None,
        }
    }

    /// Gives running sequences their tokens, the most senior first. Preemption takes from the end
    /// of the list, so that nobody in this plan is preempted by it.
    fn plan_running(&mut self, draft: &mut Draft) {
        let mut at = self.decode_plainly(0, draft);
        while let Some(&place) = self.running.get(at) {
            at += 1;
            let sequence = &self.store[place];
            if sequence.computed < sequence.claimed {
                draft.claimants.push(place);
            }
            match demand(sequence) {
                Demand::Nothing => {
                    draft.others.push(place);
                    // One that is steered decodes in the next plan.
                    if sequence.phase == Phase::Decoding {
                        draft.streams.count(sequence);
                    }
                }
                Demand::Decode => self.decode(place, at, draft),
                Demand::Read => {
                    draft.others.push(place);
                    if !self.is_overtaken(place, draft) {
                        self.read(place, at, draft);
                    }
                }
                Demand::Divide => {
                    draft.others.push(place);
                    // The blocks of decodes are reserved first.
                    self.grow_decodes(draft);
                    self.divide(place, draft.now);
                    self.read(place, at, draft);
                }
            }
            at = self.decode_plainly(at, draft);
        }
        self.grow_decodes(draft);
    }

    /// Plans decodes, from the member `at` of the list on, for as long as all that they need is
    /// there. The first member that is left to others.
    fn decode_plainly(&mut self, mut at: usize, draft: &mut Draft) -> usize {
        let k = self.config.max_tokens_per_run;
        // A copy, so that it stays in registers.
        let mut tally = draft.tally;
        while let Some(&place) = self.running.get(at) {
            let sequence = &mut self.store[place];
            let plain = demand(sequence) == Demand::Decode
                && sequence.room_to_yield(k) <= sequence.room
                && sequence.computed >= sequence.claimed;
            if !plain {
                break;
            }
            draft.decodes.push_decode(sequence, place);
            tally.count(sequence);
            at += 1;
        }
        draft.tally = tally;
        at
    }

    fn decode(&mut self, place: Place, after: usize, draft: &mut Draft) {
        let wanted = self.store[place].room_to_yield(self.config.max_tokens_per_run);
        let run = draft.decodes.runs.len();
        if wanted > self.store[place].room {
            if self.can_grow_later(place, wanted, draft) {
                draft.growing.push(Growing { place, run, wanted });
            } else {
                self.grow_decodes(draft);
                if self.make_room(place, wanted, after, draft) < wanted {
                    return;
                }
                self.grow(place, wanted, run, &mut draft.decodes);
            }
        }
        let sequence = &mut self.store[place];
        draft.decodes.push_decode(sequence, place);
        draft.tally.count(sequence);
    }

    /// Whether one block per group does, beside those that `draft.growing` will take.
    fn can_grow_later(&self, place: Place, wanted: u32, draft: &Draft) -> bool {
        let missing = wanted - self.store[place].room;
        self.groups.iter().all(|group| {
            missing <= group.geometry.block_tokens
                && group.pool.available() as usize > draft.growing.len()
        })
    }

    /// Takes the blocks of decodes together, so that the misses of one overlap those of others.
    fn grow_decodes(&mut self, draft: &mut Draft) {
        for growing in &draft.growing {
            self.store[growing.place].read_ahead();
        }
        for group in &self.groups {
            group.read_ahead(draft.growing.len());
        }
        for Growing { place, run, wanted } in draft.growing.drain(..) {
            self.grow(place, wanted, run, &mut draft.decodes);
        }
    }

    pub(crate) fn read(&mut self, place: Place, after: usize, draft: &mut Draft) {
        let sequence = &self.store[place];
        let k = self.config.max_tokens_per_run;
        let remaining = sequence.len() - sequence.planned;
        let (mut tokens, mut reach) = chunk(remaining, sequence.unborn, draft.budget, k);
        let planned = sequence.planned;
        let mut wanted = match reach {
            Reach::Yields => sequence.room_to_yield(k),
            Reach::Part => planned + tokens,
        };
        if tokens == 0 || !draft.has_turn(remaining) {
            return;
        }
        let room = match wanted <= sequence.room {
            true => wanted,
            false => {
                self.grow_decodes(draft);
                self.make_room(place, wanted, after, draft)
            }
        };
        if room < wanted {
            (tokens, reach, wanted) = (tokens.min(room.saturating_sub(planned)), Reach::Part, room);
            tokens = tokens.min(self.store[place].len() - planned - 1);
            if tokens == 0 {
                return;
            }
        }
        let run = draft.prompts.runs.len();
        self.grow(place, wanted, run, &mut draft.prompts);
        self.push_prompt(place, tokens, reach, draft);
    }

    /// Records a run over known tokens whose blocks are there.
    pub(crate) fn push_prompt(
        &mut self,
        place: Place,
        tokens: u32,
        reach: Reach,
        draft: &mut Draft,
    ) {
        let sequence = &mut self.store[place];
        sequence.planned += tokens;
        sequence.in_flight += 1;
        let mut spent = tokens;
        if reach == Reach::Yields {
            sequence.phase = Phase::Decoding;
            sequence.yielding += 1;
            draft.streams.count(sequence);
            self.counters.reading -= 1;
            spent += self.config.max_tokens_per_run - 1;
        }
        draft.budget -= spent;
        draft.reading.read(sequence.planned - tokens, tokens);
        draft.prompts.push(sequence, place, tokens, reach);
    }

    /// Preempts juniors (members from `after` on) until `place` can hold `wanted` tokens. How many
    /// it can hold, at most `wanted`.
    fn make_room(&mut self, place: Place, wanted: u32, after: usize, draft: &mut Draft) -> u32 {
        loop {
            let possible = self.possible_room(place).min(wanted);
            if possible >= wanted {
                return wanted;
            }
            draft.shortage = Shortage::Blocks;
            if self.running.len() <= after {
                return possible;
            }
            let victim = self.victim(after);
            draft.claimants.retain(|&claimant| claimant != victim);
            self.counters.preemptions += 1;
            self.evict(victim, draft.now);
        }
    }

    /// Tokens that a sequence could hold with all blocks that are available.
    pub(crate) fn possible_room(&self, place: Place) -> u32 {
        let sequence = &self.store[place];
        let rooms = self
            .groups
            .iter()
            .zip(&sequence.chains)
            .map(|(group, chain)| {
                let blocks = u64::from(group.pool.available()) + u64::from(chain.len());
                blocks * u64::from(group.geometry.block_tokens)
            });
        rooms.min().unwrap_or(0).min(u64::from(u32::MAX)) as u32
    }

    fn victim(&self, after: usize) -> Place {
        let juniors: Vec<_> = self.running[after..]
            .iter()
            .map(|&place| self.facts(place))
            .collect();
        let chosen = self.policy.victim(&juniors).min(juniors.len() - 1);
        self.running[after + chosen]
    }

    fn facts(&self, place: Place) -> Facts<'_> {
        let sequence = &self.store[place];
        Facts {
            sequence: sequence.id,
            class: &sequence.class,
            tokens: sequence.len(),
            max_tokens: sequence.max_tokens,
            since: sequence.since,
        }
    }

    /// Takes the blocks for `wanted` tokens, which must be available, and records them as growth.
    fn grow(&mut self, place: Place, wanted: u32, run: usize, lane: &mut Lane) {
        let sequence = &mut self.store[place];
        let mut room = u32::MAX;
        let chains = self.groups.iter_mut().zip(&mut sequence.chains);
        for (index, (group, chain)) in chains.enumerate() {
            let held = chain.leases.len();
            room = room.min(group.extend(chain, wanted));
            lane.gain(run, index, &chain.leases[held..]);
        }
        sequence.room = room;
    }

    /// Takes the blocks for `wanted` tokens, which must be available.
    pub(crate) fn extend(&mut self, place: Place, wanted: u32) {
        let sequence = &mut self.store[place];
        let chains = self.groups.iter_mut().zip(&mut sequence.chains);
        let room = chains
            .map(|(group, chain)| group.extend(chain, wanted))
            .min();
        sequence.room = room.unwrap_or(0);
    }

    fn seal(&mut self, draft: Draft) -> StepPlan {
        let Draft {
            now,
            mut new,
            mut decodes,
            prompts,
            reading,
            streams,
            tally,
            ..
        } = draft;
        decodes.append(prompts);
        let (forks, copies) = self.seal_births(&mut new);
        let steered = self.seal_steered(&new);
        let plan = StepPlan {
            epoch: self.epoch,
            step: self.step,
            finished: self.slots.take_departed(),
            new,
            forks,
            copies,
            steered,
            growth: decodes.take_growth(),
            runs: decodes.runs,
        };
        let runs = decodes.flight;
        self.streams = Streams {
            sequences: streams.sequences + tally.decodes - tally.ending,
            context: streams.context + tally.context,
        };
        let load = Load {
            decodes: tally.decodes,
            context: tally.context,
            ..reading
        };
        self.flights.push_back(Flight {
            step: self.step,
            planned: now,
            runs,
            load,
        });
        self.step = StepId(self.step.0 + 1);
        plan
    }
}

/// What a running sequence may do while its runs in flight are not known.
#[inline]
fn demand(sequence: &Sequence) -> Demand {
    let waits = sequence.pipelining != Pipelining::Ahead;
    if waits && (sequence.in_flight > 0 || sequence.held) {
        return Demand::Nothing;
    }
    match sequence.phase {
        Phase::Reading if sequence.readable() > 0 => Demand::Read,
        Phase::Reading if sequence.in_flight > 0 => Demand::Nothing,
        Phase::Reading => Demand::Divide,
        Phase::Decoding if sequence.will_end() => Demand::Nothing,
        Phase::Decoding => Demand::Decode,
    }
}

/// How many of `remaining` known tokens fit `budget`; not the last one while there are `unborn`
/// forks to run it too. A run that reaches it may yield `k` tokens, of which all but one run in the
/// same step.
pub(crate) fn chunk(remaining: u32, unborn: u32, budget: u32, k: u32) -> (u32, Reach) {
    if unborn == 0 && remaining + k - 1 <= budget {
        (remaining, Reach::Yields)
    } else {
        (budget.min(remaining - 1), Reach::Part)
    }
}
