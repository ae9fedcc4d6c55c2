//! The engine as the text layer uses it. `penstock_engine::Engine` is the one implementation; tests
//! script others.

use std::sync::Arc;

use async_trait::async_trait;
use futures_core::Stream;

use crate::types::{EngineRequest, Entry, SubmitError, TokenEvent};
use crate::{EngineState, Limits};

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
