//! The order of admission, and the choice of preemption victims.

use crate::ids::{Micros, SequenceId};
use crate::request::SchedulingClass;

/// The facts that a policy may use.
#[derive(Clone, Copy, Debug)]
pub struct SequenceFacts<'a> {
    /// The sequence that they describe.
    pub sequence: SequenceId,
    /// The class that came with the request.
    pub class: &'a SchedulingClass,
    /// Known tokens: prompt and generated.
    pub tokens: u32,
    /// Tokens that the sequence may have in all.
    pub max_tokens: u32,
    /// When the sequence entered the queue.
    pub since: Micros,
}

/// Decides the order of admission and the victims of preemption. Must be deterministic.
///
/// A rank is assigned once, when a request is added, and its forks inherit it. Static ranks are
/// enough for priorities, for deadlines (earliest first) and for fairness between tenants
/// (start-time fair queueing numbers requests on arrival), and they keep the queue a sorted map.
pub trait Policy: Send {
    /// Smaller ranks run earlier; equal ranks run in order of arrival.
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64;

    /// Picks the victim among running sequences that rank after the one that needs memory, in order
    /// of rank. Returns an index into `juniors`, which is never empty. Only juniors are offered, so
    /// the first in rank always proceeds and no two sequences preempt each other.
    fn victim(&self, juniors: &[SequenceFacts<'_>]) -> usize {
        juniors.len() - 1
    }
}

/// Order of arrival; the youngest is preempted first.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstComeFirstServed;

impl Policy for FirstComeFirstServed {
    fn rank(&mut self, _: &SequenceFacts<'_>) -> u64 {
        0
    }
}
