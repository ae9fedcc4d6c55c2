//! A plan under construction.

use crate::cost::StepLoad;
use crate::ids::{BlockId, GroupId, Micros, SequenceKey, Slot};
use crate::memory::BlockLease;
use crate::plan::{Chunk, FlightRun, Growth, NewSequence, Reach, Run, Table};
use crate::sequence::Sequence;

/// Runs of one kind (decodes or prompts), and the blocks that they gain per group.
#[derive(Debug, Default)]
pub(crate) struct PlanSection {
    pub(crate) runs: Vec<Run>,
    pub(crate) flight: Vec<FlightRun>,
    growth: Vec<Gains>,
}

/// Blocks that the runs of a section gain in one group.
#[derive(Clone, Debug, Default)]
struct Gains {
    /// Runs that gain blocks, by index, and how many.
    counts: Vec<(usize, u32)>,
    blocks: Vec<BlockId>,
}

/// A decode that needs one more block in some groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingGrowth {
    pub(crate) key: SequenceKey,
    /// Its index among the section's runs.
    pub(crate) run: usize,
    /// Tokens that it needs room for.
    pub(crate) wanted: u32,
}

/// Totals of a plan's decodes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecodeStats {
    pub(crate) decodes: u32,
    /// Tokens that the decodes attend to.
    pub(crate) context: u64,
    /// Decodes that reach their length limit.
    pub(crate) ending: u32,
    /// Decodes that will need another block in each group.
    pub(crate) wanting: u32,
}

/// A plan under construction.
#[derive(Debug)]
pub(crate) struct PlanBuilder {
    pub(crate) now: Micros,
    pub(crate) new: Vec<NewSequence>,
    pub(crate) decodes: PlanSection,
    pub(crate) prompts: PlanSection,
    /// Work that prompts add to the step.
    pub(crate) prefill: StepLoad,
    /// Prompts that decode in the next plan.
    pub(crate) streams: Streams,
    /// Decodes whose next block is reserved but not yet taken.
    pub(crate) pending_growth: Vec<PendingGrowth>,
    /// Running sequences that do not decode in this plan.
    pub(crate) others: Vec<SequenceKey>,
    pub(crate) decode_stats: DecodeStats,
    /// Tokens left for prompts.
    pub(crate) budget: u32,
    /// A long prompt that yields to shorter ones in this plan.
    pub(crate) deferred: Option<DeferredPrompt>,
    /// Prompts that yield to tenants which received less.
    pub(crate) yielded: Vec<SequenceKey>,
    /// Running sequences whose next blocks others wait for.
    pub(crate) claimants: Vec<SequenceKey>,
    /// Whether memory ran out for a running sequence.
    pub(crate) shortage: Shortage,
}

/// A prompt whose chunk is planned last; see `Scheduler::yields_to_shorter`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredPrompt {
    pub(crate) key: SequenceKey,
    /// Tokens that a prompt may have left if it is to go first.
    pub(crate) max_remaining: u32,
    /// Tokens of the step that are reserved for the long prompt.
    pub(crate) reserved: u32,
}

/// Whether running sequences got the blocks that they needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    None,
    /// A sequence was preempted or stalled: this plan admits nothing.
    Blocks,
}

/// What the last plan predicts for the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams {
    /// Sequences that decode in the next plan, if none ends early.
    pub(crate) sequences: u32,
    /// Tokens that they attend to.
    pub(crate) context: u64,
}

impl PlanBuilder {
    /// Returns whether a prompt with `left` tokens may run now.
    pub(crate) fn may_prefill(&self, left: u32) -> bool {
        self.deferred
            .is_none_or(|deferred| left <= deferred.max_remaining)
    }
}

impl PlanSection {
    pub(crate) fn new(groups: usize, flight: Vec<FlightRun>, capacity: usize) -> Self {
        let runs = Vec::with_capacity(capacity);
        Self {
            runs,
            flight,
            growth: vec![Gains::default(); groups],
        }
    }

    /// Records the blocks that a run gains. Calls come in the order of runs.
    pub(crate) fn gain(&mut self, run: usize, group: usize, leases: &[BlockLease]) {
        if !leases.is_empty() {
            let gains = &mut self.growth[group];
            gains.counts.push((run, leases.len() as u32));
            gains.blocks.extend(leases.iter().map(BlockLease::block));
        }
    }

    /// Records a decode that has room, or whose block is reserved.
    #[inline]
    pub(crate) fn push_decode(&mut self, sequence: &mut Sequence, key: SequenceKey) {
        sequence.in_flight += 1;
        sequence.yielding += 1;
        let chunk = Chunk {
            tokens: 1,
            reach: Reach::Yields,
        };
        self.push(sequence, key, chunk);
    }

    #[inline]
    pub(crate) fn push(&mut self, sequence: &Sequence, key: SequenceKey, chunk: Chunk) {
        let Chunk { tokens, reach } = chunk;
        let Some(slot) = sequence.slot() else { return };
        self.runs.push(Run { slot, tokens });
        let generation = sequence.generation;
        self.flight.push(FlightRun {
            key,
            generation,
            slot,
            tokens,
            reach,
        });
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        let before = self.runs.len();
        self.runs.append(&mut other.runs);
        self.flight.append(&mut other.flight);
        for (gains, mut more) in self.growth.iter_mut().zip(other.growth) {
            gains.counts.extend(
                more.counts
                    .iter()
                    .map(|&(run, count)| (before + run, count)),
            );
            gains.blocks.append(&mut more.blocks);
        }
    }

    /// Returns the plan's `growth`: one entry per group that grows.
    pub(crate) fn take_growth(&mut self) -> Vec<Growth> {
        let runs = self.runs.len();
        let groups = std::mem::take(&mut self.growth).into_iter().enumerate();
        let grown = groups.filter(|(_, gains)| !gains.blocks.is_empty());
        let growth = |(group, gains): (usize, Gains)| {
            let mut counts = vec![0; runs];
            for (run, count) in gains.counts {
                counts[run] = count;
            }
            Growth {
                group: GroupId(group as u32),
                counts,
                blocks: gains.blocks,
            }
        };
        grown.map(growth).collect()
    }
}

impl DecodeStats {
    /// Counts a recorded decode.
    #[inline]
    pub(crate) fn count(&mut self, sequence: &Sequence) {
        self.decodes += 1;
        self.context += u64::from(sequence.len());
        self.ending += u32::from(sequence.will_end());
        self.wanting += u32::from(sequence.room < sequence.max_room());
    }
}

/// Describes a sequence in full, as a fresh worker needs it.
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

impl Streams {
    /// Counts a sequence whose run yields, unless that run is its last.
    pub(crate) fn count(&mut self, sequence: &Sequence) {
        if !sequence.will_end() {
            self.sequences += 1;
            self.context += u64::from(sequence.len());
        }
    }
}
