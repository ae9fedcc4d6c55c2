//! How much of a prompt a step reads, so that running streams keep their pace.
//!
//! With nothing running, as much as the largest size that suits the workers, and where plenty waits all
//! that a step holds: larger steps read faster, since weights are read less often, but those who come
//! first wait for all of a step, and who comes next for one or two of them.
//! Otherwise a step with a prompt may take `STRETCH` times as long as it would without, so more than
//! half of it may be spent on the prompt; and longer, while contexts are short: they lengthen every
//! step as answers grow, so a stream that bears the last gaps of a long answer bears as long ones at
//! its beginning; and longer, the more sequences wait for their first token per one that streams: one
//! long prompt must not hold up 32 streams, but when a crowd arrives, filling the batch comes first.
//! `latency_target` bounds that.
//!
//! Of the sizes within that, filled as far as time allows (deep in a prompt, its attention takes more
//! than the products that padding shares), the step takes the one that costs everybody the least time
//! per prompt token. With d streams and w who wait, a step of `t` keeps w waiting for `t`, and takes
//! `t - alone` from each stream, where `alone` is what the decodes would take:
//! (w + d) (t - alone d / (d + w)). So beside many streams the sizes are best that hardly take longer
//! than their decodes, those whose weights are read anyway, and while many wait, those that read
//! fastest.

use crate::cost::Load;
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Sequence};

/// With nothing running, a step is filled while so many times what it holds is unread,
const PLENTY: f64 = 1.5;
/// if it takes no more microseconds than this.
const LONGEST: f64 = 500_000.0;
/// A step with a prompt may always take this many times as long as it would without,
const STRETCH: f64 = 2.1;
/// or this many times but for what its decodes attend to, if that is more and known.
const STRETCH_OF_PRODUCTS: f64 = 2.8;
/// So many waiting sequences per stream are no crowd.
const FEW: f64 = 1.0 / 16.0;
/// With as many more waiting sequences as streams, a step may be so many times longer still.
const CROWD: f64 = 2.0;
/// Prompts are never read more slowly than this many tokens per step, whatever that takes.
const MIN_CHUNK: u32 = 64;
/// Prompt tokens of a step while it is not known what prompts cost.
const PROBE: u32 = 512;
/// So many unread tokens count as one who waits: who comes next will wait for a long prompt too.
const WEIGHT: f64 = 1_024.0;

/// No prompt costs less than this share of its step, whatever was measured: where reading seems free,
/// more of it is better.
const FREE: f64 = 0.01;

/// What a prompt is read beside, and how fast.
struct Pace {
    /// The decodes.
    beside: Load,
    /// Where the prompt's next tokens begin.
    position: u32,
    /// Microseconds that the step may take.
    target: f64,
    /// Microseconds of it that are the streams': what they would take without, by their weight.
    spared: f64,
}

impl Scheduler {
    /// Prompt tokens of the next step.
    pub(crate) fn prompt_budget(&self) -> u32 {
        let decodes = self.running.len() as u32 - self.counters.reading;
        let k = self.config.max_tokens_per_run;
        let left = self.config.max_step_tokens.saturating_sub(decodes * k);
        // Those whose last token is in flight decode no more.
        let streams = decodes.min(self.streams.sequences);
        if streams == 0 || self.counters.reading == 0 && self.queue.is_empty() {
            return self.unpaced().min(left);
        }
        let beside = Load {
            decodes: streams,
            context: self.streams.context,
            ..Load::default()
        };
        let Some(alone) = self.cost.alone(beside) else {
            return self.largest_size().min(left);
        };
        let pace = self.pace(beside, alone);
        let paced = pace.and_then(|pace| self.paced(&pace, decodes * k));
        paced.unwrap_or(PROBE).max(k).min(left)
    }

    /// Prompt tokens of a step that holds up no stream.
    fn unpaced(&self) -> u32 {
        let most = self.config.max_step_tokens;
        let full = Load {
            prompt: most,
            ..Load::default()
        };
        let (_, unread) = self.unread(self.entering());
        let plenty = unread >= PLENTY * f64::from(most);
        if plenty && self.cost.predict(full).is_some_and(|took| took <= LONGEST) {
            most
        } else {
            self.largest_size()
        }
    }

    /// The largest size that suits the workers beside decodes.
    fn largest_size(&self) -> u32 {
        let most = self.config.max_step_tokens;
        self.config.step_sizes.last().copied().unwrap_or(most)
    }

    /// Sequences that wait and for which there are slots.
    fn entering(&self) -> f64 {
        self.counters.queued.min(self.slots.free()) as f64
    }

    /// The pace beside decodes that would take `alone`; None until the cost of prompts is known.
    fn pace(&self, beside: Load, alone: f64) -> Option<Pace> {
        let least = self.cost.least(beside)?;
        let streams = f64::from(beside.decodes);
        let entering = self.entering();
        let sequences = f64::from(self.counters.reading) + entering;
        let crowd = sequences / streams;
        let always = STRETCH * least;
        let stretched = |attending: f64| {
            let products = (least - attending).max(0.0);
            (STRETCH_OF_PRODUCTS * products + attending).max(always)
        };
        let few = self.cost.attending(beside).map_or(always, stretched);
        let most = (self.config.latency_target as f64).max(always);
        let target = (few * (1.0 + CROWD * (crowd - FEW).max(0.0))).min(most);
        let (position, unread) = self.unread(entering);
        let waiting = sequences.max(unread / WEIGHT);
        Some(Pace {
            beside,
            position,
            target,
            spared: alone * streams / (streams + waiting),
        })
    }

    /// Tokens of a prompt at this pace, such that with `decodes` tokens beside them the step fills a
    /// size that suits the workers, or what time allows of it: the smallest that there is, or a better
    /// one.
    fn paced(&self, pace: &Pace, decodes: u32) -> Option<u32> {
        let fitting = |room| {
            let (beside, position, target) = (pace.beside, pace.position, pace.target);
            self.cost.fitting(beside, position, room, target)
        };
        let room = |size: &u32| size.checked_sub(decodes).filter(|&room| room >= MIN_CHUNK);
        let mut rooms = self.config.step_sizes.iter().filter_map(room);
        let Some(smallest) = rooms.next() else {
            let tokens = self
                .cost
                .prompt_tokens(pace.beside, pace.position, pace.target)?;
            return Some(tokens.max(MIN_CHUNK));
        };
        let load = |tokens| {
            let mut load = pace.beside;
            load.read(pace.position, tokens);
            load
        };
        // What was not tried yet is hoped to be good, so that it is tried.
        let price = |tokens| {
            let hope = self.cost.hope(load(tokens)).unwrap_or(0.0);
            (hope - pace.spared).max(hope * FREE) / f64::from(tokens)
        };
        let least = fitting(smallest).map_or(smallest, |tokens| tokens.max(MIN_CHUNK));
        let better = rooms.filter_map(|room| fitting(room).filter(|&tokens| tokens >= MIN_CHUNK));
        std::iter::once(least)
            .chain(better)
            .min_by(|&a, &b| price(a).total_cmp(&price(b)))
    }

    /// Where the first prompt is to be read on, and how many tokens are unread, those of the first
    /// `entering` in the queue included.
    fn unread(&self, entering: f64) -> (u32, f64) {
        let waiting = self.counters.waiting().max(1) as f64;
        let queued = self.counters.waiting_tokens as f64 * entering / waiting;
        let mut unread = (0, queued);
        for sequence in self.readers() {
            unread.0 = sequence.planned;
            unread.1 += f64::from(sequence.len() - sequence.planned);
        }
        unread
    }

    /// Sequences that read, the most junior first. They are mostly the newest: looks from the end.
    fn readers(&self) -> impl Iterator<Item = &Sequence> {
        let juniors_first = self.running.iter().rev().map(|&place| &self.store[place]);
        let readers = juniors_first.filter(|sequence| sequence.phase == Phase::Reading);
        readers.take(self.counters.reading as usize)
    }
}
