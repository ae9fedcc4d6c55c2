//! The header `x-request-timeout`: a request's deadline, as its gateway or client knows it. The field
//! `timeout` of a body says the same; the earlier one counts.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::Response;
use penstock_request::deadline::Deadline;
use penstock_request::error::{ApiError, Excerpt};
use penstock_request::validate::check_timeout;

use super::error;

/// Seconds until the answer must be complete.
const HEADER: HeaderName = HeaderName::from_static("x-request-timeout");

/// Handles a request on behalf of its deadline, if the header sets one. Only POST generates.
pub(super) async fn with_deadline(request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    match from_headers(request.headers()) {
        Ok(None) => next.run(request).await,
        Ok(deadline) => Deadline::scope(deadline, next.run(request)).await,
        Err(error) => error::for_path(request.uri().path(), error),
    }
}

fn from_headers(headers: &HeaderMap) -> Result<Option<Deadline>, ApiError> {
    let Some(value) = headers.get(HEADER) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    let seconds = text.trim().parse::<f64>().map_err(|_| {
        let given = Excerpt::new(text);
        let rule = format!(
            "the header `x-request-timeout` must be seconds, such as 30 or 0.5. Given: `{given}`"
        );
        ApiError::validation("x-request-timeout", rule)
    })?;
    check_timeout("x-request-timeout", Some(seconds))?;
    Ok(Deadline::timeout(seconds).map(Deadline::after))
}
