//! Reads a request's JSON body, with an error that says what is wrong and where.

use axum::extract::Request;
use axum::http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::config::RouterConfig;
use crate::error::{ApiError, ErrorKind};

/// Reads and parses the body within the configured size and time.
pub(super) async fn read<T: DeserializeOwned>(
    request: Request,
    config: &RouterConfig,
) -> Result<T, ApiError> {
    check_media_type(&request)?;
    let limit = config.max_body_bytes;
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let body = Limited::new(request.into_body(), limit).collect();
    let body = tokio::time::timeout(config.body_timeout, body)
        .await
        .map_err(|_| {
            let seconds = config.body_timeout.as_secs();
            let message = format!("the request's body did not arrive within {seconds} s");
            ApiError::new(ErrorKind::Timeout, message)
        })?;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_large(limit),
        None => ApiError::new(
            ErrorKind::Syntax,
            format!("the request's body broke off: {error}"),
        ),
    })?;
    parse(&body.to_bytes())
}

fn check_media_type(request: &Request) -> Result<(), ApiError> {
    let value = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok());
    let essence = value
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let message =
        format!("send JSON with the header `Content-Type: application/json`, not `{essence}`");
    Err(ApiError::new(ErrorKind::MediaType, message))
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the request's body must have at most {limit} bytes");
    ApiError::new(ErrorKind::TooLarge, message)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // Serde would read a list as an object's fields in order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let message = "the body must be a JSON object, not a list";
        return Err(ApiError::new(ErrorKind::Validation, message));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        explain(&path, error.inner())
    })?;
    json.end().map_err(|error| explain(".", &error))?;
    Ok(value)
}

fn explain(path: &str, error: &serde_json::Error) -> ApiError {
    let at = if path == "." {
        String::new()
    } else {
        format!("`{path}`: ")
    };
    match error.classify() {
        serde_json::error::Category::Data => {
            ApiError::new(ErrorKind::Validation, format!("{at}{error}"))
        }
        _ => ApiError::new(
            ErrorKind::Syntax,
            format!("the body is not JSON: {at}{error}"),
        ),
    }
}
