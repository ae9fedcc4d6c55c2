//! Decides which tokens run in the next step: pure, std only. No I/O, no clock, no randomness: the
//! same calls give the same plans, so a day of traffic replays in a test.
//!
//! One owner drives a [`Scheduler`]: [`Scheduler::add`] queues a request, [`Scheduler::plan`] gives
//! the next [`plan::StepPlan`] for the workers, [`Scheduler::complete`] takes what a step brought.
//! Every accepted request ends exactly once: by an emission with `finish`, or by the owner's
//! `finish`, `abort` or `drain`, or by `replace` when it no longer fits.
//!
//! How it decides:
//! - **No phases.** A sequence has tokens that are known and tokens that are computed; a plan gives
//!   each sequence some tokens under the step's budget, seniors first. A sequence at its last known
//!   token decodes; decodes are in every plan and come first, prompts share what is left, cut to a
//!   chunk that keeps the pace of running streams and costs them and whoever waits least (`pace`, by the
//!   step times that `cost` and `sizes` learn).
//! - **Memory on demand.** Blocks are taken as sequences grow. When none is left, a junior loses
//!   its slot and goes back to the queue's head as its token ids (module `planner`). The most senior
//!   sequence never yields, so there is always progress. Nobody is admitted unless there is room
//!   for all known tokens and the next block of everyone (or for all that they may generate:
//!   `config::Reserve`), nor in a plan in which memory ran out; a resumed sequence also needs room
//!   for as many new tokens as it recomputes (`admission`).
//! - **Order** is a [`Policy`]'s. Who does not fit is passed by later ones until it has waited for
//!   `aging`; then nobody passes it.
//! - **Prefix cache** (`prefix`, `memory`): full blocks are findable as soon as an *outcome* has
//!   confirmed them, prompts chunk by chunk and generated tokens too. Steps run in order, so the step
//!   after a block's could read it without waiting for the outcome; but a run can fail, and then its
//!   readers would be wrong. The price is one step of waiting for a request that arrives together
//!   with an equal one: it waits while a running sequence is about to compute its next block,
//!   unless it has aged, and computes nothing twice.
//! - **Pipelining.** Plans are made up to `depth` ahead of outcomes; token ids that are not known
//!   yet live on the workers. Outcomes of sequences that are over are dropped.
//!
//! Of a KV group with a sliding window, a sequence holds what its window still reaches (`memory`).

pub mod config;
pub mod ids;
pub mod plan;
pub mod request;

mod admission;
mod blocks;
mod check;
mod cost;
mod counters;
mod fit;
mod flight;
mod fork;
mod memory;
mod outcome;
mod pace;
mod plan_builder;
mod planner;
mod policy;
mod prefix;
mod queue;
mod scheduler;
mod sequence;
mod short_prompts_first;
mod sizes;
mod slots;
mod snapshot;
mod steer;

pub use check::Violation;
pub use fork::ForkError;
pub use policy::{FirstComeFirstServed, Policy, SequenceFacts};
pub use scheduler::Scheduler;
pub use snapshot::Snapshot;
