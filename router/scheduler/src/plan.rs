//! What goes out to the workers and what comes back: plain values, deltas only.
//!
//! Steps execute in the order of their numbers, each after all writes of the one before. That is
//! why a block may change hands at once: when a sequence leaves while its runs are in flight, their
//! writes land before those of the block's next owner, which is first written to, copied to or read
//! in a later step. And it is why a slot in `finished` may be filled by `new` of the same plan.

use crate::ids::{BlockId, Epoch, GroupId, SequenceId, Slot, StepId, TokenId};
use std::ops::Range;

/// The work of one step. Workers apply the parts in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The life of the workers' state that this plan continues.
    pub epoch: Epoch,
    /// Position in that life, from 0, without gaps.
    pub step: StepId,
    /// Slots whose sequence is over, was preempted or aborted.
    pub finished: Vec<Slot>,
    /// Sequences that enter a slot, in full.
    pub new: Vec<NewSequence>,
    /// Slots that become copies of another slot.
    pub forks: Vec<Fork>,
    /// Blocks to copy whole before anything runs.
    pub copies: Vec<BlockCopy>,
    /// Slots whose last known token becomes another.
    pub steered: Vec<SteeredToken>,
    /// Blocks appended to the tables of the sequences in `runs`; one entry per KV group that grows.
    pub growth: Vec<Growth>,
    /// Sequences that run, in order: decodes first, then prompt chunks.
    pub runs: Vec<Run>,
}

/// A sequence in full, as a fresh worker needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSequence {
    /// Whose it is: the engine adds the sampling parameters by this id.
    pub sequence: SequenceId,
    /// Where it goes.
    pub slot: Slot,
    /// Prompt and generated tokens known so far.
    pub token_ids: Vec<TokenId>,
    /// How many of `token_ids`, at their end, were generated.
    pub generated: u32,
    /// Tokens whose KV is in the blocks already (prefix hits).
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
    /// The sequence born by the fork.
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

/// The last known token of a slot's sequence, which has not run, is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredToken {
    /// The sequence's slot.
    pub slot: Slot,
    /// What it goes on with.
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
/// The worker owns the exact position. It knows `length` ids of the sequence, of which it has run
/// `computed < length`. A run of n tokens continues at `computed`:
/// - n < length - computed: it runs n tokens, yields none, and `computed` grows by n;
/// - otherwise it runs up to the last known token and yields 1 to `max_tokens_per_run` tokens, the
///   yielded ones but the last being run on the way (by drafts or by several passes). Then `length`
///   grows by what was yielded and `computed` is `length - 1`.
///
/// So a decode is always `tokens: 1`, also when the outcome before it is not known yet, and with
/// `max_tokens_per_run` 1 a yielding run yields one token. KV is never written past the tables: a
/// worker yields only as many tokens as have room, none if the last known token has none itself
/// (its sequence is over, but the plan could not know). With one token per run, that never occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sequence's slot.
    pub slot: Slot,
    /// Tokens to run from where it stands; it yields tokens when they reach its last known one.
    pub tokens: u32,
}

/// What a step brought, as the workers report it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Echo of the plan's epoch; an old one makes `complete` return nothing.
    pub epoch: Epoch,
    /// Echo of the plan's step.
    pub step: StepId,
    /// Slots that yielded tokens, in run order.
    pub slots: Vec<Slot>,
    /// Tokens that each yielded; same length as `slots`.
    pub counts: Vec<u32>,
    /// The tokens, `counts.sum()` of them.
    pub token_ids: Vec<TokenId>,
    /// Slots whose sequence failed in this step.
    pub failed: Vec<Slot>,
    /// Slots whose sequence could not run: its request must be prepared again.
    pub unprepared: Vec<Slot>,
    /// How long the step kept the workers busy, in microseconds; feeds the cost model. 0 = unknown:
    /// `complete` then takes the time since the step could begin.
    pub duration: u64,
}

/// News about one sequence after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// Whose news.
    pub sequence: SequenceId,
    /// The slot that it had in this step; by now it may have another, and this one another sequence.
    pub slot: Slot,
    /// Its tokens, as a range of the outcome's `token_ids`; trimmed to what the sequence may keep.
    pub tokens: Range<usize>,
    /// Set on a sequence's last emission.
    pub finish: Option<Finish>,
    /// Whether it is of a sequence that is steered; without `finish`, it waits for that now.
    pub steered: bool,
}

/// Why a sequence is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It generated as many tokens as it may.
    Length,
    /// It generated one of its stop tokens (the last token of the emission).
    StopToken,
    /// The worker reported an error for it.
    Failed,
}
