//! Response headers with the usage and timing of a request.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use penstock_request::error::{ApiError, ErrorKind};
use penstock_text::generation::Generation;

use super::App;

/// Returns the headers of a stream of one or several choices: those known at its start.
pub(super) fn stream_headers(app: &App, generations: &[Generation]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let device = app
        .generator
        .limits()
        .map_or_else(String::new, |limits| limits.device_name);
    if let Ok(device) = HeaderValue::from_str(&device.replace(' ', "-").to_lowercase()) {
        headers.insert("x-compute-type", device);
    }
    let facts = generations.iter().map(Generation::facts);
    let prompt_tokens: usize = facts.map(|facts| facts.usage().prompt).sum();
    headers.insert("x-prompt-tokens", prompt_tokens.into());
    headers
}

/// Returns the headers of finished choices. Times are in milliseconds, except `x-compute-time` in
/// seconds. Choices run in parallel: tokens are summed, and times are those of the slowest choice.
pub(super) fn whole_headers(app: &App, generations: &[Generation]) -> HeaderMap {
    let mut headers = stream_headers(app, generations);
    let timings = generations.iter().map(Generation::timings);
    let timings = timings
        .max_by_key(|timings| timings.total)
        .unwrap_or_default();
    let times = [
        ("x-total-time", timings.total),
        ("x-validation-time", timings.validation),
        ("x-queue-time", timings.queue),
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
    let facts = generations.iter().map(Generation::facts);
    let generated: u32 = facts.map(|facts| facts.generated_tokens).sum();
    headers.insert("x-generated-tokens", generated.into());
    headers
}

/// Adds the length of a text prompt in characters.
pub(super) fn put_prompt_characters(headers: &mut HeaderMap, characters: usize) {
    headers.insert("x-compute-characters", characters.into());
}

/// The error of a generation that stopped without an end event, which the engine's contract
/// excludes.
pub(super) fn incomplete_generation() -> ApiError {
    ApiError::new(
        ErrorKind::Generation,
        "the generation stopped without an end",
    )
}
