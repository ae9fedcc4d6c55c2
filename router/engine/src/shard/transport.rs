//! What carries calls to a worker.

use tonic::{Status, body::Body, codegen::http};
use tower::{ServiceExt, util::BoxCloneSyncService};

use super::Endpoint;

/// Carries calls to one worker: a connection, or a service inside this process. The source of an
/// error is the cause of the loss.
pub type Transport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

impl Endpoint {
    /// Connects. The error has only the cause, not the address.
    pub(super) async fn transport(&self) -> Result<Transport, String> {
        let channel = self.connect().await?;
        let error = |error| Status::from_error(Box::new(error));
        Ok(Transport::new(channel.map_err(error)))
    }
}
