//! What the text layer asks of an engine. `Engine` is the one backend; tests script others.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures_core::Stream;

use crate::engine::types::{EngineRequest, SubmitError, TokenEvent};
use crate::engine::{Engine, EngineState, Limits, TokenStream};

/// Takes token ids and gives token ids back.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns when the request is accepted and prepared.
    async fn submit(&self, request: EngineRequest) -> Result<Box<dyn TokenSource>, SubmitError>;
    /// The same backend, for answers that are read on the current runtime.
    fn on_this_runtime(&self) -> Arc<dyn Backend>;
    /// What the backend is doing.
    fn state(&self) -> EngineState;
    /// What it can take; `None` until its model is loaded.
    fn limits(&self) -> Option<Limits>;
}

/// The tokens of one request. Dropping it before its end aborts the request.
pub trait TokenSource: Stream<Item = TokenEvent> + Send + Unpin {
    /// The answer is complete although the backend would go on.
    fn finish(self: Box<Self>);
    /// When the request began to run; none while it waits, or if the backend does not say.
    fn entered(&self) -> Option<Instant> {
        None
    }
}

#[async_trait]
impl Backend for Engine {
    async fn submit(&self, request: EngineRequest) -> Result<Box<dyn TokenSource>, SubmitError> {
        Ok(Box::new(Self::submit(self, request).await?))
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

    fn entered(&self) -> Option<Instant> {
        Self::entered(self)
    }
}
