//! A worker that computes nothing, but records for every position of every block the token history
//! that it was computed for. So it detects reads of blocks that are wrong or not yet computed.

use crate::random::{Random, hash};
use penstock_scheduler::config::{GroupKind, KvGroup, SchedulerConfig};
use penstock_scheduler::ids::{SequenceId, Slot, TokenId};
use penstock_scheduler::plan::{NewSequence, Run, StepOutcome, StepPlan, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A small vocabulary, so that answers and prompts often share prefixes.
pub(crate) const VOCABULARY: u32 = 5;
const GARBAGE: u64 = 1;

/// The token that follows a history in a sequence: the model.
pub(crate) fn next_token(history: u64, sequence: SequenceId) -> TokenId {
    let seed = hash(&[sequence.request.0 % 3, u64::from(sequence.index)]);
    TokenId((hash(&[history, seed]) % u64::from(VOCABULARY)) as u32)
}

/// Hash of a token history of a request with a salt.
pub(crate) fn extend_history(history: u64, token: TokenId) -> u64 {
    hash(&[history, u64::from(token.0)])
}

/// The history before the first token.
pub(crate) fn root(salt: &[u64]) -> u64 {
    hash(&[2, hash(salt)])
}

#[derive(Clone)]
struct State {
    sequence: SequenceId,
    tokens: Vec<TokenId>,
    /// `histories[n]` is the hash of the first n tokens.
    histories: Vec<u64>,
    computed: usize,
    tables: Vec<Vec<u32>>,
    failed: bool,
    /// Whether its preparation is lost: it cannot run.
    unprepared: bool,
}

/// The worker's state: a fold of the plans.
pub(crate) struct Worker {
    config: SchedulerConfig,
    slots: Vec<Option<State>>,
    /// Per group and block: the history that each position was computed for.
    kv: Vec<Vec<Vec<u64>>>,
    next_step: u64,
}

/// Chances of faults, and the salts of live requests.
pub(crate) struct World<'a> {
    pub(crate) failures: u32,
    /// Percent of sequences that cannot run when they enter a slot, because their preparation is
    /// lost.
    pub(crate) unprepared: u32,
    /// Percent of yielding runs that yield nothing, because their mask was late.
    pub(crate) late: u32,
    pub(crate) salts: &'a BTreeMap<u64, Vec<u64>>,
}

impl State {
    fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        let last = self.histories[self.histories.len() - 1];
        self.histories.push(extend_history(last, token));
    }

    fn grow(&mut self, group: u32, blocks: &[u32]) {
        self.tables[group as usize].extend_from_slice(blocks);
    }
}

impl Worker {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let group = |group: &KvGroup| {
            let positions = match group.kind {
                GroupKind::Full | GroupKind::Sliding { .. } => config.block_tokens as usize,
                GroupKind::State => 1,
            };
            vec![vec![0; positions]; group.blocks as usize]
        };
        Self {
            config: config.clone(),
            slots: vec![None; config.max_slots as usize],
            kv: config.groups.iter().map(group).collect(),
            next_step: 0,
        }
    }

    /// Applies a plan and runs it.
    pub(crate) fn step(
        &mut self,
        plan: &StepPlan,
        world: &World<'_>,
        random: &mut Random,
    ) -> StepOutcome {
        assert_eq!(plan.step.0, self.next_step, "steps have gaps");
        self.next_step += 1;
        for slot in &plan.finished {
            assert!(
                self.slots[slot.0 as usize].take().is_some(),
                "{slot:?} dropped twice"
            );
        }
        for new in &plan.new {
            self.enter(new, world, random);
        }
        self.fork(plan);
        self.copy(plan);
        for steered in &plan.steered {
            let state = self.state(steered.slot);
            assert!(
                state.computed < state.tokens.len(),
                "the last token has run"
            );
            state.tokens.pop();
            state.histories.pop();
            state.push(steered.token);
        }
        for growth in &plan.growth {
            assert_eq!(growth.counts.len(), plan.runs.len(), "one count per run");
            let mut blocks = growth.blocks.iter().map(|block| block.0);
            for (run, &count) in plan.runs.iter().zip(&growth.counts) {
                let gained: Vec<_> = blocks.by_ref().take(count as usize).collect();
                self.state(run.slot).grow(growth.group.0, &gained);
            }
            assert_eq!(blocks.next(), None, "blocks without a run");
        }
        self.run(plan, world, random)
    }

    fn state(&mut self, slot: Slot) -> &mut State {
        let state = self.slots[slot.0 as usize].as_mut();
        state.unwrap_or_else(|| panic!("slot {slot} is empty"))
    }

    fn enter(&mut self, new: &NewSequence, world: &World<'_>, random: &mut Random) {
        assert!(
            self.slots[new.slot.0 as usize].is_none(),
            "slot {} is taken",
            new.slot
        );
        assert!(
            (new.computed as usize) < new.token_ids.len(),
            "nothing left to run"
        );
        let salt = &world.salts[&new.sequence.request.0];
        let mut state = State {
            sequence: new.sequence,
            tokens: Vec::new(),
            histories: vec![root(salt)],
            computed: new.computed as usize,
            tables: tables(&new.tables),
            failed: false,
            unprepared: random.chance(world.unprepared),
        };
        for &token in &new.token_ids {
            state.push(token);
        }
        self.slots[new.slot.0 as usize] = Some(state);
    }

    fn fork(&mut self, plan: &StepPlan) {
        for fork in &plan.forks {
            let mut child = self.state(fork.source).clone();
            assert!(!child.unprepared, "a fork of a sequence that never ran");
            assert!(
                self.slots[fork.destination.0 as usize].is_none(),
                "fork onto a taken slot"
            );
            child.sequence = fork.sequence;
            child.tables = tables(&fork.tables);
            self.slots[fork.destination.0 as usize] = Some(child);
        }
    }

    /// Copies at once, as a kernel does: no block may be both read and written.
    fn copy(&mut self, plan: &StepPlan) {
        let sources: BTreeSet<_> = plan.copies.iter().map(|c| (c.group, c.source)).collect();
        let mut written = BTreeSet::new();
        for copy in &plan.copies {
            let destination = (copy.group, copy.destination);
            assert!(written.insert(destination), "a block is copied to twice");
            assert!(
                !sources.contains(&destination),
                "a block is copied from and to"
            );
            let group = &mut self.kv[copy.group.0 as usize];
            group[copy.destination.0 as usize] = group[copy.source.0 as usize].clone();
        }
    }

    /// All runs read before any writes: a block computed in a step cannot be read in it.
    fn run(&mut self, plan: &StepPlan, world: &World<'_>, random: &mut Random) -> StepOutcome {
        let mut slots = BTreeSet::new();
        for run in &plan.runs {
            assert!(slots.insert(run.slot), "slot {} runs twice", run.slot);
            self.read(run);
        }
        let mut outcome = StepOutcome {
            epoch: plan.epoch,
            step: plan.step,
            ..StepOutcome::default()
        };
        let mut written = BTreeSet::new();
        let mut spent = 0;
        for run in &plan.runs {
            if self.state(run.slot).unprepared {
                outcome.unprepared.push(run.slot);
                continue;
            }
            let failed = random.chance(world.failures);
            let late = random.chance(world.late);
            let (yielded, cost) = self.advance(run, failed, late, &mut written, random);
            spent += cost;
            if self.state(run.slot).failed {
                outcome.failed.push(run.slot);
            } else if !yielded.is_empty() {
                outcome.slots.push(run.slot);
                outcome.counts.push(yielded.len() as u32);
                outcome.token_ids.extend(yielded);
            }
        }
        let limit = self.config.max_step_tokens;
        assert!(spent <= limit, "{spent} tokens in a step of {limit}");
        outcome.duration = random.pick(&[0, 700, 1_000, 1_000 + 20 * u64::from(spent)]);
        outcome
    }

    fn read(&self, run: &Run) {
        let Some(state) = &self.slots[run.slot.0 as usize] else {
            panic!("slot {} runs but is empty", run.slot)
        };
        for (group, KvGroup { kind, .. }) in self.config.groups.iter().enumerate() {
            // The first token that runs is at `computed` and is within its own window. A state is of
            // the last computed token.
            let reached = match kind {
                GroupKind::Full => state.computed,
                GroupKind::Sliding { window } => *window as usize - 1,
                GroupKind::State => 1,
            };
            let read = state.computed.saturating_sub(reached)..state.computed;
            for position in if state.failed { 0..0 } else { read } {
                let (block, at) = self.place(state, group, position);
                let found = self.kv[group][block as usize][at];
                assert_eq!(
                    found,
                    state.histories[position + 1],
                    "{:?} reads block {block} of group {group} at {position}",
                    state.sequence
                );
            }
        }
    }

    /// Runs one sequence. Returns the yielded tokens and the tokens that count against the budget.
    fn advance(
        &mut self,
        run: &Run,
        failed: bool,
        late: bool,
        written: &mut BTreeSet<(usize, u32, usize)>,
        random: &mut Random,
    ) -> (Vec<TokenId>, u32) {
        let k = self.config.max_tokens_per_run;
        let room = self.room(run.slot);
        let mut state = self.state(run.slot).clone();
        state.failed |= failed;
        let mut yielded = Vec::new();
        let reaches = state.computed + run.tokens as usize >= state.tokens.len();
        let cost = if reaches {
            run.tokens + k - 1
        } else {
            run.tokens
        };
        let first = state.computed;
        if reaches && late {
            state.computed = state.tokens.len() - 1;
        } else if reaches && state.tokens.len() <= room {
            let count = random.within(1, k) as usize;
            // The last yielded token does not run: it needs no room.
            for _ in 0..count.min(room + 1 - state.tokens.len()) {
                state.computed = state.tokens.len();
                let history = state.histories[state.tokens.len()];
                let token = next_token(history, state.sequence);
                yielded.push(token);
                state.push(token);
            }
        } else if !reaches {
            state.computed += run.tokens as usize;
        }
        self.write(&state, first..state.computed, written);
        self.slots[run.slot.0 as usize] = Some(state);
        (yielded, cost)
    }

    fn room(&self, slot: Slot) -> usize {
        let state = self.slots[slot.0 as usize].as_ref();
        let tables = state.map_or(&[][..], |state| &state.tables[..]);
        let rooms = tables.iter().zip(&self.config.groups);
        rooms
            .filter(|(_, group)| group.kind != GroupKind::State)
            .map(|(table, _)| table.len() * self.config.block_tokens as usize)
            .min()
            .unwrap_or(usize::MAX - 1)
    }

    /// Returns the block of a position, and the position within it.
    fn place(&self, state: &State, group: usize, position: usize) -> (u32, usize) {
        let size = self.config.block_tokens as usize;
        match self.config.groups[group].kind {
            GroupKind::Full | GroupKind::Sliding { .. } => {
                (state.tables[group][position / size], position % size)
            }
            GroupKind::State => (state.tables[group][0], 0),
        }
    }

    fn write(
        &mut self,
        state: &State,
        positions: Range<usize>,
        written: &mut BTreeSet<(usize, u32, usize)>,
    ) {
        for (group, KvGroup { kind, .. }) in self.config.groups.iter().enumerate() {
            for position in positions.clone() {
                let (block, at) = self.place(state, group, position);
                // A run overwrites its own state with every token.
                let again = *kind == GroupKind::State && position > positions.start;
                let fresh = written.insert((group, block, at)) || again;
                assert!(fresh, "two runs write block {block} of group {group}");
                let value = if state.failed {
                    GARBAGE
                } else {
                    state.histories[position + 1]
                };
                self.kv[group][block as usize][at] = value;
            }
        }
    }
}

fn tables(tables: &[Table]) -> Vec<Vec<u32>> {
    let mut result = Vec::new();
    for (group, table) in tables.iter().enumerate() {
        assert_eq!(
            table.group.0 as usize, group,
            "tables are in the order of groups"
        );
        result.push(table.blocks.iter().map(|block| block.0).collect());
    }
    result
}
