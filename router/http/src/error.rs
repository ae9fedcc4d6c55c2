//! Maps each kind of error to its HTTP status, its type and its JSON shape.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use penstock_request::error::{ApiError, ErrorKind, Excerpt};

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "`NativeError` writes it; here for the schema")]
pub(crate) struct ErrorResponse {
    /// The message: field, rule and value.
    #[schema(example = "Input validation error: `max_new_tokens` must be strictly positive")]
    pub(crate) error: String,
    /// The error type, for programs.
    #[schema(example = "validation")]
    pub(crate) error_type: String,
}

/// An error in the format of the native routes: `{"error", "error_type"}`.
#[derive(Debug)]
pub(super) struct NativeError(ApiError);

/// An error in the format of the OpenAI routes: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug)]
pub(super) struct OpenAiError(ApiError);

/// An error in the format of the Anthropic routes: `{"type": "error", "error": {"type",
/// "message"}}`.
#[derive(Debug)]
pub(super) struct AnthropicError(ApiError);

/// How clients see a kind of error.
struct Row {
    /// Status on native routes.
    status: StatusCode,
    /// `error_type` of the native routes.
    native: &'static str,
    /// `type` and `code` of the OpenAI routes.
    openai: (&'static str, Option<&'static str>),
    /// Prefix of the message on native routes, as in TGI.
    prefix: &'static str,
}

fn table(kind: ErrorKind) -> Row {
    use ErrorKind as Kind;
    use StatusCode as Status;
    const INVALID: &str = "invalid_request_error";
    let (status, native) = match kind {
        Kind::Syntax | Kind::PreviousResponse => (Status::BAD_REQUEST, "validation"),
        Kind::Validation | Kind::ContextLength | Kind::Unsupported | Kind::MessageThread => {
            (Status::UNPROCESSABLE_ENTITY, "validation")
        }
        Kind::Template => (Status::UNPROCESSABLE_ENTITY, "template_error"),
        Kind::BatchSize => (Status::UNPROCESSABLE_ENTITY, "batch size exceeded"),
        Kind::Unauthorized => (Status::UNAUTHORIZED, "unauthorized"),
        Kind::Forbidden => (Status::FORBIDDEN, "forbidden"),
        Kind::NotFound => (Status::NOT_FOUND, "not_found"),
        Kind::ModelNotFound => (Status::NOT_FOUND, "model_not_found"),
        Kind::Method => (Status::METHOD_NOT_ALLOWED, "method_not_allowed"),
        Kind::Timeout => (Status::REQUEST_TIMEOUT, "timeout"),
        Kind::Deadline => (Status::GATEWAY_TIMEOUT, "timeout"),
        Kind::TooLarge => (Status::PAYLOAD_TOO_LARGE, "payload_too_large"),
        Kind::MediaType => (Status::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
        Kind::Overloaded => (Status::TOO_MANY_REQUESTS, "overloaded"),
        Kind::Unavailable => (Status::SERVICE_UNAVAILABLE, "unavailable"),
        Kind::Generation => (Status::FAILED_DEPENDENCY, "generation"),
        Kind::Internal => (Status::INTERNAL_SERVER_ERROR, "internal"),
    };
    let openai = match kind {
        Kind::Overloaded => ("rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Unavailable | Kind::Generation | Kind::Internal => ("server_error", None),
        Kind::Deadline => ("timeout_error", Some("deadline_exceeded")),
        Kind::Unauthorized => (INVALID, Some("invalid_api_key")),
        Kind::ModelNotFound => (INVALID, Some("model_not_found")),
        Kind::ContextLength => (INVALID, Some("context_length_exceeded")),
        Kind::PreviousResponse => (INVALID, Some("previous_response_not_found")),
        Kind::Unsupported | Kind::MessageThread => (INVALID, Some("unsupported_parameter")),
        _ => (INVALID, None),
    };
    let prefix = match kind {
        Kind::Syntax | Kind::Validation | Kind::ContextLength | Kind::Unsupported => {
            "Input validation error: "
        }
        Kind::Template => "Template error: ",
        Kind::Generation => "Request failed during generation: ",
        _ => "",
    };
    Row {
        status,
        native,
        openai,
        prefix,
    }
}

/// Returns the JSON of an error on a native route, for a body or a stream.
pub(super) fn native_json(error: &ApiError) -> String {
    let row = table(error.kind);
    // Quoted values are already cut, but a template's exception may have any length.
    let message = Excerpt::of_message(&error.message);
    let message = format!("{}{message}", row.prefix);
    json!({ "error": message, "error_type": row.native }).to_string()
}

/// Returns the JSON of an error on an OpenAI route, for a body or a stream.
pub(super) fn openai_json(error: &ApiError) -> String {
    let row = table(error.kind);
    let (kind, code) = row.openai;
    let (message, param) = (Excerpt::of_message(&error.message), &error.param);
    let message = message.to_string();
    let fields = json!({ "message": message, "type": kind, "param": param, "code": code });
    json!({ "error": fields }).to_string()
}

/// Returns the JSON of an error on an Anthropic route, for a body or a stream.
pub(super) fn anthropic_json(error: &ApiError) -> String {
    let kind = match table(error.kind).status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        StatusCode::FAILED_DEPENDENCY | StatusCode::INTERNAL_SERVER_ERROR => "api_error",
        _ => "invalid_request_error",
    };
    let message = Excerpt::of_message(&error.message).to_string();
    let mut fields = json!({ "type": kind, "message": message });
    if error.kind == ErrorKind::MessageThread {
        // The tool runner of Anthropic's clients checks for this code.
        fields["details"] = json!({ "error_code": "thread_unsupported_request" });
    }
    json!({ "type": "error", "error": fields }).to_string()
}

/// Returns an error in the format of the routes under `path`.
pub(super) fn for_path(path: &str, error: ApiError) -> Response {
    if path.starts_with("/v1/messages") {
        AnthropicError(error).into_response()
    } else if path.starts_with("/v1/") {
        OpenAiError(error).into_response()
    } else {
        NativeError(error).into_response()
    }
}

/// Returns the status on the OpenAI and Anthropic routes, whose clients recognise invalid input
/// only by 400.
fn client_status(kind: ErrorKind) -> StatusCode {
    match table(kind).status {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

fn respond(error: &ApiError, status: StatusCode, body: String) -> Response {
    let json = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let mut response = (status, [json], body).into_response();
    if status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, scheme);
    }
    if let Some(after) = error.retry_after {
        let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

impl IntoResponse for NativeError {
    fn into_response(self) -> Response {
        respond(&self.0, table(self.0.kind).status, native_json(&self.0))
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        respond(&self.0, client_status(self.0.kind), openai_json(&self.0))
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        respond(&self.0, client_status(self.0.kind), anthropic_json(&self.0))
    }
}

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<ApiError> for NativeError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<ApiError> for OpenAiError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}
