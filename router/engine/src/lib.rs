//! The engine: one task that owns the scheduler, and the handle that submits requests to it; `shard`
//! is its client of the workers.
//!
//! The text layer uses it as `penstock_request::backend::Backend`; the launcher and the Python
//! package start it. Only `shard` and the tests' workers name protocol types.

mod beam;
mod check;
mod config;
mod core;
mod event_router;
pub mod generated;
mod handle;
mod losses;
mod metrics;
mod preparations;
mod promises;
mod records;
pub mod shard;
mod state;
mod suspects;
mod task;
mod token_tree;
mod workers;

pub use config::{EngineConfig, LATENCY_TARGET, PreparePolicy, RestartPolicy};
pub use handle::{Engine, TokenStream};
pub use metrics::EngineMetrics;
pub use state::ProgressSink;
pub use workers::{AttachedWorkers, Workers, WorkersEnd, WorkersError};
