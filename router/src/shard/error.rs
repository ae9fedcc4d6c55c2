//! What can go wrong between the router and its workers, in words for people.

use std::time::Duration;

use super::Endpoint;

/// The group of workers cannot be used, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// Nothing answers at the endpoint.
    #[error("cannot connect to the worker at {endpoint}: {message}")]
    Connect {
        /// Where it was expected.
        endpoint: Endpoint,
        /// What the operating system said.
        message: String,
    },
    /// The worker refused to load; the message is the worker's.
    #[error("{message}")]
    Load {
        /// Its rank.
        rank: u32,
        /// The worker's own words.
        message: String,
    },
    /// A worker died or ended the conversation.
    #[error("worker {rank} was lost: {message}")]
    Lost {
        /// Its rank.
        rank: u32,
        /// What is known of the cause.
        message: String,
    },
    /// A worker did not answer a step in time.
    #[error("worker {rank} did not answer step {step} within {limit:?}")]
    Deadline {
        /// The first rank that owes the answer.
        rank: u32,
        /// The oldest step that it owes.
        step: u64,
        /// The time that it had.
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

/// Why a worker cannot prepare one request. Nobody else is concerned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The request asks for something impossible.
    #[error("{0}")]
    Invalid(String),
    /// The worker failed at it.
    #[error("{0}")]
    Internal(String),
}
