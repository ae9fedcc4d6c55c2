//! Counts that are updated as events happen.

use crate::ids::Micros;
use crate::sequence::{QueueClass, Sequence};

/// Counts that `pace` and `snapshot` read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) queued: usize,
    pub(crate) preparing: usize,
    /// Known tokens of queued and preparing sequences.
    pub(crate) waiting_tokens: u64,
    /// Queued and preparing sequences that have not begun, and their tokens; `add` bounds them.
    /// Sequences that have begun are bounded by the slots and by their requests' sequences, whether
    /// they were preempted or forked beyond the slots.
    pub(crate) fresh: usize,
    pub(crate) fresh_tokens: u64,
    /// Running sequences that still prefill.
    pub(crate) prefilling: u32,
    pub(crate) preemptions: u64,
    pub(crate) prefix_hit_tokens: u64,
    pub(crate) recomputed_tokens: u64,
    last_start: Option<Micros>,
    /// Moving average of the time between starts while a sequence waited.
    pub(crate) start_gap: Option<u64>,
}

/// The newest gap has this share of the moving average (1/16).
const SMOOTHING: u64 = 16;

impl Counters {
    pub(crate) fn waiting(&self) -> usize {
        self.queued + self.preparing
    }

    /// Counts a sequence without a slot that begins to wait.
    pub(crate) fn start_waiting(&mut self, sequence: &Sequence) {
        let tokens = u64::from(sequence.len());
        self.waiting_tokens += tokens;
        if sequence.queue_class == QueueClass::Fresh {
            self.fresh += 1;
            self.fresh_tokens += tokens;
        }
    }

    /// Counts a sequence that stops waiting.
    pub(crate) fn stop_waiting(&mut self, sequence: &Sequence) {
        let tokens = u64::from(sequence.len());
        self.waiting_tokens -= tokens;
        if sequence.queue_class == QueueClass::Fresh {
            self.fresh -= 1;
            self.fresh_tokens -= tokens;
        }
    }

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

/// What the last plan predicts for the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams {
    /// Sequences that decode in the next plan, if none ends early.
    pub(crate) sequences: u32,
    /// Tokens that they attend to.
    pub(crate) context: u64,
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
