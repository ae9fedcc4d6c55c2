//! Requests as the scheduler sees them, and the policy that orders them.

use crate::ids::{Micros, RequestId, SequenceId, TokenId};

/// A request as `Scheduler::add` takes it. Sampling parameters stay with the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the engine; unique among live requests.
    pub id: RequestId,
    /// The prompt, followed by `generated` tokens of an earlier run of the request.
    pub token_ids: Vec<TokenId>,
    /// How many of `token_ids`, at their end, were generated.
    pub generated: u32,
    /// Tokens to generate in all, `generated` included; at least `generated + 1`.
    pub max_new_tokens: u32,
    /// Stop tokens do not end the sequence before it has generated this many.
    pub min_new_tokens: u32,
    /// Tokens that end the sequence; sorted. Empty with `ignore_eos`.
    pub stop_token_ids: Vec<TokenId>,
    /// Requests of different salts never share blocks (adapter, tenant isolation, image hashes, ...).
    pub cache_salt: Vec<u64>,
    /// Leading tokens whose KV may come from the prefix cache; `u32::MAX` = no limit. Lower where
    /// the logits after a prompt token are needed, which a hit would skip.
    pub max_cached_tokens: u32,
    /// Whether the request must wait for `Scheduler::prepared` before it may run.
    pub preparing: bool,
    /// How far plans may run ahead of outcomes.
    pub pipelining: Pipelining,
    /// Sequences that continue the known tokens, at least 1: indices 0 to this, exclusive. The
    /// first computes all known tokens but the last. Then the others fork from it, and each runs
    /// the last one itself. Until then they have no emissions and end with sequence 0.
    pub sequences: u32,
    /// Read by the policy.
    pub class: SchedulingClass,
}

/// A sequence of a request that another scheduler has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunSequence {
    /// Its index among the request's sequences.
    pub index: u32,
    /// The tokens that it has generated so far.
    pub generated: Vec<TokenId>,
}

/// How far plans may run ahead of outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipelining {
    /// The next plan may include the sequence while its last step is in flight.
    #[default]
    Ahead,
    /// The next plan needs the last outcome: depth 1 for this request alone.
    Waits,
    /// As `Waits`; after each outcome, `Scheduler::steer` chooses the token that it continues with,
    /// and in how many sequences (beam search).
    Steered,
}

/// Facts for the policy; `FirstComeFirstServed` reads none of them, `FairShare` all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulingClass {
    /// Smaller runs earlier.
    pub priority: i32,
    /// The tenant that pays: an opaque number made by the engine.
    pub tenant: u64,
    /// The tenant's share relative to others; 0 counts as 1.
    pub weight: u32,
    /// When the first token is wanted, in microseconds on the caller's clock.
    pub deadline: Option<u64>,
}

/// Why `add` refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The queue holds `SchedulerConfig::max_waiting` requests.
    QueueFull,
    /// The queue holds `SchedulerConfig::max_waiting_tokens` tokens.
    TokensFull,
    /// Prompt plus `max_new_tokens` exceed `max_sequence_tokens` or the whole KV pool.
    TooLong {
        /// Tokens that the request could need.
        tokens: u64,
        /// Tokens that a sequence may have.
        limit: u64,
    },
    /// No token, no sequence, or nothing left to generate.
    Empty,
    /// The id belongs to a live request.
    Duplicate,
}

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
    /// Service that the sequence's tenant received, divided by its weight.
    pub served: u64,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Requests of different tenants take turns, the one that received the least service first.
    pub tenant: u64,
    /// Order among the requests of a tenant, smaller first.
    pub priority: i32,
    /// Order among those of the same priority, earlier first, on the caller's clock.
    pub deadline: u64,
}

/// Decides the order of admission and the victims of preemption. Must be deterministic.
///
/// A rank is assigned once, when a request is added, and its forks inherit it. Static ranks are
/// enough for priorities and for deadlines (earliest first), and they keep the queue a sorted map.
/// Fairness between tenants is not static: `place` says who the tenant is, and the scheduler counts
/// what it received.
pub trait Policy: Send {
    /// Smaller ranks run earlier; equal ranks run in order of arrival.
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64;

    /// Returns where a request waits. By default all requests wait in one line.
    fn place(&self, _class: &SchedulingClass) -> Place {
        Place::default()
    }

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

/// Tenants share the workers in proportion to their weights; a tenant's requests run in order of
/// priority, then of deadline, then of arrival. The tenant that received the most is preempted first.
#[derive(Clone, Copy, Debug, Default)]
pub struct FairShare;

impl std::fmt::Display for AddError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::QueueFull => write!(f, "too many requests are waiting; try again later"),
            Self::TokensFull => write!(f, "too many prompt tokens are waiting; try again later"),
            Self::TooLong { tokens, limit } => write!(
                f,
                "prompt and max_new_tokens are {tokens} tokens together, the limit is {limit}; \
                 shorten the prompt or lower max_new_tokens"
            ),
            Self::Empty => {
                write!(
                    f,
                    "the prompt must have a token and max_new_tokens must leave at least one to generate"
                )
            }
            Self::Duplicate => write!(f, "a live request has the same id"),
        }
    }
}

impl std::error::Error for AddError {}

impl Policy for FirstComeFirstServed {
    fn rank(&mut self, _: &SequenceFacts<'_>) -> u64 {
        0
    }
}

impl Policy for FairShare {
    fn rank(&mut self, _: &SequenceFacts<'_>) -> u64 {
        0
    }

    fn place(&self, class: &SchedulingClass) -> Place {
        Place {
            tenant: class.tenant,
            priority: class.priority,
            deadline: class.deadline.unwrap_or(u64::MAX),
        }
    }

    fn victim(&self, juniors: &[SequenceFacts<'_>]) -> usize {
        // Of equals the last one, which is the youngest.
        let served = |at: &usize| juniors[*at].served;
        (0..juniors.len()).max_by_key(served).unwrap_or_default()
    }
}
