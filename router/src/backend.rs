//! What the text layer asks of an engine. `Engine` is the one backend; tests script others.

use std::sync::Arc;

use async_trait::async_trait;
use futures_core::Stream;

use crate::engine::types::{EngineRequest, Entry, SubmitError, TokenEvent};
use crate::engine::{Engine, EngineState, Limits, TokenStream};

/// Takes token ids and gives token ids back.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns when the request is accepted and prepared: a source per branch.
    async fn submit(&self, request: EngineRequest) -> Result<Sources, SubmitError>;
    /// The same backend, for answers that are read on the current runtime.
    fn on_this_runtime(&self) -> Arc<dyn Backend>;
    /// What the backend is doing.
    fn state(&self) -> EngineState;
    /// What it can take; `None` until its model is loaded.
    fn limits(&self) -> Option<Limits>;
}

/// The answers to one request, branch by branch.
pub type Sources = Vec<Box<dyn TokenSource>>;

/// The tokens of one answer. Dropping it before its end aborts it.
pub trait TokenSource: Stream<Item = TokenEvent> + Send + Unpin {
    /// The answer is complete although the backend would go on.
    fn finish(self: Box<Self>);
    /// How the request began to run; none while it waits, or if the backend does not say.
    fn entered(&self) -> Option<Entry> {
        None
    }
}

#[async_trait]
impl Backend for Engine {
    async fn submit(&self, request: EngineRequest) -> Result<Sources, SubmitError> {
        let boxed = |stream| Box::new(stream) as Box<dyn TokenSource>;
        let streams = self.submit_all(request).await?;
        Ok(streams.into_iter().map(boxed).collect())
    }

    fn on_this_runtime(&self) -> Arc<dyn Backend> {
        Arc::new(Self::on_this_runtime(self))
    }

    fn state(&self) -> EngineState {
        Self::state(self)
    }

    fn limits(&self) -> Option<Limits> {
        Self::limits(self)
    }
}

impl TokenSource for TokenStream {
    fn finish(self: Box<Self>) {
        Self::finish(*self);
    }

    fn entered(&self) -> Option<Entry> {
        Self::entered(self)
    }
}
