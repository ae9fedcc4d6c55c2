//! The description of all routes, for programs and for people.

use std::sync::LazyLock;

use axum::Json;
use axum::response::Html;
use serde_json::Value;
use utoipa::OpenApi;

use super::{anthropic, kserve, native, openai};

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
        super::invocations::invocations,
        native::tokenize,
        native::info,
        openai::chat,
        openai::completions,
        openai::chat_tokenize,
        anthropic::messages,
        anthropic::count_tokens,
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

/// Examples of bodies by path, and of their fields by schema: a test sends every one of them.
const EXAMPLES: &str = include_str!("examples.json");

static DESCRIBED: LazyLock<Value> = LazyLock::new(describe);

/// The OpenAPI description of all routes, as `docs/openapi.json` has it.
pub fn openapi_json() -> String {
    // A tree of JSON always has a text.
    let text = serde_json::to_string_pretty(&*DESCRIBED).unwrap_or_default();
    text + "\n"
}

/// The OpenAPI description.
pub(super) async fn openapi() -> Json<&'static Value> {
    Json(&DESCRIBED)
}

/// The description that follows from the types, with the examples.
fn describe() -> Value {
    let mut api = serde_json::to_value(Description::openapi()).unwrap_or_default();
    let examples: Value = serde_json::from_str(EXAMPLES).unwrap_or_default();
    for (path, body) in entries(&examples["bodies"]) {
        api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] =
            body.clone();
    }
    for (schema, fields) in entries(&examples["fields"]) {
        let properties = &mut api["components"]["schemas"][schema]["properties"];
        for (field, example) in entries(fields) {
            // A field that is gone shows as one without a type, which a test finds.
            let property = &mut properties[field];
            property["example"] = example.clone();
        }
    }
    api
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// A page that shows the description; it loads nothing from elsewhere.
pub(super) async fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}
