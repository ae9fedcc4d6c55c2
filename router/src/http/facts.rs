//! Response headers that say what a request cost.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::App;
use crate::error::{ApiError, ErrorKind};
use crate::generation::Generation;

/// Headers of a stream: what is known at its start.
pub(super) fn stream_headers(app: &App, generation: &Generation) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let device = app
        .generator
        .limits()
        .map_or_else(String::new, |limits| limits.device_name);
    if let Ok(device) = HeaderValue::from_str(&device.replace(' ', "-").to_lowercase()) {
        headers.insert("x-compute-type", device);
    }
    headers.insert("x-prompt-tokens", generation.facts().prompt_tokens.into());
    headers
}

/// Headers of a finished answer; times in milliseconds, but `x-compute-time` in seconds.
pub(super) fn whole_headers(app: &App, generation: &Generation) -> HeaderMap {
    let mut headers = stream_headers(app, generation);
    let timings = generation.timings();
    let times = [
        ("x-total-time", timings.total),
        ("x-validation-time", timings.validation),
        ("x-inference-time", timings.inference),
        ("x-time-per-token", timings.per_token),
    ];
    for (name, time) in times {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        headers.insert(HeaderName::from_static(name), millis.into());
    }
    if let Ok(seconds) = HeaderValue::from_str(&timings.total.as_secs_f64().to_string()) {
        headers.insert("x-compute-time", seconds);
    }
    headers.insert(
        "x-generated-tokens",
        generation.facts().generated_tokens.into(),
    );
    headers
}

/// An answer that stopped without an end: cannot happen while the engine keeps its contract.
pub(super) fn unfinished() -> ApiError {
    ApiError::new(ErrorKind::Generation, "the answer broke off")
}
