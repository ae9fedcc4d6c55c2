//! Decides which tokens run in the next step. The crate is pure and uses std only: no I/O, no
//! clock, no randomness. The same calls give the same plans, so a test replays a day of traffic.
//!
//! One owner drives a [`Scheduler`]. [`Scheduler::add`] queues a request, [`Scheduler::plan`]
//! returns the next [`plan::StepPlan`] for the workers, [`Scheduler::complete`] takes the outcome
//! of a step. Every accepted request ends exactly once: by an emission with `finish`; by the
//! owner's `finish`, `abort` or `drain`; or by `replace`, when it no longer fits.
//!
//! How it decides:
//! - **No phases.** A sequence has known tokens and computed tokens. A plan gives each sequence
//!   some tokens within the step's budget, in the order of the [`Policy`]: a *senior* sequence is
//!   earlier in this order than a *junior* one. A sequence at its last known token decodes. Every
//!   plan contains all decodes; prompts share the rest of the budget. `scheduler::pace` limits that
//!   rest so that running streams keep their inter-token latency (`cost` estimates step times).
//! - **Memory on demand.** A sequence takes blocks as it grows. When no block is left, a junior
//!   sequence is preempted: it loses its slot and returns to the head of the queue as token ids
//!   (`scheduler::planner`). The most senior sequence is never preempted, so there is always
//!   progress. A sequence is admitted only if all known tokens of all running sequences and one
//!   more block each have room (or all tokens that they may generate: `config::Reserve`), and never
//!   in a plan in which memory ran out. A resumed sequence also needs room for as many new tokens
//!   as it recomputes (`scheduler::admission`).
//! - **Order** is the [`Policy`]'s. Later sequences may pass one that does not fit, until it has
//!   waited for `aging`. With [`FairShare`], tenants share the workers in proportion to their weights
//!   (`accounts`, `waiting`, `scheduler::fair`).
//! - **Prefix cache** (`memory`). A full block becomes findable when an *outcome* confirms it,
//!   chunk by chunk and for generated tokens too. Steps run in order, so the next step could read
//!   the block before the outcome arrives; but a run can fail, and its readers would then be wrong.
//!   The price: if two equal requests arrive together, the second one waits for a step while the
//!   first computes its next block (unless it has aged). Nothing is computed twice.
//! - **Pipelining.** Up to `depth` plans are in flight before the first outcome arrives; only the
//!   workers have the token ids that are not known yet. Outcomes of finished sequences are dropped.
//! - **KV groups** (`memory`). Each kind of layers has its own pool and block tables: full
//!   attention, a sliding window (a sequence holds only the blocks that its window still reaches),
//!   or one state per sequence (recurrent layers). A block has the same number of tokens in all
//!   groups. Admission needs room in every group. A prefix hit is the prefix that all groups have.

pub mod config;
pub mod ids;
pub mod plan;
pub mod request;

mod accounts;
mod cost;
mod estimators;
mod memory;
mod plan_builder;
mod running;
mod scheduler;
mod sequence;
mod violation;
mod waiting;

pub use request::{FairShare, FirstComeFirstServed, Policy, SequenceFacts};
pub use scheduler::{ForkError, Scheduler, Snapshot};
pub use violation::Violation;
