//! The engine as the other layers see it. `penstock_engine::Engine` is the one implementation; tests
//! script others.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_core::Stream;

use crate::types::{EngineRequest, Entry, SubmitError, TokenEvent};

/// Generates token ids from token ids.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Submits a request and returns a source per choice once it is accepted and prepared.
    async fn submit(&self, request: EngineRequest) -> Result<Sources, SubmitError>;
    /// Returns this backend for streams that are polled on the current runtime.
    fn on_this_runtime(&self) -> Arc<dyn Backend>;
    /// Returns the backend's state.
    fn state(&self) -> EngineState;
    /// Returns the backend's limits; `None` until its model is loaded.
    fn limits(&self) -> Option<Limits>;
    /// Returns for how long a step has been overdue by its cost model: the workers may hang. `None`
    /// while all steps are in time.
    fn overdue(&self) -> Option<Duration> {
        None
    }
}

/// The token sources of one request, one per choice.
pub type Sources = Vec<Box<dyn TokenSource>>;

/// The tokens of one choice. Dropping it before its end aborts it.
pub trait TokenSource: Stream<Item = TokenEvent> + Send + Unpin {
    /// Ends the choice because its output is complete.
    fn finish(self: Box<Self>);
    /// Returns the first entry into a slot; `None` while the request waits, or if the backend does
    /// not report it.
    fn entered(&self) -> Option<Entry> {
        None
    }
}

/// The engine's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// The workers start for the first time.
    Loading {
        /// "start" until the workers report a phase of theirs: "weights", "memory", "warm-up".
        phase: String,
        /// Progress, summed over all workers; bytes for "weights".
        done: u64,
        /// Total in the unit of `done`; 0 = unknown.
        total: u64,
    },
    /// Requests run.
    Ready,
    /// The workers were lost and are restarting.
    Restarting {
        /// How they were lost. For the operator: it may name files of this host.
        reason: String,
    },
    /// New requests are refused; accepted ones run on.
    Draining,
    /// The engine has ended.
    Stopped {
        /// Why. For the operator: it may name files of this host.
        reason: String,
    },
}

/// Limits of the loaded model and its workers, from the last message of Load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt plus generated tokens of one request.
    pub max_sequence_tokens: u32,
    /// Maximum concurrent sequences.
    pub max_slots: u32,
    /// Maximum tokens of one step.
    pub max_step_tokens: u32,
    /// Size of the vocabulary; prompt ids are below it.
    pub vocab_size: u32,
    /// Tokens that the whole KV pool holds.
    pub kv_tokens: u64,
    /// Name of the workers' device, for people.
    pub device_name: String,
    /// What computes the model: "native", or "transformers" for a model without a native family.
    pub model_backend: String,
    /// What "transformers" gives up for this model, in phrases, for people.
    pub limitations: Vec<String>,
}

impl EngineState {
    /// Returns the state before the workers report anything.
    #[must_use]
    pub fn initial() -> Self {
        Self::Loading {
            phase: "start".into(),
            done: 0,
            total: 0,
        }
    }
}
