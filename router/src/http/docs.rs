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
    ),
    components(schemas(anthropic::wire::Block))
)]
struct Description;

/// Examples of bodies by path, and of their fields by schema: a test sends every one of them.
const EXAMPLES: &str = include_str!("examples.json");

/// Fields that take more than one type: schema, field, their shapes.
const SHAPES: [(&str, &str, &str); 7] = [
    ("Message", "content", PARTS),
    ("AnthropicMessage", "content", BLOCKS),
    ("AnthropicBlock", "content", BLOCKS),
    ("MessagesRequest", "system", BLOCKS),
    ("CompletionRequest", "prompt", PROMPTS),
    ("CompletionRequest", "stop", STRINGS),
    ("ChatRequest", "stop", STRINGS),
];
const PARTS: &str = r#"[{"type":"string"},{"type":"null"},{"type":"array","items":{
    "type":"object","required":["type","text"],"additionalProperties":false,
    "properties":{"type":{"type":"string","enum":["text"]},"text":{"type":"string"}}}}]"#;
const BLOCKS: &str = r##"[{"type":"string"},{"type":"array","items":{
    "$ref":"#/components/schemas/AnthropicBlock"}}]"##;
const PROMPTS: &str = r#"[{"type":"string"},{"type":"array","items":{"type":"string"}},
    {"type":"array","items":{"type":"integer","minimum":0}},
    {"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0}}}]"#;
const STRINGS: &str =
    r#"[{"type":"string"},{"type":"null"},{"type":"array","items":{"type":"string"}}]"#;

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
    for (schema, field, shapes) in SHAPES {
        let property = &mut api["components"]["schemas"][schema]["properties"][field];
        for word in ["type", "items"] {
            property
                .as_object_mut()
                .map(|property| property.remove(word));
        }
        property["anyOf"] = serde_json::from_str(shapes).unwrap_or_default();
    }
    describe_responses(&mut api);
    api
}

/// What a status means, where the route says no more.
fn describe_responses(api: &mut Value) {
    let routes = api["paths"].as_object_mut().into_iter().flatten();
    let operations = routes.flat_map(|(_, methods)| methods.as_object_mut().into_iter().flatten());
    for (_, operation) in operations {
        for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
            let words = response["description"].as_str();
            if words.is_none_or(str::is_empty) {
                response["description"] = meaning(status).into();
            }
        }
    }
}

fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "The answer, or what was asked about.",
        "404" => "Nothing of that name is served here.",
        "503" => "No request would run now; the body says why.",
        "4XX" => {
            "The request is at fault: the body names field, rule and value. 429: too much is asked \
                  at once; `Retry-After` says when to try again."
        }
        _ => "The server is at fault; the body says what failed.",
    }
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// A page that shows the description; it loads nothing from elsewhere.
pub(super) async fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}
