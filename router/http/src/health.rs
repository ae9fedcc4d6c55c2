//! Health checks: alive, healthy, ready. No check waits for the engine's task or for a worker, so
//! all of them answer at once under any load.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use penstock_request::error::{ApiError, ErrorKind};

use super::{App, error};

/// Retry-after hint of a failed check.
const RETRY: Duration = Duration::from_secs(5);

/// Liveness: 200 as long as the process answers, also while the model loads, while workers restart
/// and while the server drains. For probes that restart the process.
#[utoipa::path(get, path = "/live", tag = "operations", responses((status = 200)))]
pub(super) async fn live() -> StatusCode {
    StatusCode::OK
}

/// Health: 200 while the server can serve requests; 503 until the model is loaded, while no worker
/// can serve, and while the server drains. For startup and readiness probes, and load balancers.
#[utoipa::path(
    get, path = "/health", tag = "operations",
    responses((status = 200), (status = 503, body = error::ErrorResponse))
)]
pub(super) async fn health(State(app): State<App>, uri: Uri) -> Response {
    answer(&uri, app.generator.unhealthy_reason())
}

/// Readiness: 200 if a request sent now would run at once. Like `/health`, but also 503 as soon as
/// a step takes longer than expected, before its worker counts as lost.
#[utoipa::path(
    get, path = "/ready", tag = "operations",
    responses((status = 200), (status = 503, body = error::ErrorResponse))
)]
pub(super) async fn ready(State(app): State<App>, uri: Uri) -> Response {
    answer(&uri, app.generator.not_ready_reason())
}

fn answer(uri: &Uri, obstacle: Option<String>) -> Response {
    match obstacle {
        None => StatusCode::OK.into_response(),
        Some(reason) => {
            let error = ApiError::new(ErrorKind::Unavailable, reason).retry(RETRY);
            error::for_path(uri.path(), error)
        }
    }
}
