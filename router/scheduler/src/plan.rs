//! Plans for the workers and their outcomes: plain values, deltas only. And the plans whose outcome
//! has not arrived.
//!
//! Steps run in the order of their numbers, each after all writes of the one before. So a block may
//! change owners at once: when a sequence leaves while its runs are in flight, their writes land
//! before the block's next owner writes, copies or reads it in a later step. And a slot in
//! `finished` may be filled by `new` of the same plan.

use crate::cost::StepLoad;
use crate::ids::{BlockId, Epoch, GroupId, Micros, SequenceId, SequenceKey, Slot, StepId, TokenId};
use std::collections::VecDeque;
use std::ops::Range;

/// The work of one step. Workers apply the parts in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The epoch of the workers' state that this plan continues.
    pub epoch: Epoch,
    /// Number of the step in its epoch, from 0, without gaps.
    pub step: StepId,
    /// Slots whose sequence ended or was preempted.
    pub finished: Vec<Slot>,
    /// Sequences that enter a slot, in full.
    pub new: Vec<NewSequence>,
    /// Slots that become copies of another slot.
    pub forks: Vec<Fork>,
    /// Blocks to copy whole before anything runs.
    pub copies: Vec<BlockCopy>,
    /// Slots whose last known token is replaced.
    pub steered: Vec<SteeredToken>,
    /// Blocks appended to the tables of the sequences in `runs`; one entry per KV group that grows.
    pub growth: Vec<Growth>,
    /// Sequences that run, in order: decodes first, then prompt chunks.
    pub runs: Vec<Run>,
}

/// A sequence in full, as a fresh worker needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSequence {
    /// The sequence's id; the engine adds the sampling parameters by it.
    pub sequence: SequenceId,
    /// The slot that it enters.
    pub slot: Slot,
    /// Prompt and generated tokens known so far.
    pub token_ids: Vec<TokenId>,
    /// How many of `token_ids`, at their end, were generated.
    pub generated: u32,
    /// Tokens whose KV is already in the blocks (prefix hits).
    pub computed: u32,
    /// One block table per KV group.
    pub tables: Vec<Table>,
}

/// The blocks of one sequence in one KV group, in order of position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The KV group.
    pub group: GroupId,
    /// Its blocks.
    pub blocks: Vec<BlockId>,
}

/// `destination` becomes a copy of `source` with tables of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The new sequence.
    pub sequence: SequenceId,
    /// Slot that is copied.
    pub source: Slot,
    /// Slot that receives the copy.
    pub destination: Slot,
    /// One block table per KV group.
    pub tables: Vec<Table>,
}

/// One block to copy (copy on write).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The KV group of both blocks.
    pub group: GroupId,
    /// Block to read.
    pub source: BlockId,
    /// Block to write.
    pub destination: BlockId,
}

/// Replaces the last known token of a slot's sequence, which has not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredToken {
    /// The sequence's slot.
    pub slot: Slot,
    /// The token that replaces it.
    pub token: TokenId,
}

/// New blocks of one KV group for the running sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The KV group.
    pub group: GroupId,
    /// Blocks that each entry of `runs` gains; same length as `runs`.
    pub counts: Vec<u32>,
    /// The blocks, `counts.sum()` of them.
    pub blocks: Vec<BlockId>,
}

/// One sequence's share of a step.
///
/// The worker owns the exact position. It knows `length` ids of the sequence, and has run `computed
/// < length` of them. A run of n tokens continues at `computed`:
/// - n < length - computed: it runs n tokens, yields none, and `computed` grows by n;
/// - otherwise it runs up to the last known token and yields 1 to `max_tokens_per_run` tokens. All
///   yielded tokens but the last also run in this step (as drafts or in several passes). Then
///   `length` grows by the yield and `computed` is `length - 1`.
///
/// So a decode is always `tokens: 1`, also while the outcome before it is unknown, and with
/// `max_tokens_per_run` 1 a yielding run yields one token. KV is never written past the tables: a
/// worker yields only as many tokens as have room, and none if the last known token has none (the
/// sequence has ended, but the plan could not know). With one token per run, that never occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sequence's slot.
    pub slot: Slot,
    /// Tokens to run from its position; it yields tokens when they reach its last known one.
    pub tokens: u32,
}

/// The outcome of a step, as the workers report it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// The plan's epoch; `complete` ignores outcomes of an old one.
    pub epoch: Epoch,
    /// The plan's step.
    pub step: StepId,
    /// Slots that yielded tokens, in run order.
    pub slots: Vec<Slot>,
    /// Number of tokens that each yielded; same length as `slots`.
    pub counts: Vec<u32>,
    /// The tokens, `counts.sum()` of them.
    pub token_ids: Vec<TokenId>,
    /// Slots whose sequence failed in this step.
    pub failed: Vec<Slot>,
    /// Slots whose sequence could not run because its request must be prepared again.
    pub unprepared: Vec<Slot>,
    /// Microseconds that the step kept the workers busy; feeds the cost model. 0 = unknown:
    /// `complete` then takes the time since the step could begin.
    pub duration: u64,
}

/// The result of a step for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// The sequence.
    pub sequence: SequenceId,
    /// The slot that it had in this step. By now the sequence and the slot may have parted.
    pub slot: Slot,
    /// Its tokens, as a range of the outcome's `token_ids`, cut to those that the sequence keeps.
    pub tokens: Range<usize>,
    /// Set on a sequence's last emission.
    pub finish: Option<Finish>,
    /// Whether the sequence is steered; without `finish`, it now waits for `Scheduler::steer`.
    pub steered: bool,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It reached its length limit.
    Length,
    /// It generated one of its stop tokens (the last token of the emission).
    StopToken,
    /// The worker reported an error for it.
    Failed,
}

/// One run of a plan in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRun {
    pub(crate) key: SequenceKey,
    /// Generation of the store entry; a different one means that the sequence has ended.
    pub(crate) generation: u32,
    pub(crate) slot: Slot,
    pub(crate) tokens: u32,
    pub(crate) reach: Reach,
}

/// How far a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It ends before the last known token and yields nothing.
    Part,
    /// It runs the last known token and yields tokens.
    Yields,
}

/// Known tokens of one sequence that run in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) tokens: u32,
    pub(crate) reach: Reach,
}

impl Chunk {
    /// Returns the part of a chunk from `position` that has room, in a sequence of `length` known
    /// tokens. It may be empty.
    pub(crate) fn within(self, room: u32, position: u32, length: u32) -> Self {
        let tokens = self.tokens.min(room.saturating_sub(position));
        Self {
            tokens: tokens.min(length - position - 1),
            reach: Reach::Part,
        }
    }
}

/// One plan in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) step: StepId,
    pub(crate) planned: Micros,
    pub(crate) runs: Vec<FlightRun>,
    pub(crate) load: StepLoad,
}

/// Owns the plans in flight and the numbers of the next one.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// Oldest first.
    plans: VecDeque<Flight>,
    epoch: Epoch,
    /// Number of the next plan in its epoch.
    next: StepId,
    /// An emptied list of runs, kept for its memory.
    spare_runs: Vec<FlightRun>,
}

impl Flights {
    pub(crate) fn len(&self) -> usize {
        self.plans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the number of the next plan.
    pub(crate) fn next(&self) -> StepId {
        self.next
    }

    /// Returns the work of each plan, the oldest first.
    pub(crate) fn loads(&self) -> impl DoubleEndedIterator<Item = StepLoad> + '_ {
        self.plans.iter().map(|flight| flight.load)
    }

    /// Returns the runs of all plans in flight.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &FlightRun> + '_ {
        self.plans.iter().flat_map(|flight| &flight.runs)
    }

    /// Returns an empty list of runs.
    pub(crate) fn take_runs(&mut self) -> Vec<FlightRun> {
        std::mem::take(&mut self.spare_runs)
    }

    /// Keeps the memory of a list of runs.
    pub(crate) fn recycle(&mut self, mut runs: Vec<FlightRun>) {
        runs.clear();
        self.spare_runs = runs;
    }

    /// Adds the next plan.
    pub(crate) fn push(&mut self, planned: Micros, runs: Vec<FlightRun>, load: StepLoad) {
        self.plans.push_back(Flight {
            step: self.next,
            planned,
            runs,
            load,
        });
        self.next = StepId(self.next.0 + 1);
    }

    /// Removes the oldest plan, if it has these numbers.
    pub(crate) fn pop(&mut self, epoch: Epoch, step: StepId) -> Option<Flight> {
        let next = self.plans.front().map(|flight| flight.step);
        match epoch == self.epoch && next == Some(step) {
            true => self.plans.pop_front(),
            false => None,
        }
    }

    /// Begins a new epoch without plans in flight.
    pub(crate) fn begin_epoch(&mut self) -> Epoch {
        self.plans.clear();
        self.next = StepId(0);
        self.epoch = Epoch(self.epoch.0 + 1);
        self.epoch
    }
}
