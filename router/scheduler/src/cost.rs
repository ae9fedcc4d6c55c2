//! How long a step takes, fitted from outcomes (`fit`): what its decodes would take alone, and what its
//! prompts add to that, if steps of its size are not known from experience (`sizes`).
//!
//! Each part is linear in three features, a constant among them. The parts are fitted apart, because
//! nothing else tells a step's constant costs from those of reading a prompt, and because decodes and
//! a short chunk share the reading of the weights: what a chunk adds may be less than what it costs
//! alone (its constant may be negative).
//!
//! Of streams that go on together, contexts grow evenly while the device warms: what attention takes is
//! told badly by them. So it is pulled to what it should take if keys and values were read as fast as
//! weights are, which is right within a tenth for large models on GPUs; where contexts differ, what is
//! seen outweighs that.

use crate::config::DecodeReads;
use crate::fit::{Fit, LEARNING, Prior};
use crate::ids::Micros;
use crate::sizes::SizeCosts;

/// What a step was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepLoad {
    /// Runs of sequences that decode.
    pub(crate) decodes: u32,
    /// Tokens that they attend to.
    pub(crate) context: u64,
    /// Prompt tokens.
    pub(crate) prompt: u32,
    /// Pairs of a prompt token and a token that it attends to.
    pub(crate) pairs: u64,
}

/// Features are scaled to the order of one: microseconds per so many of them, not per one.
const TOKENS: f64 = 1e-3;
const CONTEXT: f64 = 1e-5;
const PAIRS: f64 = 1e-7;
/// Small, so that chunks of one length are taken to cost by the token.
const CONSTANT: f64 = 0.1;
/// A step that takes longer than this many times what was expected was disturbed, by a compilation,
/// say: it counts for nothing, and for this many times if the step of its kind before was disturbed
/// too. Of one that takes less by this factor, what was expected had been learnt from disturbed ones.
const DISTURBED: f64 = 2.0;
/// A fit that is wrong by more than this factor, so many times in a row, was learnt from such a step.
const DRIFT_RATIO: f64 = 1.5;
const DRIFT_STEPS: u32 = 16;

/// Features of decodes to leave out where a slope would be negative, tried in turn. The constant
/// stays: a step of decodes reads the weights, however few they are. Contexts go first: they grow
/// with the number of decodes, so that either can stand for both, but all of the other's cost laid
/// upon contexts would be wrong wherever these are longer.
const DECODE_FALLBACKS: &[&[usize]] = &[&[], &[2], &[1], &[1, 2]];
/// Where it is known what contexts should cost, that keeps the others' cost off them.
const DECODE_FALLBACKS_WITH_PRIOR: &[&[usize]] = &[&[], &[1], &[2], &[1, 2]];
/// Of prompts the tokens stay, as they are certain to cost.
const PREFILL_PRIOR: Prior = Prior {
    last_slope: 0.0,
    fallbacks: &[&[], &[2], &[0], &[0, 2]],
};

/// The fitted model.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCost {
    /// Microseconds: constant, per decode, per token that they attend to.
    decode: Fit,
    /// Microseconds: constant, per prompt token, per pair.
    prefill: Fit,
    /// Of steps with prompts, without attention.
    sizes: SizeCosts,
    /// The slope of contexts, in constants, as it should be; 0 = unknown.
    context_slope: f64,
}

impl StepCost {
    /// Knows nothing yet. `sizes`: tokens of a step with prompts that suit the workers, rising.
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
            // What was learnt of prompts before contains the constant costs of all steps.
            self.prefill = Fit::default();
        }
    }

    /// What is known of decodes without having seen any.
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

    /// Whether the last step of this kind was disturbed: of decodes, or of this size with prompts. (Of
    /// all with prompts, others would hide that one size takes as long again and again.)
    fn disturbed(&mut self, load: StepLoad) -> &mut bool {
        match (load.prompt, self.sizes.disturbed(load.tokens())) {
            (0, _) => &mut self.decode.disturbed,
            (_, Some(disturbed)) => disturbed,
            (_, None) => &mut self.prefill.disturbed,
        }
    }

    /// Begins again: what was learnt came from disturbed steps (the first ones may compile).
    fn forget(&mut self, load: StepLoad) {
        match load.prompt {
            0 => {
                // What they seemed to take stands until the next one: without, nothing paced prompts.
                self.decode.forget_observations();
                self.prefill = Fit::default();
            }
            // What its size is known to cost too: that alone would make the next step a surprise again.
            _ => {
                self.prefill = Fit::default();
                self.sizes.forget(load.tokens());
            }
        }
    }

    /// What reading costs is learnt anew if it is wrong again and again, whatever sizes are known to
    /// cost.
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

    /// Microseconds that a step takes; None until enough steps of its kind were seen.
    pub(crate) fn predict(&self, load: StepLoad) -> Option<f64> {
        match self.predicted_by_size(load) {
            Some(seen) if self.sizes.is_recent(load.tokens()) => Some(seen),
            // It may have been disturbed then, and would keep its size from being tried again.
            Some(seen) => Some(
                self.predicted_by_fit(load)
                    .map_or(seen, |line| line.min(seen)),
            ),
            None => self.predicted_by_fit(load),
        }
    }

    /// The same, by what its size was last seen to cost; None of decodes alone.
    fn predicted_by_size(&self, load: StepLoad) -> Option<f64> {
        let known = self.sizes.known(load.tokens()).filter(|_| load.prompt > 0);
        known.map(|micros| micros + self.attention(load))
    }

    /// The same, by the fits alone.
    fn predicted_by_fit(&self, load: StepLoad) -> Option<f64> {
        let decode = self.decode.at(load.decode_features()).max(0.0);
        if load.prompt == 0 {
            return self.decode.is_known().then_some(decode);
        }
        let prefill = self.prefill.at(load.prefill_features()).max(0.0);
        self.prefill.is_known().then_some(decode + prefill)
    }

    /// Microseconds of a step with a prompt. A size that nobody has tried of late is hoped to be bound by
    /// nothing but the products' rate or the reading of the weights (the roofline model; Williams,
    /// Waterman and Patterson, 2009), if that is less than `predict` says, so that good ones are tried.
    pub(crate) fn predict_optimistic(&self, load: StepLoad) -> Option<f64> {
        let predicted = self.predict(load)?;
        if self.sizes.is_recent(load.tokens()) {
            return Some(predicted);
        }
        let weights = self.decode.at([1.0, 0.0, 0.0]);
        let bound = |products: f64| products.max(weights) + self.attention(load);
        let hoped = self.sizes.best_case(load.tokens()).map(bound);
        Some(hoped.unwrap_or(predicted).min(predicted))
    }

    /// Microseconds that `load`'s decodes take alone: as predicted, but no more than `least_seen`. Where
    /// prompts keep coming, no step of decodes tells what a disturbed one did to the fit, and short
    /// chunks would seem free.
    pub(crate) fn alone(&self, load: StepLoad) -> Option<f64> {
        let predicted = self.predicted_by_fit(load.without_prompt())?;
        let seen = self.least_seen(load);
        Some(seen.map_or(predicted, |seen| predicted.min(seen)))
    }

    /// Microseconds that any step with prompts took of late, of as many tokens as `load` has decodes or
    /// more, if it attended to what they do.
    fn least_seen(&self, load: StepLoad) -> Option<f64> {
        let size = self.sizes.least(load.decodes)?;
        Some(size + self.attention(load.without_prompt()))
    }

    fn is_known(&self) -> bool {
        self.decode.is_known() && self.prefill.is_known()
    }

    /// Microseconds that what a step attends to adds.
    fn attention(&self, load: StepLoad) -> f64 {
        let [.., context] = self.decode.weights;
        let [.., pair] = self.prefill.weights;
        let (contexts, pairs) = (load.context as f64 * CONTEXT, load.pairs as f64 * PAIRS);
        context * contexts + pair * pairs
    }

    /// Microseconds of a step that are for what its decodes attend to; None where steps alone tell that,
    /// badly, or do not.
    pub(crate) fn decode_attention(&self, load: StepLoad) -> Option<f64> {
        let micros = self.attention(StepLoad { pairs: 0, ..load });
        (self.context_slope > 0.0 && micros > 0.0).then_some(micros)
    }

    /// Microseconds of a step with a prompt, beside `load`'s decodes, before the first of its tokens.
    pub(crate) fn least(&self, load: StepLoad) -> Option<f64> {
        let [constant, ..] = self.prefill.weights;
        let line = self.alone(load)? + (constant * CONSTANT).max(0.0);
        let least = self.least_seen(load).map_or(line, |seen| line.min(seen));
        self.prefill.is_known().then_some(least)
    }

    /// Tokens of a prompt from `position` on that fit a step of `target` microseconds beside
    /// `load`'s decodes; None until enough steps were seen.
    pub(crate) fn prompt_tokens(&self, load: StepLoad, position: u32, target: f64) -> Option<u32> {
        let decode = self.predict(StepLoad { prompt: 0, ..load })?;
        if !self.prefill.is_known() {
            return None;
        }
        let [constant, token, _] = self.prefill.weights;
        let left = target - decode - constant * CONSTANT;
        Some(self.tokens_within(left, token * TOKENS, position))
    }

    /// How many of a prompt's `most` next tokens, from `position` on, fit a step of `target`
    /// microseconds beside `load`'s decodes, if it is as large as all of them make it.
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

    /// Tokens of a prompt from `position` on that take `left` microseconds, at `token` each and what
    /// they attend to.
    fn tokens_within(&self, left: f64, token: f64, position: u32) -> u32 {
        let [.., pair] = self.prefill.weights;
        // n tokens attend to n * position + n^2 / 2 others: the positive root of that equation.
        let left = left.max(0.0);
        let curve = pair * PAIRS;
        let slope = (token + curve * f64::from(position)).max(1e-3);
        let tokens = 2.0 * left / (slope + (slope * slope + 2.0 * curve * left).sqrt());
        tokens.min(f64::from(u32::MAX)) as u32
    }
}

impl StepLoad {
    /// Adds `tokens` of a prompt from `position` on.
    pub(crate) fn add_prompt(&mut self, position: u32, tokens: u32) {
        let (position, tokens) = (u64::from(position), u64::from(tokens));
        self.prompt += tokens as u32;
        self.pairs += tokens * position + tokens * tokens / 2;
    }

    /// Its decodes.
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
