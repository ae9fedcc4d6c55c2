//! Counts that are updated as events happen.

use crate::ids::Micros;
use crate::sequence::{QueueClass, Sequence};

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
