//! `Scheduler::plan`: running sequences in order of seniority, then admissions.

use crate::cost::Load;
use crate::flight::{Flight, FlightRun, Reach};
use crate::ids::{BlockId, GroupId, Micros, Slot, StepId};
use crate::plan::{BlockCopy, Fork, Growth, NewSequence, Run, StepPlan, Table};
use crate::policy::Facts;
use crate::request::Pipelining;
use crate::scheduler::{Birth, Scheduler};
use crate::sequence::{Phase, Place, Sequence};

/// Prompts are never read more slowly than this many tokens per step, whatever the latency target.
const MIN_CHUNK: u32 = 64;

/// Runs of one kind, with the blocks that they gain per group.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    runs: Vec<Run>,
    flight: Vec<FlightRun>,
    growth: Vec<GroupGrowth>,
}

/// What the runs of a lane gain in one group.
#[derive(Debug, Default)]
pub(crate) struct GroupGrowth {
    counts: Vec<u32>,
    blocks: Vec<BlockId>,
}

/// A plan in the making.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) now: Micros,
    pub(crate) new: Vec<NewSequence>,
    decodes: Lane,
    prompts: Lane,
    load: Load,
    /// Tokens left for prompts.
    pub(crate) budget: u32,
    /// Running sequences whose blocks others wait for.
    pub(crate) claimants: Vec<Place>,
    /// Whether memory ran out for a running sequence.
    pub(crate) shortage: Shortage,
}

/// Whether running sequences got the blocks they needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    None,
    /// One was preempted or stalled: nobody is admitted in this plan.
    Blocks,
}

/// What one running sequence may do in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Nothing,
    Decode,
    Read,
}

impl Lane {
    fn with_capacity(groups: usize, runs: Vec<FlightRun>, capacity: usize) -> Self {
        let growth = || GroupGrowth {
            counts: Vec::with_capacity(capacity),
            blocks: Vec::new(),
        };
        Self {
            runs: Vec::with_capacity(capacity),
            flight: runs,
            growth: std::iter::repeat_with(growth).take(groups).collect(),
        }
    }

    fn append(&mut self, mut other: Self) {
        self.runs.append(&mut other.runs);
        self.flight.append(&mut other.flight);
        for (growth, mut more) in self.growth.iter_mut().zip(other.growth) {
            growth.counts.append(&mut more.counts);
            growth.blocks.append(&mut more.blocks);
        }
    }
}

impl Scheduler {
    /// The next step. None when nothing can run, or when `depth` plans are in flight. Slots of
    /// sequences that are over are dropped by the next plan that runs something.
    pub fn plan(&mut self, now: Micros) -> Option<StepPlan> {
        if self.flights.len() >= self.config.depth as usize {
            return None;
        }
        let mut draft = self.draft(now);
        self.plan_running(&mut draft);
        self.admit(&mut draft);
        if draft.decodes.runs.is_empty() && draft.prompts.runs.is_empty() {
            return None;
        }
        Some(self.seal(draft))
    }

    fn draft(&mut self, now: Micros) -> Draft {
        let runs = std::mem::take(&mut self.spare_runs);
        let groups = self.groups.len();
        Draft {
            now,
            new: Vec::new(),
            decodes: Lane::with_capacity(groups, runs, self.running.len()),
            prompts: Lane::with_capacity(groups, Vec::new(), 0),
            load: Load::default(),
            budget: self.prompt_budget(),
            claimants: Vec::new(),
            shortage: Shortage::None,
        }
    }

    /// Prompt tokens of the next step: all that is left beside decodes, unless the cost model says
    /// that running streams would then miss their latency target.
    fn prompt_budget(&self) -> u32 {
        let decodes = self.running.len() as u32 - self.counters.reading;
        let k = self.config.max_tokens_per_run;
        let left = self.config.max_step_tokens.saturating_sub(decodes * k);
        if decodes == 0 {
            return left;
        }
        match self.cost.prompt_tokens(decodes, self.config.latency_target) {
            Some(tokens) => tokens.max(MIN_CHUNK.max(k)).min(left),
            None => left,
        }
    }

    /// Gives running sequences their tokens, the most senior first. Preemption takes from the end
    /// of the list, so that nobody in this plan is preempted by it.
    fn plan_running(&mut self, draft: &mut Draft) {
        let mut at = 0;
        while let Some(&member) = self.running.get(at) {
            at += 1;
            let place = member.place;
            let sequence = &self.store[place];
            if sequence.computed < sequence.claimed {
                draft.claimants.push(place);
            }
            match demand(sequence) {
                Demand::Nothing => {}
                Demand::Decode => self.decode(place, at, draft),
                Demand::Read => self.read(place, at, draft),
            }
        }
    }

    fn decode(&mut self, place: Place, after: usize, draft: &mut Draft) {
        let wanted = self.store[place].room_to_yield(self.config.max_tokens_per_run);
        let lane = &mut draft.decodes;
        if wanted <= self.store[place].room {
            for growth in &mut lane.growth {
                growth.counts.push(0);
            }
        } else if self.make_room(place, wanted, after, draft) < wanted {
            return;
        } else {
            self.grow(place, wanted, &mut draft.decodes);
        }
        let sequence = &mut self.store[place];
        sequence.in_flight += 1;
        sequence.yielding += 1;
        draft.load.decodes += 1;
        draft.decodes.push(sequence, place, 1, Reach::Yields);
    }

    fn read(&mut self, place: Place, after: usize, draft: &mut Draft) {
        let sequence = &self.store[place];
        let k = self.config.max_tokens_per_run;
        let (mut tokens, mut reach) = chunk(sequence.len() - sequence.planned, draft.budget, k);
        let planned = sequence.planned;
        let mut wanted = match reach {
            Reach::Yields => sequence.room_to_yield(k),
            Reach::Part => planned + tokens,
        };
        if tokens == 0 {
            return;
        }
        let room = match wanted <= sequence.room {
            true => wanted,
            false => self.make_room(place, wanted, after, draft),
        };
        if room < wanted {
            (tokens, reach, wanted) = (tokens.min(room.saturating_sub(planned)), Reach::Part, room);
            tokens = tokens.min(self.store[place].len() - planned - 1);
            if tokens == 0 {
                return;
            }
        }
        self.grow(place, wanted, &mut draft.prompts);
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
            self.counters.reading -= 1;
            spent += self.config.max_tokens_per_run - 1;
        }
        draft.budget -= spent;
        draft.load.prompt += tokens;
        draft.prompts.push(sequence, place, tokens, reach);
    }

    /// Records that a new sequence's table is complete as sent.
    pub(crate) fn push_no_growth(draft: &mut Draft) {
        for growth in &mut draft.prompts.growth {
            growth.counts.push(0);
        }
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
    fn possible_room(&self, place: Place) -> u32 {
        let sequence = &self.store[place];
        let rooms = self
            .groups
            .iter()
            .zip(&sequence.chains)
            .map(|(group, chain)| {
                let blocks = u64::from(group.pool.available()) + chain.leases.len() as u64;
                blocks * u64::from(group.geometry.block_tokens)
            });
        rooms.min().unwrap_or(0).min(u64::from(u32::MAX)) as u32
    }

    fn victim(&self, after: usize) -> Place {
        let juniors: Vec<_> = self.running[after..]
            .iter()
            .map(|m| self.facts(m.place))
            .collect();
        let chosen = self.policy.victim(&juniors).min(juniors.len() - 1);
        self.running[after + chosen].place
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
    fn grow(&mut self, place: Place, wanted: u32, lane: &mut Lane) {
        let before: Vec<_> = self.store[place]
            .chains
            .iter()
            .map(|c| c.leases.len())
            .collect();
        self.extend(place, wanted);
        let chains = &self.store[place].chains;
        for ((growth, chain), before) in lane.growth.iter_mut().zip(chains).zip(before) {
            let gained = &chain.leases[before..];
            growth.counts.push(gained.len() as u32);
            growth
                .blocks
                .extend(gained.iter().map(|lease| lease.block()));
        }
    }

    /// Takes the blocks for `wanted` tokens, which must be available.
    pub(crate) fn extend(&mut self, place: Place, wanted: u32) {
        let sequence = &mut self.store[place];
        let mut room = u32::MAX;
        for (group, chain) in self.groups.iter_mut().zip(&mut sequence.chains) {
            let blocks = group.blocks_for(wanted) as usize;
            while chain.leases.len() < blocks {
                let Some(lease) = group.take() else { break };
                chain.leases.push(lease);
            }
            room = room.min(chain.leases.len() as u32 * group.geometry.block_tokens);
        }
        sequence.room = room;
    }

    fn seal(&mut self, draft: Draft) -> StepPlan {
        let Draft {
            now,
            mut new,
            mut decodes,
            prompts,
            load,
            ..
        } = draft;
        decodes.append(prompts);
        let (forks, copies) = self.seal_births(&mut new);
        let plan = StepPlan {
            epoch: self.epoch,
            step: self.step,
            finished: self.slots.take_departed(),
            new,
            forks,
            copies,
            growth: seal_growth(decodes.growth),
            runs: decodes.runs,
        };
        let runs = decodes.flight;
        self.flights.push_back(Flight {
            step: self.step,
            planned: now,
            runs,
            load,
        });
        self.step = StepId(self.step.0 + 1);
        plan
    }

    /// Births of this plan: as forks of a slot, or in full where the parent has left its slot.
    fn seal_births(&mut self, new: &mut Vec<NewSequence>) -> (Vec<Fork>, Vec<BlockCopy>) {
        let mut forks = Vec::new();
        let mut copies = Vec::new();
        for birth in std::mem::take(&mut self.births) {
            let child = &self.store[birth.child];
            let Some(destination) = child.slot() else {
                continue;
            };
            let tables = birth_tables(child, &birth);
            let parent = &self.store[birth.parent];
            let alive = parent.generation == birth.parent_generation
                && parent.slot() == Some(birth.parent_slot);
            if alive {
                let sequence = child.id;
                forks.push(Fork {
                    sequence,
                    source: birth.parent_slot,
                    destination,
                    tables,
                });
            } else {
                new.push(full(child, destination, tables, child.computed));
            }
            for copy in birth.copies {
                copies.push(BlockCopy {
                    group: GroupId(copy.group as u32),
                    source: copy.source.block(),
                    destination: copy.destination,
                });
                self.groups[copy.group].give_back(copy.source);
            }
        }
        (forks, copies)
    }
}

impl Lane {
    fn push(&mut self, sequence: &Sequence, place: Place, tokens: u32, reach: Reach) {
        let Some(slot) = sequence.slot() else { return };
        self.runs.push(Run { slot, tokens });
        let generation = sequence.generation;
        self.flight.push(FlightRun {
            place,
            generation,
            slot,
            tokens,
            reach,
        });
    }
}

/// What a running sequence may do while its runs in flight are not known.
fn demand(sequence: &Sequence) -> Demand {
    if sequence.in_flight > 0 && sequence.pipelining == Pipelining::Waits {
        return Demand::Nothing;
    }
    match sequence.phase {
        Phase::Reading => Demand::Read,
        Phase::Decoding if sequence.will_end() => Demand::Nothing,
        Phase::Decoding => Demand::Decode,
    }
}

/// How many of `remaining` known tokens fit `budget`. A run that reaches the last of them may
/// yield `k` tokens, of which all but one run in the same step.
pub(crate) fn chunk(remaining: u32, budget: u32, k: u32) -> (u32, Reach) {
    if remaining + k - 1 <= budget {
        (remaining, Reach::Yields)
    } else {
        (budget.min(remaining - 1), Reach::Part)
    }
}

/// A sequence as a fresh worker needs it.
pub(crate) fn full(
    sequence: &Sequence,
    slot: Slot,
    tables: Vec<Table>,
    computed: u32,
) -> NewSequence {
    NewSequence {
        sequence: sequence.id,
        slot,
        token_ids: sequence.tokens.clone(),
        generated: sequence.generated(),
        computed,
        tables,
    }
}

/// Tables of all of a sequence's blocks.
pub(crate) fn tables(sequence: &Sequence) -> Vec<Table> {
    let chains = sequence.chains.iter().enumerate();
    chains
        .map(|(g, chain)| Table {
            group: GroupId(g as u32),
            blocks: chain.blocks(),
        })
        .collect()
}

fn birth_tables(child: &Sequence, birth: &Birth) -> Vec<Table> {
    let mut tables = tables(child);
    for (table, &blocks) in tables.iter_mut().zip(&birth.blocks) {
        table.blocks.truncate(blocks);
    }
    tables
}

fn seal_growth(growth: Vec<GroupGrowth>) -> Vec<Growth> {
    let grown = growth
        .into_iter()
        .enumerate()
        .filter(|(_, growth)| !growth.blocks.is_empty());
    let sealed = |(group, growth): (usize, GroupGrowth)| Growth {
        group: GroupId(group as u32),
        counts: growth.counts,
        blocks: growth.blocks,
    };
    grown.map(sealed).collect()
}
