//! Sequences without a slot: queued, or kept out of the queue until they are prepared or steered.

use crate::accounts::Accounts;
use crate::ids::{Micros, SequenceKey};
use crate::queue::Queue;
use crate::sequence::{QueueClass, Sequence, State};

/// Numbers of waiting sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingCounts {
    /// Sequences in the queue.
    pub(crate) queued: usize,
    /// Sequences outside the queue.
    pub(crate) preparing: usize,
    /// Known tokens of all of them.
    pub(crate) tokens: u64,
    /// Those that have not begun, and their tokens; `add` bounds them. Sequences that have begun are
    /// bounded by the slots and by their requests' sequences, whether they were preempted or forked
    /// beyond the slots.
    pub(crate) fresh: usize,
    pub(crate) fresh_tokens: u64,
}

/// Owns the queue and the counts of waiting sequences, and sets their state.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: Queue,
    counts: WaitingCounts,
}

impl WaitingCounts {
    pub(crate) fn sequences(&self) -> usize {
        self.queued + self.preparing
    }

    /// Counts a waiting sequence.
    pub(crate) fn count(&mut self, sequence: &Sequence) {
        let tokens = u64::from(sequence.len());
        self.tokens += tokens;
        if sequence.queue_class == QueueClass::Fresh {
            self.fresh += 1;
            self.fresh_tokens += tokens;
        }
        match sequence.state {
            State::Queued => self.queued += 1,
            State::Preparing => self.preparing += 1,
            State::Running(_) | State::Vacant => {}
        }
    }

    fn uncount(&mut self, sequence: &Sequence) {
        let tokens = u64::from(sequence.len());
        self.tokens -= tokens;
        if sequence.queue_class == QueueClass::Fresh {
            self.fresh -= 1;
            self.fresh_tokens -= tokens;
        }
        match sequence.state {
            State::Queued => self.queued -= 1,
            State::Preparing => self.preparing -= 1,
            State::Running(_) | State::Vacant => {}
        }
    }
}

impl Waiting {
    pub(crate) fn counts(&self) -> WaitingCounts {
        self.counts
    }

    /// Returns whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the queue.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Puts a sequence without slot or blocks into the queue.
    pub(crate) fn enqueue(
        &mut self,
        key: SequenceKey,
        sequence: &mut Sequence,
        now: Micros,
        accounts: &mut Accounts,
    ) {
        sequence.state = State::Queued;
        sequence.since = now;
        self.queue.insert(key, sequence, accounts);
        self.counts.count(sequence);
    }

    /// Keeps a sequence without slot and blocks out of the queue.
    pub(crate) fn park(&mut self, sequence: &mut Sequence) {
        sequence.state = State::Preparing;
        self.counts.count(sequence);
    }

    /// Ends the waiting of a queued or parked sequence; the caller sets its state.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        if sequence.state == State::Queued {
            self.queue.remove(sequence);
        }
        self.counts.uncount(sequence);
    }

    /// Counts tokens that a queued sequence gained from an outcome.
    pub(crate) fn add_tokens(&mut self, tokens: usize) {
        self.counts.tokens += tokens as u64;
    }

    /// Returns whether the queue holds the counted sequences, each at its time; for `check`.
    pub(crate) fn is_consistent(&self, since: impl Fn(SequenceKey) -> Micros) -> bool {
        self.queue.len() == self.counts.queued && self.queue.is_consistent(since)
    }
}
