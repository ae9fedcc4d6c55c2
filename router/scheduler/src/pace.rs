//! How much of a prompt a step reads, so that running streams keep their pace.
//!
//! With nothing running, as much as a step holds. Otherwise a step with a prompt may take `STRETCH`
//! times as long as it would without, so more than half of it is spent on the prompt; and longer, the
//! more sequences wait for their first token per one that streams: one long prompt must not hold up
//! 32 streams, but when a crowd arrives, filling the batch comes first. `latency_target` bounds that.

use crate::cost::Load;
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Sequence};

/// A step with a prompt may always take this many times as long as it would without.
const STRETCH: f64 = 2.4;
/// So many waiting sequences per stream are no crowd.
const FEW: f64 = 1.0 / 16.0;
/// With as many more waiting sequences as streams, a step may be so many times longer still.
const CROWD: f64 = 2.0;
/// Prompts are never read more slowly than this many tokens per step, whatever that takes.
const MIN_CHUNK: u32 = 64;

impl Scheduler {
    /// Prompt tokens of the next step.
    pub(crate) fn prompt_budget(&self) -> u32 {
        let decodes = self.running.len() as u32 - self.counters.reading;
        let k = self.config.max_tokens_per_run;
        let left = self.config.max_step_tokens.saturating_sub(decodes * k);
        // Those whose last token is in flight decode no more.
        let streams = decodes.min(self.streams.sequences);
        if streams == 0 {
            return left;
        }
        match self.paced(streams) {
            Some(tokens) => self.fitting(decodes * k, tokens).max(k).min(left),
            None => left,
        }
    }

    /// About so many prompt tokens, such that with the decodes' the step has a size that suits the
    /// workers: the largest within that; the smallest possible if none is.
    fn fitting(&self, decodes: u32, tokens: u32) -> u32 {
        let room = |size: &u32| size.checked_sub(decodes).filter(|&room| room >= MIN_CHUNK);
        let mut rooms = self.config.step_sizes.iter().filter_map(room);
        match rooms.next() {
            Some(least) => rooms
                .take_while(|&room| room <= tokens)
                .last()
                .unwrap_or(least),
            None => tokens.max(MIN_CHUNK),
        }
    }

    /// Prompt tokens beside so many streams; None until the cost of steps is known.
    fn paced(&self, streams: u32) -> Option<u32> {
        let load = Load {
            decodes: streams,
            context: self.streams.context,
            ..Load::default()
        };
        let least = self.cost.least(load)?;
        let entering = self.counters.queued.min(self.slots.free()) as f64;
        let crowd = (f64::from(self.counters.reading) + entering) / f64::from(streams);
        let most = (self.config.latency_target as f64).max(STRETCH * least);
        let target = (STRETCH * least * (1.0 + CROWD * (crowd - FEW).max(0.0))).min(most);
        let position = self.first_reader().map_or(0, |sequence| sequence.planned);
        self.cost.prompt_tokens(load, position, target)
    }

    /// The most senior sequence that reads. Readers are mostly the newest: looks from the end.
    fn first_reader(&self) -> Option<&Sequence> {
        let juniors_first = self.running.iter().rev().map(|&place| &self.store[place]);
        let mut readers = juniors_first.filter(|sequence| sequence.phase == Phase::Reading);
        let others = (self.counters.reading as usize).checked_sub(1)?;
        readers.nth(others)
    }
}
