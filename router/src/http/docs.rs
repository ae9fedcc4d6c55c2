//! The description of all routes, for programs and for people.

use axum::Json;
use axum::response::Html;
use utoipa::OpenApi;

use super::{kserve, native, openai};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Penstock",
        description = "A server for large language models: TGI's native routes, OpenAI's, KServe's.",
        license(name = "Apache-2.0"),
    ),
    paths(
        native::generate,
        native::generate_stream,
        native::compatible,
        native::tokenize,
        native::info,
        openai::chat,
        openai::completions,
        openai::models,
        openai::model,
        kserve::server,
        kserve::model,
        kserve::model_ready,
        kserve::infer,
        kserve::generate,
        kserve::generate_stream,
        super::health,
        super::ready,
        super::metrics,
    )
)]
struct Description;

/// The OpenAPI description.
pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}

/// A page that shows the description; it loads nothing from elsewhere.
pub(super) async fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}
