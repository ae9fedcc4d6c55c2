//! The routes of administrators.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use penstock_request::error::{ApiError, ErrorKind};

use crate::App;
use crate::error::NativeError;

/// Prefix of these routes.
pub(super) const PREFIX: &str = "/admin/";

/// Reads the files of the configuration again: tenants, the certificate and its key. Clones share it.
#[derive(Clone)]
pub struct Reload(Arc<dyn Fn() -> Result<(), String> + Send + Sync>);

impl Reload {
    /// Creates it from the function that reads the files. If that fails, the former contents must
    /// stay in use; the error says which file is at fault.
    pub fn new(read: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// As the function.
    pub fn run(&self) -> Result<(), String> {
        (self.0)()
    }
}

impl Default for Reload {
    fn default() -> Self {
        Self::new(|| Ok(()))
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

/// Returns the routes; `guard` asks for the admin token.
pub(crate) fn routes() -> Router<App> {
    Router::new().route("/admin/reload", post(reload))
}

async fn reload(State(app): State<App>) -> Response {
    let reload = app.config.reload.clone();
    // It reads files.
    let done = tokio::task::spawn_blocking(move || reload.run()).await;
    match done {
        Ok(Ok(())) => StatusCode::OK.into_response(),
        Ok(Err(why)) => {
            tracing::warn!("reload failed, the former settings stay: {why}");
            NativeError::from(ApiError::new(ErrorKind::Validation, why)).into_response()
        }
        Err(_) => {
            let message = "the server failed to read its files";
            NativeError::from(ApiError::new(ErrorKind::Internal, message)).into_response()
        }
    }
}
