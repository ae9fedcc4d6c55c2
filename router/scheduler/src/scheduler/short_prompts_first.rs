//! Much shorter prompts go before a long one.
//!
//! A prompt longer than a step would take all of the step, and short prompts behind it would wait
//! until all of it is computed. So much shorter ones, running or queued, may first take a share of
//! each step. The long prompt takes what they leave: it loses at most that share, and nothing if no
//! shorter prompt comes.

use super::Scheduler;
use crate::ids::SequenceKey;
use crate::plan_builder::{DeferredPrompt, PlanBuilder};

/// Shorter prompts may take one in this many tokens of a step.
const SHORT_PROMPT_SHARE: u32 = 4;
/// A shorter prompt has at most one in this many of the long prompt's remaining tokens.
const LENGTH_RATIO: u32 = 8;

impl Scheduler {
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
