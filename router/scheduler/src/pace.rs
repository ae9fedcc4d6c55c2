//! How much of a prompt a step reads, so that running streams keep their pace.
//!
//! With nothing running, as much as a step holds. Otherwise a step with a prompt may take `STRETCH`
//! times as long as it would without, so at least half of it is spent on the prompt; and longer, the
//! more sequences wait for their first token per one that streams: one long prompt must not hold up
//! 32 streams, but when a crowd arrives, filling the batch comes first. `latency_target` bounds that.

use crate::cost::Load;
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Sequence};

/// A step with a prompt may always take this many times as long as it would without.
const STRETCH: f64 = 2.0;
/// With as many waiting sequences as streams, a step may be so many times longer still.
const CROWD: f64 = 2.0;
/// Prompts are never read more slowly than this many tokens per step, whatever that takes.
const MIN_CHUNK: u32 = 64;
/// Workers pad small steps to sizes that come again (to replay a graph); so chunks come in such sizes
/// up to this one.
const ROUNDED: u32 = 512;

/// What the last plan leaves to the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams {
    /// Sequences that decode in the next plan, if nothing ends them.
    pub(crate) sequences: u32,
    /// Tokens that they attend to.
    pub(crate) context: u64,
}

impl Streams {
    /// Counts a sequence whose run yields, unless that is its last.
    pub(crate) fn count(&mut self, sequence: &Sequence) {
        if !sequence.will_end() {
            self.sequences += 1;
            self.context += u64::from(sequence.len());
        }
    }
}

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
            Some(tokens) => tokens.max(MIN_CHUNK.max(k)).min(left),
            None => left,
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
        let target = (STRETCH * least * (1.0 + CROWD * crowd)).min(most);
        let position = self.first_reader().map_or(0, |sequence| sequence.planned);
        self.cost.prompt_tokens(load, position, target).map(rounded)
    }

    /// The most senior sequence that reads. Readers are mostly the newest: looks from the end.
    fn first_reader(&self) -> Option<&Sequence> {
        let juniors_first = self.running.iter().rev().map(|&place| &self.store[place]);
        let mut readers = juniors_first.filter(|sequence| sequence.phase == Phase::Reading);
        let others = (self.counters.reading as usize).checked_sub(1)?;
        readers.nth(others)
    }
}

/// The greatest power of two, or three times such a one, that is not greater.
fn rounded(tokens: u32) -> u32 {
    if tokens > ROUNDED {
        return tokens;
    }
    let low_bits = tokens.checked_ilog2().unwrap_or(0).saturating_sub(1);
    tokens >> low_bits << low_bits
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn small_chunks_come_in_few_sizes() {
        let sizes = [0, 1, 5, 64, 95, 100, 300, 400, 512, 513].map(rounded);
        assert_eq!(sizes, [0, 1, 4, 64, 64, 96, 256, 384, 512, 513]);
    }
}
