//! Prefill pacing: the number of prompt tokens in a step. More tokens shorten the time to first
//! token, fewer keep the inter-token latency of running streams low.
//!
//! Without decodes, a step runs the largest size that suits the workers, or `max_step_tokens` if
//! many prompt tokens wait. Larger steps read weights less often, but the first of a few prompts
//! would wait for all of them.
//!
//! Beside decodes, a step has a time limit. While the last of the waiting prompts will have waited for
//! its first token for no longer than `SHORT_WAIT` times `latency_target`, steps are smooth: they take
//! about a third of the target. That costs a lone prompt of some hundred tokens a few milliseconds.
//!
//! But users notice a late first token more than gaps of a few tens of milliseconds between tokens.
//! So after a longer wait, one waiting request may lengthen a step to half of the target, and the
//! n-th further one by n tenths of it, up to two and a half times the target: with many waiting
//! requests, streams slow down more, though for a shorter time. A step may then always take `STRETCH`
//! times as long as its decodes alone, whatever the target; otherwise prompts would starve on a slow
//! device. While contexts are short it may take longer, up to the target: contexts lengthen every
//! step as answers grow, so a stream that accepts the last gaps of a long answer accepts the same
//! gaps at its start.
//!
//! Unless the user has set the target, streams of a slow model, whose weights alone take
//! `SLOW_WEIGHTS` to read, accept more: what counts as the target is at least `SLOW_TARGET` times the
//! time of the decodes, and a step may take `SLOW_STRETCH` times as long as they do if that makes
//! prompt tokens much cheaper. All prompts together then delay streams less.
//!
//! Of the sizes that fit the limit, the step takes the one with the least time per prompt token,
//! filled as far as the limit allows (deep in a prompt, attention takes more time than the products
//! that padding shares).
//!
//! Much shorter prompts go before a long one. A prompt longer than a step would take all of the
//! step, and short prompts behind it would wait until all of it is computed. So much shorter ones,
//! running or queued, may first take a share of each step. The long prompt takes what they leave: it
//! loses at most that share, and nothing if no shorter prompt comes.

use super::Scheduler;
use crate::config::{LATENCY_TARGET, SchedulerConfig};
use crate::cost::{StepCost, StepLoad};
use crate::ids::{Micros, SequenceKey};
use crate::plan::Flight;
use crate::plan_builder::{DeferredPrompt, PlanBuilder, Streams};
use crate::sequence::{Phase, Sequence};

/// Without decodes, a step is filled to its capacity if this many times as many tokens wait,
const PLENTY: f64 = 1.5;
/// and if it takes no more microseconds than this.
const LONGEST: f64 = 500_000.0;
/// The time of a smooth step, as a share of `latency_target`,
const SMOOTH_SHARE: f64 = 0.36;
/// or as a multiple of its decodes' time, if that is more.
const SMOOTH_STRETCH: f64 = 1.5;
/// Steps are smooth while the last of the waiting prompts waits for its first token for at most this
/// many times `latency_target`.
const SHORT_WAIT: f64 = 2.1;
/// After a longer wait, a step with a prompt may always take this many times as long as without,
const STRETCH: f64 = 2.1;
/// or this many times as long without the attention of its decodes, plus that attention, if that is
/// more and known; at most `latency_target`.
const STRETCH_OF_PRODUCTS: f64 = 2.8;
/// Shares of `latency_target`: the time of a step for one waiting request,
const FIRST_SHARE: f64 = 0.5;
/// the additional time for the n-th further one, times n,
const FURTHER_SHARE: f64 = 0.1;
/// and the maximum.
const MAX_SHARES: f64 = 2.5;
/// Microseconds of reading the weights from which a model is slow.
const SLOW_WEIGHTS: f64 = 8_000.0;
/// Times of the decodes of a slow model: what the target is at least,
const SLOW_TARGET: f64 = 2.0;
/// and the maximum of a step,
const SLOW_STRETCH: f64 = 3.6;
/// in which a prompt token adds at most this share of what it adds to the step that would fit.
const MUCH_CHEAPER: f64 = 0.85;
/// Minimum prompt tokens of a step with prompts, regardless of its time limit.
const MIN_CHUNK: u32 = 64;
/// Prompt tokens of a step while the cost of prompts is unknown.
const PROBE: u32 = 512;
/// Shorter prompts may take one in this many tokens of a step.
const SHORT_PROMPT_SHARE: u32 = 4;
/// A shorter prompt has at most one in this many of the long prompt's remaining tokens.
const LENGTH_RATIO: u32 = 8;

/// The decodes beside which a chunk runs, and the time limit of the step.
struct Pace {
    /// The decodes.
    beside: StepLoad,
    /// Position of the prompt's next token.
    position: u32,
    /// Microseconds that the step may take.
    limit: f64,
}

impl Pace {
    /// Returns the load of the step with `tokens` of the prompt.
    fn with_prompt(&self, tokens: u32) -> StepLoad {
        let mut load = self.beside;
        load.add_prompt(self.position, tokens);
        load
    }
}

/// Owns what is known of step times.
#[derive(Debug)]
pub(crate) struct Pacing {
    cost: StepCost,
    /// What the last plan predicts for the next one.
    streams: Streams,
    last_outcome: Micros,
}

impl Pacing {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        Self {
            cost: StepCost::new(&config.step_sizes, config.decode_reads),
            streams: Streams::default(),
            last_outcome: Micros(0),
        }
    }

    /// Learns from a step's outcome. `duration`: microseconds; 0 = unknown: the time since the step
    /// could begin, which is when it was planned or, if later, when the step before it ended.
    pub(crate) fn observe(&mut self, flight: &Flight, duration: u64, now: Micros) {
        let begun = flight.planned.max(self.last_outcome);
        let took = match duration {
            0 => now.0.saturating_sub(begun.0),
            known => known,
        };
        self.cost.observe(flight.load, took, now);
        self.last_outcome = now;
    }

    /// Forgets the step times of old workers.
    pub(crate) fn relearn(&mut self, config: &SchedulerConfig) {
        self.cost = StepCost::new(&config.step_sizes, config.decode_reads);
    }

    /// Sets the streams that the next plan will decode.
    pub(crate) fn expect(&mut self, streams: Streams) {
        self.streams = streams;
    }

    /// Returns the model of step times.
    pub(crate) fn cost(&self) -> &StepCost {
        &self.cost
    }

    /// Returns the streams that the next plan will decode.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Returns the microseconds that a step takes, if enough steps were observed.
    pub(crate) fn predict(&self, load: StepLoad) -> Option<f64> {
        self.cost.predict(load)
    }
}

impl Scheduler {
    /// Returns the microseconds that the newest plan should take, if enough steps were observed.
    pub fn expected_time(&self) -> Option<u64> {
        let load = self.flights.loads().next_back()?;
        self.pacing
            .predict(load)
            .map(|micros| micros.max(0.0) as u64)
    }

    /// Returns the prompt tokens of the next step.
    pub(super) fn prompt_budget(&self, now: Micros) -> u32 {
        let decodes = self.running.len() as u32 - self.running.prefilling();
        let k = self.config.max_tokens_per_run;
        let left = self.config.max_step_tokens.saturating_sub(decodes * k);
        // Sequences whose last token is in flight do not decode any more.
        let streams = decodes.min(self.pacing.streams().sequences);
        if streams == 0 || self.running.prefilling() == 0 && self.waiting.is_empty() {
            return self.budget_without_streams().min(left);
        }
        let beside = StepLoad {
            decodes: streams,
            context: self.pacing.streams().context,
            ..StepLoad::default()
        };
        if self.pacing.cost().alone(beside).is_none() {
            return self.largest_size().min(left);
        }
        let paced = self.paced_budget(beside, decodes * k, now);
        paced.unwrap_or(PROBE).max(k).min(left)
    }

    /// Returns the prompt tokens of a step that delays no stream.
    fn budget_without_streams(&self) -> u32 {
        let most = self.config.max_step_tokens;
        let full = StepLoad {
            prompt: most,
            ..StepLoad::default()
        };
        let plenty = self.waiting_prompt_tokens(self.entering()) >= PLENTY * f64::from(most);
        if plenty
            && self
                .pacing
                .cost()
                .predict(full)
                .is_some_and(|took| took <= LONGEST)
        {
            most
        } else {
            self.largest_size()
        }
    }

    /// Returns the largest size that suits the workers beside decodes.
    fn largest_size(&self) -> u32 {
        let most = self.config.max_step_tokens;
        self.config.step_sizes.last().copied().unwrap_or(most)
    }

    /// Returns the number of queued sequences for which there are slots.
    fn entering(&self) -> f64 {
        self.waiting.counts().queued.min(self.running.free_slots()) as f64
    }

    /// Returns the prompt tokens of a step beside `decode_tokens` of decodes; None until the cost of
    /// prompts is known.
    fn paced_budget(&self, beside: StepLoad, decode_tokens: u32, now: Micros) -> Option<u32> {
        let mut pace = Pace {
            beside,
            position: self.prefills().last().map_or(0, |first| first.planned),
            limit: self.smooth(beside)?,
        };
        let tokens = self.budget_for_pace(&pace, decode_tokens)?;
        let wait = self.longest_wait(self.price(&pace, tokens), now);
        if wait <= SHORT_WAIT * self.latency_target() {
            return Some(tokens);
        }
        pace.limit = pace.limit.max(self.longest(beside)?);
        let tokens = self.budget_for_pace(&pace, decode_tokens)?;
        let longer = self.much_cheaper(pace, tokens, decode_tokens);
        Some(longer.unwrap_or(tokens))
    }

    /// Returns the microseconds of the latency target, which a slow model may exceed.
    fn latency_target(&self) -> f64 {
        self.config.latency_target.unwrap_or(LATENCY_TARGET) as f64
    }

    /// Returns whether streams accept more than the target, because weights take long to read.
    fn is_slow(&self) -> bool {
        self.config.latency_target.is_none() && self.pacing.cost().weights() > SLOW_WEIGHTS
    }

    /// Returns the prompt tokens of a longer step of a slow model, to which each of them adds much
    /// less than to a step with `tokens`; None if there is no such step.
    fn much_cheaper(&self, mut pace: Pace, tokens: u32, decode_tokens: u32) -> Option<u32> {
        let least = self.pacing.cost().least(pace.beside)?;
        if !self.is_slow() || SLOW_STRETCH * least <= pace.limit {
            return None;
        }
        pace.limit = SLOW_STRETCH * least;
        let more = self.budget_for_pace(&pace, decode_tokens)?;
        let alone = self.pacing.cost().alone(pace.beside)?;
        let added = |tokens: u32| {
            let took = self.pacing.cost().predict(pace.with_prompt(tokens))?;
            Some((took - alone) / f64::from(tokens))
        };
        (added(more)? < MUCH_CHEAPER * added(tokens)?).then_some(more)
    }

    /// Returns the microseconds of the longest step that streams always accept.
    fn smooth(&self, beside: StepLoad) -> Option<f64> {
        let least = self.pacing.cost().least(beside)?;
        Some((SMOOTH_SHARE * self.latency_target()).max(SMOOTH_STRETCH * least))
    }

    /// Returns the microseconds that the last of the waiting prompts will have waited for its first
    /// token, if each token takes `price`.
    fn longest_wait(&self, price: f64, now: Micros) -> f64 {
        let left = |sequence: &Sequence| f64::from(sequence.len() - sequence.planned);
        let mut ahead: f64 = self.prefills().map(left).sum();
        let mut longest = price * self.waiting_prompt_tokens(self.entering());
        for sequence in self.prefills() {
            let waited = now.0.saturating_sub(sequence.since.0) as f64;
            longest = longest.max(waited + price * ahead);
            ahead -= left(sequence);
        }
        longest
    }

    /// Returns the microseconds that a step with prompts may take beside decodes while prompts wait
    /// for long.
    fn longest(&self, beside: StepLoad) -> Option<f64> {
        let least = self.pacing.cost().least(beside)?;
        let always = STRETCH * least;
        let stretched = |attending: f64| {
            let products = (least - attending).max(0.0);
            STRETCH_OF_PRODUCTS * products + attending
        };
        let mut target = self.latency_target();
        if self.is_slow() {
            target = target.max(SLOW_TARGET * least);
        }
        let short_contexts = self
            .pacing
            .cost()
            .decode_attention(beside)
            .map_or(0.0, stretched)
            .min(target);
        let further = (f64::from(self.running.prefilling()) + self.entering() - 1.0).max(0.0);
        let sum = further * (further + 1.0) / 2.0;
        let shares = (FIRST_SHARE + FURTHER_SHARE * sum).min(MAX_SHARES);
        Some(always.max(short_contexts).max(shares * target))
    }

    /// Returns the tokens of a prompt at this pace that fill a size, together with `decodes`
    /// tokens, as far as the time limit allows: the smallest size, or one with a better price.
    fn budget_for_pace(&self, pace: &Pace, decode_tokens: u32) -> Option<u32> {
        let fitting = |room| {
            let (beside, position, limit) = (pace.beside, pace.position, pace.limit);
            self.pacing
                .cost()
                .tokens_that_fit(beside, position, room, limit)
        };
        let room = |size: &u32| {
            size.checked_sub(decode_tokens)
                .filter(|&room| room >= MIN_CHUNK)
        };
        let mut rooms = self.config.step_sizes.iter().filter_map(room);
        let Some(smallest) = rooms.next() else {
            let tokens =
                self.pacing
                    .cost()
                    .prompt_tokens(pace.beside, pace.position, pace.limit)?;
            return Some(tokens.max(MIN_CHUNK));
        };
        let price = |tokens| self.price(pace, tokens);
        let least = fitting(smallest).map_or(smallest, |tokens| tokens.max(MIN_CHUNK));
        let better = rooms.filter_map(|room| fitting(room).filter(|&tokens| tokens >= MIN_CHUNK));
        std::iter::once(least)
            .chain(better)
            .min_by(|&a, &b| price(a).total_cmp(&price(b)))
    }

    /// Returns the microseconds per prompt token of a step with `tokens` of them. Sizes that were not
    /// tried yet are priced optimistically, so that they are tried.
    fn price(&self, pace: &Pace, tokens: u32) -> f64 {
        let load = pace.with_prompt(tokens);
        let micros = self.pacing.cost().predict_optimistic(load);
        micros.unwrap_or(0.0) / f64::from(tokens)
    }

    /// Returns the prompt tokens that have not run, those of the first `entering` in the queue
    /// included.
    fn waiting_prompt_tokens(&self, entering: f64) -> f64 {
        let waiting = self.waiting.counts();
        let queued = waiting.tokens as f64 * entering / waiting.sequences().max(1) as f64;
        let left = |sequence: &Sequence| f64::from(sequence.len() - sequence.planned);
        queued + self.prefills().map(left).sum::<f64>()
    }

    /// Returns the sequences that prefill, the most junior first. They are mostly the newest, so
    /// the search begins at the end.
    pub(super) fn prefills(&self) -> impl Iterator<Item = &Sequence> {
        let juniors_first = self
            .running
            .keys()
            .iter()
            .rev()
            .map(|&key| &self.store[key]);
        let prefills = juniors_first.filter(|sequence| sequence.phase == Phase::Prefill);
        prefills.take(self.running.prefilling() as usize)
    }

    /// Returns whether a long prompt yields its turn until `prefill_deferred`. It does not where
    /// blocks are scarce: it would then take them from juniors that already have their runs.
    pub(super) fn yields_to_shorter(&self, key: SequenceKey, builder: &mut PlanBuilder) -> bool {
        let sequence = &self.store[key];
        let (left, budget) = (sequence.len() - sequence.planned, builder.budget);
        let long = builder.deferred.is_none() && left > budget;
        if !long || self.possible_room(key) < sequence.planned + budget {
            return false;
        }
        builder.budget = budget / SHORT_PROMPT_SHARE;
        builder.deferred = Some(DeferredPrompt {
            key,
            max_remaining: left / LENGTH_RATIO,
            reserved: budget - builder.budget,
        });
        true
    }

    /// Plans the chunk of the deferred prompt, after all others.
    pub(super) fn prefill_deferred(&mut self, builder: &mut PlanBuilder) {
        if let Some(deferred) = builder.deferred.take() {
            builder.budget += deferred.reserved;
            let nobody_after = self.running.len();
            self.prefill(deferred.key, nobody_after, builder);
        }
    }
}
