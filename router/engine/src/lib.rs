//! The engine: one task that owns the scheduler, and the handle that submits requests to it.

mod beam;
mod config;
mod core;
mod event_router;
mod handle;
mod losses;
mod metrics;
mod preparations;
mod records;
mod state;
mod stream;
mod task;
mod token_tree;
pub mod types;
mod workers;

pub use config::{EngineConfig, PreparePolicy, RestartPolicy};
pub use handle::Engine;
pub use metrics::EngineMetrics;
pub use state::{EngineState, Limits, ProgressSink};
pub use stream::TokenStream;
pub use types::{
    BeamParameters, Candidate, EarlyStopping, End, EngineRequest, Entry, LogprobOptions, Logprobs,
    PromptToken, Sampling, Stopping, SubmitError, Token, TokenEvent, Tokens,
};
pub use workers::{AttachedWorkers, Workers, WorkersError};
