//! Who goes first, and who yields when memory runs out.

use crate::ids::{Micros, SequenceId};
use crate::request::SchedulingClass;

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct SequenceFacts<'a> {
    /// Whose facts they are.
    pub sequence: SequenceId,
    /// As the request came with it.
    pub class: &'a SchedulingClass,
    /// Tokens known when asked: prompt and generated.
    pub tokens: u32,
    /// Tokens that the sequence may have in all.
    pub max_tokens: u32,
    /// When the sequence entered the queue.
    pub since: Micros,
}

/// Decides the order of admission and the victims of preemption. Must be deterministic.
///
/// A rank is given once, when a request is added (its forks inherit it): static ranks are enough
/// for priorities, for deadlines (earliest first) and for fairness between tenants (start-time fair
/// queueing numbers requests on arrival), and keep the queue a sorted map.
pub trait Policy: Send {
    /// Smaller ranks run earlier; equal ranks run in order of arrival.
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64;

    /// Picks who is preempted among running sequences that rank after the one that needs memory,
    /// in order of rank; the answer is an index into `juniors`, which is never empty. Only juniors
    /// are offered, so that the first in rank always proceeds and no two preempt each other.
    fn victim(&self, juniors: &[SequenceFacts<'_>]) -> usize {
        juniors.len() - 1
    }
}

/// Order of arrival; the youngest yields.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstComeFirstServed;

impl Policy for FirstComeFirstServed {
    fn rank(&mut self, _: &SequenceFacts<'_>) -> u64 {
        0
    }
}
