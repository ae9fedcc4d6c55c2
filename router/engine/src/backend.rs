//! The engine as the backend of the text layer.

use std::sync::Arc;

use async_trait::async_trait;
use penstock_request::backend::{Backend, Sources, TokenSource};
use penstock_request::types::{EngineRequest, Entry, SubmitError};
use penstock_request::{EngineState, Limits};

use super::{Engine, TokenStream};

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
