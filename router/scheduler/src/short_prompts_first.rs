//! Much shorter prompts go before a long one.
//!
//! A prompt that a step cannot end would take all of the step, and those behind it would wait until
//! all of it is read, be they of a few tokens. So much shorter ones may take a share of each step
//! first, whether they run already or wait for a slot. What they leave is the long one's: it loses no
//! more than that share, and nothing where nobody overtakes.

use crate::plan_builder::{DeferredPrompt, PlanBuilder};
use crate::scheduler::Scheduler;
use crate::sequence::SequenceKey;

/// Those who overtake may take one in so many tokens of a step.
const SHORT_PROMPT_SHARE: u32 = 4;
/// So many times shorter than what is left of the long prompt they must be.
const LENGTH_RATIO: u32 = 8;

impl Scheduler {
    /// Whether a reader leaves its turn to others until `prefill_deferred`. Where blocks are scarce it
    /// does not: it takes them from its juniors, which those who have their runs must not lose.
    pub(crate) fn yields_to_shorter(&self, key: SequenceKey, builder: &mut PlanBuilder) -> bool {
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

    /// The turn of the one that was overtaken, after all others.
    pub(crate) fn prefill_deferred(&mut self, builder: &mut PlanBuilder) {
        if let Some(deferred) = builder.deferred.take() {
            builder.budget += deferred.reserved;
            let nobody_after = self.running.len();
            self.prefill(deferred.key, nobody_after, builder);
        }
    }
}
