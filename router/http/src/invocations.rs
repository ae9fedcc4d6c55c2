//! SageMaker's `/invocations` route, which dispatches on the fields of the body.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use penstock_request::error::ApiError;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::error::ErrorResponse;
use super::error::NativeError;
use super::native::wire::{GenerateRequest, GenerateResponse};
use super::{App, json, native, openai};

/// The fields that decide the route.
#[derive(Deserialize)]
struct RouteFields {
    inputs: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

/// Serves a body of `/`, `/v1/chat/completions` or `/v1/completions`.
#[utoipa::path(
    post, path = "/invocations", tag = "native", request_body = GenerateRequest,
    responses(
        (status = 200, body = Vec<GenerateResponse>),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(super) async fn invocations(State(app): State<App>, request: Request) -> Response {
    match route_fields(&app, request).await {
        Ok((fields, request)) if fields.messages.is_some() => {
            openai::chat(State(app), request).await.into_response()
        }
        Ok((fields, request)) if fields.prompt.is_some() => {
            openai::completions(State(app), request)
                .await
                .into_response()
        }
        Ok((_, request)) => native::compatible(State(app), request)
            .await
            .into_response(),
        Err(error) => NativeError::from(error).into_response(),
    }
}

/// Returns the fields that decide the route, and the request with its body decoded.
async fn route_fields(app: &App, request: Request) -> Result<(RouteFields, Request), ApiError> {
    json::check_media_type(&request)?;
    let (mut parts, body) = request.into_parts();
    // The charge ends here: the route charges the body again when it reads it.
    let mut body = Request::new(body);
    if let Some(coding) = parts.headers.remove(header::CONTENT_ENCODING) {
        body.headers_mut().insert(header::CONTENT_ENCODING, coding);
    }
    let (bytes, _) = json::read_bytes(body, app).await?;
    let fields: RouteFields = json::parse(&bytes)?;
    if fields.inputs.is_none() && fields.messages.is_none() && fields.prompt.is_none() {
        let rule = "one of `inputs`, `messages` and `prompt` must be given";
        return Err(ApiError::validation("inputs", rule));
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok((fields, Request::from_parts(parts, Body::from(bytes))))
}
