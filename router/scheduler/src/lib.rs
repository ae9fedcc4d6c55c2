//! Decides which tokens run in the next step: pure, std only.

pub mod config;
pub mod ids;
pub mod plan;
pub mod request;

mod admission;
mod blocks;
mod check;
mod cost;
mod draft;
mod flight;
mod fork;
mod memory;
mod outcome;
mod planner;
mod policy;
mod prefix;
mod queue;
mod scheduler;
mod sequence;
mod slots;
mod snapshot;

pub use check::Violation;
pub use fork::ForkError;
pub use policy::{Facts, FirstComeFirstServed, Policy};
pub use scheduler::Scheduler;
pub use snapshot::Snapshot;
