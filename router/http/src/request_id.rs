//! The id of a request: the client's `x-request-id`, or a new one. The response has it as a header,
//! and the log lines of the request contain it.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use super::ids;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken from a client.
const MOST_BYTES: usize = 128;

/// Handles a request under its id.
pub(super) async fn identify(request: Request, next: Next) -> Response {
    let given = request.headers().get(NAME).filter(|id| is_usable(id));
    let id = given.cloned().or_else(|| ids::unique("").parse().ok());
    let text = id.as_ref().and_then(|id| id.to_str().ok());
    let span = tracing::error_span!("request", id = text.unwrap_or_default());
    let mut response = next.run(request).instrument(span).await;
    if let Some(id) = id {
        response.headers_mut().insert(NAME, id);
    }
    response
}

/// Returns whether an id is short, and cannot break a log line.
fn is_usable(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=MOST_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}
