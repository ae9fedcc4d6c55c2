//! Errors between the router and its workers. The messages are for people.

use std::time::Duration;

use super::Endpoint;

/// The group of workers is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// No worker is reachable at the endpoint.
    #[error("cannot connect to the worker at {endpoint}: {message}")]
    Connect {
        /// The endpoint of the worker.
        endpoint: Endpoint,
        /// The operating system's message.
        message: String,
    },
    /// The worker refused to load; the message is the worker's.
    #[error("{message}")]
    Load {
        /// Its rank.
        rank: u32,
        /// The worker's message.
        message: String,
    },
    /// A worker exited or ended the connection.
    #[error("worker {rank} was lost: {message}")]
    Lost {
        /// Its rank.
        rank: u32,
        /// The cause, as far as known.
        message: String,
    },
    /// The worker of a group of one failed in a step. It can begin another epoch.
    #[error("worker 0 failed in a step: {message}")]
    Step {
        /// The worker's message.
        message: String,
    },
    /// A worker did not answer a step in time.
    #[error("worker {rank} did not answer step {step} within {limit:?}")]
    Deadline {
        /// The first rank that has not answered.
        rank: u32,
        /// The oldest unanswered step.
        step: u64,
        /// The deadline.
        limit: Duration,
    },
    /// The ranks of a group differ where they must agree, or a message breaks the protocol.
    #[error("worker {rank} broke the protocol: {message}")]
    Protocol {
        /// Its rank.
        rank: u32,
        /// The rule and the value.
        message: String,
    },
}

/// Why a worker did not prepare a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The worker failed to prepare it.
    #[error("{0}")]
    Internal(String),
    /// The worker was lost meanwhile.
    #[error("a worker was lost: {0}")]
    Lost(String),
}
