//! The engine: one task that owns the scheduler, and the handle through which others reach it.

mod beam;
mod config;
mod core;
mod handle;
mod lineage;
mod losses;
mod metrics;
mod post;
mod preparations;
mod records;
mod state;
mod stream;
mod task;
pub mod types;
mod workers;

pub use config::{EngineConfig, Preparing, RestartPolicy};
pub use handle::Engine;
pub use metrics::EngineMetrics;
pub use state::{EngineState, Limits, ProgressSink};
pub use stream::TokenStream;
pub use types::{
    Beam, Candidate, EarlyStopping, End, EngineRequest, Entry, PromptToken, Sampling, Stopping,
    SubmitError, Telling, Token, TokenEvent, Tokens, Told,
};
pub use workers::{AttachedWorkers, Workers, WorkersError};
