//! The policies of the episodes.

use crate::random::hash;
use penstock_scheduler::{FairShare, FirstComeFirstServed, Policy, SequenceFacts};

/// Ranks by priority and preempts at random, deterministically.
struct Erratic;

impl Policy for Erratic {
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64 {
        (i64::from(facts.class.priority) + 1000) as u64
    }

    fn victim(&self, juniors: &[SequenceFacts<'_>]) -> usize {
        let words: Vec<_> = juniors
            .iter()
            .map(|facts| u64::from(facts.tokens))
            .collect();
        hash(&words) as usize % juniors.len()
    }
}

/// Returns the policy of a number below ten; tenants share the workers below four.
pub(crate) fn policy(number: u32) -> Box<dyn Policy> {
    match number {
        0..4 => Box::new(FairShare),
        4..8 => Box::new(FirstComeFirstServed),
        _ => Box::new(Erratic),
    }
}
