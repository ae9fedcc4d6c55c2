//! The time of a step, fitted from outcomes (`Fit`): the time of its decodes alone, plus the time
//! that its prompts add, unless steps of its size are known from experience (`SizeCosts`).
//!
//! Each part is linear in three features, one of them constant. The parts are fitted separately,
//! because nothing else separates a step's constant cost from that of a prefill, and because
//! decodes and a short chunk share the read of the weights: a chunk may add less than it costs
//! alone (its constant may be negative).
//!
//! Context length and clock speed of long-running streams drift together, so the attention
//! coefficient is poorly identified. It is regularised towards the time that attention takes if
//! keys and values are read as fast as weights, which is right within a tenth for large models on
//! GPUs. Where contexts differ, observations outweigh that.

use crate::config::DecodeReads;
use crate::estimators::{Fit, LEARNING, Prior, SizeCosts};
use crate::ids::Micros;

/// The work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepLoad {
    /// Runs of sequences that decode.
    pub(crate) decodes: u32,
    /// Tokens that the decodes attend to.
    pub(crate) context: u64,
    /// Prompt tokens.
    pub(crate) prompt: u32,
    /// Pairs of a prompt token and a token that it attends to.
    pub(crate) pairs: u64,
}

/// Features are scaled to the order of one: microseconds per thousand tokens, for example.
const TOKENS: f64 = 1e-3;
const CONTEXT: f64 = 1e-5;
const PAIRS: f64 = 1e-7;
/// Small, so that the cost of chunks of one length is attributed to their tokens.
const CONSTANT: f64 = 0.1;
/// A step that takes longer than this many times the expected time was disturbed, for example by a
/// compilation. It is ignored; if the step of its kind before was disturbed too, it counts as this
/// many times the expected time. If a step is faster by this factor, the expectation came from
/// disturbed steps.
const DISTURBED: f64 = 2.0;
/// A fit that is wrong by more than this factor for this many consecutive steps was fitted to a
/// disturbed one.
const DRIFT_RATIO: f64 = 1.5;
const DRIFT_STEPS: u32 = 16;

/// Features of decodes to leave out where a slope would be negative, tried in turn. The constant
/// stays: a step of decodes reads the weights however few decodes there are. Contexts go first:
/// they grow with the number of decodes, so one feature can explain the cost of both, but contexts
/// alone would be wrong for steps with longer contexts.
const DECODE_FALLBACKS: &[&[usize]] = &[&[], &[2], &[1], &[1, 2]];
/// The prior of contexts keeps the cost of decodes off them, so decodes go first here.
const DECODE_FALLBACKS_WITH_PRIOR: &[&[usize]] = &[&[], &[1], &[2], &[1, 2]];
/// The token slope of prompts always stays, as tokens certainly cost time.
const PREFILL_PRIOR: Prior = Prior {
    last_slope: 0.0,
    fallbacks: &[&[], &[2], &[0], &[0, 2]],
};

/// The fitted cost model.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCost {
    /// Microseconds: constant, per decode, per token attended to.
    decode: Fit,
    /// Microseconds: constant, per prompt token, per pair.
    prefill: Fit,
    /// Steps with prompts, without attention.
    sizes: SizeCosts,
    /// The prior of the context slope, in units of the constant; 0 = unknown.
    context_slope: f64,
}

impl StepCost {
    /// Creates a model without observations. `sizes`: step sizes with prompts that suit the
    /// workers, ascending.
    pub(crate) fn new(sizes: &[u32], decode_reads: DecodeReads) -> Self {
        Self {
            sizes: SizeCosts::new(sizes),
            context_slope: match decode_reads.weights {
                0 => 0.0,
                weights => decode_reads.token as f64 / weights as f64 / CONTEXT,
            },
            ..Self::default()
        }
    }

    /// Learns from a step that took `duration` microseconds; 0 = unknown.
    pub(crate) fn observe(&mut self, load: StepLoad, duration: u64, now: Micros) {
        self.sizes.tick(now);
        if duration == 0 {
            return;
        }
        let mut took = duration as f64;
        if let Some(expected) = self.predict(load) {
            let disturbed = expected > 0.0 && took > expected * DISTURBED;
            let again = std::mem::replace(self.disturbed(load), disturbed);
            if expected > took * DISTURBED {
                self.forget(load);
            } else if disturbed {
                if !again {
                    return;
                }
                took = expected * DISTURBED;
            }
        }
        if load.prompt > 0 {
            self.check_drift(load, took);
            let alone = self.decode.at(load.decode_features()).max(0.0);
            self.prefill
                .observe(load.prefill_features(), took - alone, &PREFILL_PRIOR);
            if self.is_known() {
                self.sizes
                    .observe(load.tokens(), took - self.attention(load));
            }
            return;
        }
        self.decode
            .observe(load.decode_features(), took, &self.prior());
        if self.decode.observed == LEARNING {
            // The prefill fit so far contains the constant cost of all steps.
            self.prefill = Fit::default();
        }
    }

    /// Returns what is known of decodes without observations.
    fn prior(&self) -> Prior {
        let known = self.context_slope > 0.0;
        Prior {
            last_slope: self.context_slope,
            fallbacks: if known {
                DECODE_FALLBACKS_WITH_PRIOR
            } else {
                DECODE_FALLBACKS
            },
        }
    }

    /// Returns the flag that the last step of this kind was disturbed: of decodes, or of this size
    /// with prompts. (One flag for all sizes would hide a size that is slow again and again.)
    fn disturbed(&mut self, load: StepLoad) -> &mut bool {
        match (load.prompt, self.sizes.disturbed(load.tokens())) {
            (0, _) => &mut self.decode.disturbed,
            (_, Some(disturbed)) => disturbed,
            (_, None) => &mut self.prefill.disturbed,
        }
    }

    /// Starts again, because the model was learnt from disturbed steps (the first ones may
    /// compile).
    fn forget(&mut self, load: StepLoad) {
        match load.prompt {
            0 => {
                // The weights stay until the next step of decodes: without them nothing would pace
                // prompts.
                self.decode.forget_observations();
                self.prefill = Fit::default();
            }
            // The cost of its size goes too: it alone would make the next step a surprise again.
            _ => {
                self.prefill = Fit::default();
                self.sizes.forget(load.tokens());
            }
        }
    }

    /// Discards the prefill fit if it is wrong again and again, whatever the known costs of sizes.
    fn check_drift(&mut self, load: StepLoad, took: f64) {
        let Some(line) = self.predicted_by_fit(load) else {
            return;
        };
        if line > took * DRIFT_RATIO || line * DRIFT_RATIO < took {
            self.prefill.drift_steps += 1;
        } else {
            self.prefill.drift_steps = 0;
        }
        if self.prefill.drift_steps == DRIFT_STEPS {
            self.prefill.forget_observations();
        }
    }

    /// Returns the microseconds that a step takes; None until enough steps of its kind were
    /// observed.
    pub(crate) fn predict(&self, load: StepLoad) -> Option<f64> {
        match self.predicted_by_size(load) {
            Some(seen) if self.sizes.is_recent(load.tokens()) => Some(seen),
            // The old cost may be of a disturbed step, and would keep the size from being tried
            // again.
            Some(seen) => Some(
                self.predicted_by_fit(load)
                    .map_or(seen, |line| line.min(seen)),
            ),
            None => self.predicted_by_fit(load),
        }
    }

    /// Predicts by the last known cost of the step's size; None for decodes alone.
    fn predicted_by_size(&self, load: StepLoad) -> Option<f64> {
        let known = self.sizes.known(load.tokens()).filter(|_| load.prompt > 0);
        known.map(|micros| micros + self.attention(load))
    }

    /// Predicts by the fits alone.
    fn predicted_by_fit(&self, load: StepLoad) -> Option<f64> {
        let decode = self.decode.at(load.decode_features()).max(0.0);
        if load.prompt == 0 {
            return self.decode.is_known().then_some(decode);
        }
        let prefill = self.prefill.at(load.prefill_features()).max(0.0);
        self.prefill.is_known().then_some(decode + prefill)
    }

    /// Predicts a step with a prompt, optimistically if its size was not seen recently: bound only
    /// by the rate of products or the read of the weights (the roofline model; Williams, Waterman
    /// and Patterson, 2009), if that is less than `predict`. So good sizes are tried.
    pub(crate) fn predict_optimistic(&self, load: StepLoad) -> Option<f64> {
        let predicted = self.predict(load)?;
        if self.sizes.is_recent(load.tokens()) {
            return Some(predicted);
        }
        let bound = |products: f64| products.max(self.weights()) + self.attention(load);
        let hoped = self.sizes.best_case(load.tokens()).map(bound);
        Some(hoped.unwrap_or(predicted).min(predicted))
    }

    /// Returns the microseconds that `load`'s decodes take alone: as predicted, but at most
    /// `least_seen`. While prompts keep coming, no step of decodes corrects a fit that a disturbed
    /// one spoilt, and short chunks would seem free.
    pub(crate) fn alone(&self, load: StepLoad) -> Option<f64> {
        let predicted = self.predicted_by_fit(load.without_prompt())?;
        let seen = self.least_seen(load);
        Some(seen.map_or(predicted, |seen| predicted.min(seen)))
    }

    /// Returns the microseconds of reading the weights; 0 while unknown.
    pub(crate) fn weights(&self) -> f64 {
        self.decode.at([1.0, 0.0, 0.0])
    }

    /// Returns the least recent time of steps with prompts, with at least as many tokens as `load`
    /// has decodes, plus the attention of those decodes.
    fn least_seen(&self, load: StepLoad) -> Option<f64> {
        let size = self.sizes.least(load.decodes)?;
        Some(size + self.attention(load.without_prompt()))
    }

    fn is_known(&self) -> bool {
        self.decode.is_known() && self.prefill.is_known()
    }

    /// Returns the microseconds that attention adds to a step.
    fn attention(&self, load: StepLoad) -> f64 {
        let [.., context] = self.decode.weights;
        let [.., pair] = self.prefill.weights;
        let (contexts, pairs) = (load.context as f64 * CONTEXT, load.pairs as f64 * PAIRS);
        context * contexts + pair * pairs
    }

    /// Returns the microseconds of a step that its decodes spend on attention; None where step
    /// times alone would have to identify them.
    pub(crate) fn decode_attention(&self, load: StepLoad) -> Option<f64> {
        let micros = self.attention(StepLoad { pairs: 0, ..load });
        (self.context_slope > 0.0 && micros > 0.0).then_some(micros)
    }

    /// Returns the microseconds of a step with a prompt beside `load`'s decodes, before the
    /// prompt's first token.
    pub(crate) fn least(&self, load: StepLoad) -> Option<f64> {
        let [constant, ..] = self.prefill.weights;
        let line = self.alone(load)? + (constant * CONSTANT).max(0.0);
        let least = self.least_seen(load).map_or(line, |seen| line.min(seen));
        self.prefill.is_known().then_some(least)
    }

    /// Returns the prompt tokens from `position` that fit a step of `target` microseconds beside
    /// `load`'s decodes; None until enough steps were observed.
    pub(crate) fn prompt_tokens(&self, load: StepLoad, position: u32, target: f64) -> Option<u32> {
        let decode = self.predict(StepLoad { prompt: 0, ..load })?;
        if !self.prefill.is_known() {
            return None;
        }
        let [constant, token, _] = self.prefill.weights;
        let left = target - decode - constant * CONSTANT;
        Some(self.tokens_within(left, token * TOKENS, position))
    }

    /// Returns how many of a prompt's `most` next tokens, from `position`, fit a step of `target`
    /// microseconds beside `load`'s decodes, in a step padded for all of them.
    pub(crate) fn tokens_that_fit(
        &self,
        load: StepLoad,
        position: u32,
        most: u32,
        target: f64,
    ) -> Option<u32> {
        let mut all = load;
        all.add_prompt(position, most);
        let without = StepLoad { pairs: 0, ..all };
        let left = target - (self.predict(all)? - self.attention(all) + self.attention(without));
        Some(self.tokens_within(left, 0.0, position).min(most))
    }

    /// Returns the prompt tokens from `position` that take `left` microseconds, at `token` each
    /// plus their attention.
    fn tokens_within(&self, left: f64, token: f64, position: u32) -> u32 {
        let [.., pair] = self.prefill.weights;
        // n tokens attend to n * position + n^2 / 2 tokens; this is the positive root.
        let left = left.max(0.0);
        let curve = pair * PAIRS;
        let slope = (token + curve * f64::from(position)).max(1e-3);
        let tokens = 2.0 * left / (slope + (slope * slope + 2.0 * curve * left).sqrt());
        tokens.min(f64::from(u32::MAX)) as u32
    }
}

impl StepLoad {
    /// Adds `tokens` of a prompt from `position`.
    pub(crate) fn add_prompt(&mut self, position: u32, tokens: u32) {
        let (position, tokens) = (u64::from(position), u64::from(tokens));
        self.prompt += tokens as u32;
        self.pairs += tokens * position + tokens * tokens / 2;
    }

    /// Returns its decodes alone.
    fn without_prompt(self) -> Self {
        Self {
            prompt: 0,
            pairs: 0,
            ..self
        }
    }

    fn tokens(&self) -> u32 {
        self.decodes + self.prompt
    }

    fn decode_features(&self) -> [f64; 3] {
        let (decodes, context) = (f64::from(self.decodes), self.context as f64);
        [1.0, decodes * TOKENS, context * CONTEXT]
    }

    fn prefill_features(&self) -> [f64; 3] {
        let (prompt, pairs) = (f64::from(self.prompt), self.pairs as f64);
        [CONSTANT, prompt * TOKENS, pairs * PAIRS]
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
