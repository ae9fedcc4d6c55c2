//! The OpenAPI description of all routes and its HTML page.

mod bounds;
#[cfg(feature = "kserve")]
mod kserve;
mod shapes;
mod streams;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{App, access, anthropic, native, openai, tokens};
use crate::config::RouterConfig;

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
        crate::invocations::invocations,
        tokens::tokenize,
        tokens::detokenize,
        tokens::tokenizer_info,
        tokens::version,
        tokens::load,
        native::info,
        openai::chat,
        openai::completions,
        openai::responses,
        openai::input_tokens,
        openai::stored_response,
        openai::delete_response,
        openai::input_items,
        tokens::chat_tokenize,
        anthropic::messages,
        anthropic::count_tokens,
        openai::models,
        openai::model,
        crate::health::health,
        crate::health::live,
        crate::health::ready,
        crate::metrics,
        self::openapi,
        self::page,
    ),
    components(schemas(
        anthropic::wire::Block,
        openai::wire::tools::NamedChoice,
        openai::wire::tools::AllowedChoice,
        openai::wire::items::Item,
        openai::wire::items::Part,
        openai::wire::responses::FunctionName,
        openai::wire::responses::AllowedFunctions,
    ))
)]
struct Description;

/// Example bodies by path, and examples of fields by schema. A test sends all of them. Those of
/// features that this build lacks are skipped.
const EXAMPLES: &str = include_str!("../examples.json");

/// Aliases: the path, the path of its original, and the operation id.
const ALIASES: [(&str, &str, &str); 5] = [
    ("/", "/health", "root"),
    ("/ping", "/health", "ping"),
    ("/v2/health/live", "/live", "kserve_live"),
    ("/v2/health/ready", "/ready", "kserve_ready"),
    ("/api-doc/openapi.json", "/openapi.json", "api_doc"),
];

/// Returns the OpenAPI description of all routes with the limits of the default configuration, as
/// stored in `docs/openapi.json`.
pub fn openapi_json() -> String {
    // A JSON tree always serializes.
    let api = describe(&RouterConfig::new("penstock"));
    serde_json::to_string_pretty(&api).unwrap_or_default() + "\n"
}

/// Returns this description, with the limits of this server.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses((status = 200, body = Object))
)]
pub(super) async fn openapi(State(app): State<App>) -> Response {
    let text = app
        .description
        .get_or_init(|| describe(&app.config).to_string().into());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, Bytes::clone(text)).into_response()
}

/// Builds the description from the types, the examples and the bounds.
fn describe(config: &RouterConfig) -> Value {
    let described = Description::openapi();
    #[cfg(feature = "kserve")]
    let described = described.merge_from(kserve::Description::openapi());
    let mut api = serde_json::to_value(described).unwrap_or_default();
    shapes::fix_schema(&mut api["components"]);
    let examples: Value = serde_json::from_str(EXAMPLES).unwrap_or_default();
    for (path, body) in entries(&examples["bodies"]) {
        if api["paths"].get(path).is_none() {
            continue;
        }
        api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] =
            body.clone();
    }
    let schemas = &mut api["components"]["schemas"];
    for (schema, field, shapes) in shapes::all(config) {
        shapes::take(&mut schemas[schema]["properties"][field], shapes);
    }
    for (names, field, said) in bounds::all(config) {
        for name in names {
            bounds::merge(&mut schemas[*name]["properties"][field], said.clone());
        }
    }
    for (schema, fields) in entries(&examples["fields"]) {
        if schemas.get(schema).is_none() {
            continue;
        }
        let properties = &mut schemas[schema]["properties"];
        for (field, example) in entries(fields) {
            // A field that was removed shows up without a type, and a test finds it.
            let property = &mut properties[field];
            property["example"] = example.clone();
            bounds::bound_whole_numbers(property);
        }
    }
    #[cfg(feature = "kserve")]
    kserve::mark_optional_body(&mut api["paths"]);
    streams::describe(&mut api["paths"]);
    describe_responses(&mut api);
    add_aliases(&mut api["paths"]);
    #[cfg(feature = "kserve")]
    kserve::add_versions(&mut api["paths"]);
    describe_keys(&mut api);
    api
}

/// Describes how keys are sent. Servers without keys need none, so they are optional.
fn describe_keys(api: &mut Value) {
    api["components"]["securitySchemes"] = json!({
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    });
    let routes = api["paths"].as_object_mut().into_iter().flatten();
    for (path, methods) in routes {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            if access::is_open(method == "get", path) {
                continue;
            }
            operation["security"] = json!([{}, {"bearer": []}, {"x-api-key": []}]);
            let responses = &mut operation["responses"];
            if responses.get("4XX").is_none() {
                responses["401"] = json!({"description": "The API key is missing or wrong."});
            }
        }
    }
}

fn add_aliases(paths: &mut Value) {
    let served = |path: &str| cfg!(feature = "kserve") || !path.starts_with("/v2/");
    for (path, other, name) in ALIASES.into_iter().filter(|(path, ..)| served(path)) {
        let mut operation = paths[other]["get"].clone();
        operation["operationId"] = name.into();
        operation["description"] = format!("An alias of `{other}`.").into();
        paths[path]["get"] = operation;
    }
}

/// Adds a description to each status that the route leaves undescribed.
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
        "200" => "The requested result.",
        "404" => "The server has no object of this name.",
        "503" => "The server is not ready; the body says why.",
        "4XX" => {
            "The request is invalid: the body names field, rule and value. 429: the server is \
                  overloaded; `Retry-After` says when to retry."
        }
        _ => "The server failed; the body says how.",
    }
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// Returns a page that shows this description. It loads nothing from other hosts.
#[utoipa::path(
    get, path = "/docs", tag = "operations",
    responses((status = 200, body = String, content_type = "text/html"))
)]
pub(super) async fn page() -> Html<&'static str> {
    Html(include_str!("../docs.html"))
}

#[cfg(all(test, feature = "kserve"))]
mod tests {
    use super::*;

    #[test]
    fn examples_are_of_routes_and_schemas_that_exist() {
        let api = describe(&RouterConfig::new("penstock"));
        let examples: Value = serde_json::from_str(EXAMPLES).unwrap();
        for (path, _) in entries(&examples["bodies"]) {
            assert!(api["paths"].get(path).is_some(), "{path}");
        }
        for (schema, _) in entries(&examples["fields"]) {
            assert!(
                api["components"]["schemas"].get(schema).is_some(),
                "{schema}"
            );
        }
    }
}
