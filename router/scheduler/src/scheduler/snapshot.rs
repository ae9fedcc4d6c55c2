//! Counts for metrics, and the expected wait of a new request.

use super::Scheduler;
use crate::cost::StepLoad;
use crate::ids::Micros;
use crate::memory::SequenceKv;
use crate::sequence::{QueueClass, Sequence};

/// The scheduler's state in numbers; the engine reads it for metrics and `Retry-After`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Sequences in the queue, set by `add`, `prepared` and preemption.
    pub waiting: usize,
    /// Sequences that wait for `prepared`.
    pub preparing: usize,
    /// Known tokens of waiting and preparing sequences, shared ones counted for each.
    pub waiting_tokens: u64,
    /// Sequences in slots.
    pub running: usize,
    /// Plans whose outcome has not arrived.
    pub in_flight: usize,
    /// Blocks with undefined contents, over all groups.
    pub blocks_free: u64,
    /// Blocks that sequences hold.
    pub blocks_leased: u64,
    /// Blocks without references, kept for later requests.
    pub blocks_cached: u64,
    /// References to blocks that belong to no live sequence. Not 0 only if blocks leak.
    pub blocks_dead: u64,
    /// Tokens found in the prefix cache, since the start.
    pub prefix_hit_tokens: u64,
    /// Sequences that lost their slot to a senior one, since the start.
    pub preemptions: u64,
    /// Tokens of resumed sequences that ran again, since the start.
    pub recomputed_tokens: u64,
}

/// Counts since the start, for `snapshot`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) preemptions: u64,
    pub(crate) prefix_hit_tokens: u64,
    pub(crate) recomputed_tokens: u64,
    last_start: Option<Micros>,
    /// Moving average of the time between starts while a sequence waited.
    pub(crate) start_gap: Option<u64>,
}

/// The newest gap has this share of the moving average (1/16).
const SMOOTHING: u64 = 16;

impl Snapshot {
    /// Adds the counts since the start of an `earlier` scheduler, which this one replaces.
    #[must_use]
    pub fn continuing(self, earlier: &Self) -> Self {
        Self {
            prefix_hit_tokens: self.prefix_hit_tokens + earlier.prefix_hit_tokens,
            preemptions: self.preemptions + earlier.preemptions,
            recomputed_tokens: self.recomputed_tokens + earlier.recomputed_tokens,
            ..self
        }
    }
}

impl Scheduler {
    /// Returns counts for metrics. Takes time proportional to the number of running sequences.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let (blocks, waiting) = (self.memory.counts(), self.waiting.counts());
        Snapshot {
            waiting: waiting.queued,
            preparing: waiting.preparing,
            waiting_tokens: waiting.tokens,
            running: self.running.len(),
            in_flight: self.flights.len(),
            blocks_free: blocks.free,
            blocks_leased: blocks.leased,
            blocks_cached: blocks.cached,
            blocks_dead: blocks.references.saturating_sub(self.live_references()),
            prefix_hit_tokens: self.counters.prefix_hit_tokens,
            preemptions: self.counters.preemptions,
            recomputed_tokens: self.counters.recomputed_tokens,
        }
    }

    fn live_references(&self) -> u64 {
        let running = self.running.keys().iter().map(|&key| &self.store[key].kv);
        let held: usize = running.map(SequenceKv::held).sum();
        let copies: usize = self
            .pending_forks
            .iter()
            .map(|pending| pending.copies.len())
            .sum();
        (held + copies) as u64
    }

    /// Returns the microseconds until a request that is added now could start: sequences ahead
    /// times the usual time between starts, and at least the time to prefill their prompts.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        let waiting = self.waiting.counts().sequences() as u64;
        if waiting == 0 {
            return 0;
        }
        let starts = self.counters.start_gap.unwrap_or(0).saturating_mul(waiting);
        let tokens = self.waiting.counts().tokens;
        let step = f64::from(self.config.max_step_tokens);
        let mut full = StepLoad::default();
        full.add_prompt(0, self.config.max_step_tokens);
        let each = self.pacing.predict(full).unwrap_or(0.0) / step;
        starts.max((each * tokens as f64) as u64)
    }

    /// Returns the microseconds between places in the queue that become free.
    #[must_use]
    pub fn start_interval(&self) -> u64 {
        let waiting = self.waiting.counts().sequences() as u64;
        self.backlog() / waiting.max(1)
    }
}

impl Counters {
    /// Counts a sequence that left the queue for a slot.
    pub(crate) fn count_start(&mut self, sequence: &Sequence, hit: u32, now: Micros) {
        self.prefix_hit_tokens += u64::from(hit);
        if sequence.queue_class == QueueClass::Resumed {
            self.recomputed_tokens += u64::from(sequence.len() - hit);
        }
        // Only a gap during which it waited says something about the backlog.
        if let Some(last) = self.last_start.filter(|&last| sequence.since <= last) {
            let gap = now.0.saturating_sub(last.0);
            let old = self.start_gap.unwrap_or(gap);
            self.start_gap = Some((old * (SMOOTHING - 1) + gap) / SMOOTHING);
        }
        self.last_start = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_since_the_start_continue_and_others_do_not() {
        let totals = |prefix_hit_tokens, preemptions, recomputed_tokens, waiting| Snapshot {
            prefix_hit_tokens,
            preemptions,
            recomputed_tokens,
            waiting,
            ..Snapshot::default()
        };
        let earlier = totals(30, 4, 500, 6);
        let sum = totals(31, 6, 503, 7);
        assert_eq!(totals(1, 2, 3, 7).continuing(&earlier), sum);
    }
}
