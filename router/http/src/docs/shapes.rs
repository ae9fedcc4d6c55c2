//! Schemas of fields that accept more than one type.

use penstock_request::validate::MAX_STOP_BYTES;
use serde_json::{Value, json};

use super::bounds::{stops, text};
use crate::config::RouterConfig;
use crate::openai::wire::chat::{REFUSAL, TEXT};
use crate::openai::wire::items::{Item, Part};
use crate::openai::wire::one_or_many::MOST_PROMPTS;
use crate::strict::StringOrListEntry;
use crate::{anthropic, openai};

/// A schema, its field, and the schemas that the field accepts.
pub(super) type Shaped = (&'static str, &'static str, Value);

/// Returns all fields that accept more than one type.
pub(super) fn all(config: &RouterConfig) -> Vec<Shaped> {
    let schema = json!([
        {"type": "object"}, {"type": "string", "minLength": 1}, {"type": "boolean"}, {"type": "null"}
    ]);
    let early =
        json!([{"type": "boolean"}, {"type": "string", "enum": ["never"]}, {"type": "null"}]);
    let keep = json!([
        {"type": "integer", "enum": [-1]},
        {"type": "integer", "minimum": 1, "maximum": i64::MAX},
        {"type": "null"}
    ]);
    let blocks = listed::<anthropic::wire::Block>("AnthropicBlock", 0);
    let arguments = json!([{"type": "string"}, {"type": "object"}, {"type": "null"}]);
    let shapes = vec![
        ("Message", "content", parts()),
        ("AnthropicMessage", "content", blocks.clone()),
        ("AnthropicBlock", "content", or_null(blocks.clone())),
        ("MessagesRequest", "system", or_null(blocks)),
        ("CompletionRequest", "prompt", prompts(config)),
        ("ResponsesRequest", "input", listed::<Item>("InputItem", 1)),
        ("ResponsesRequest", "stop", stop(config)),
        ("ResponsesRequest", "tool_choice", flat_choice()),
        ("ResponsesRequest", "guided_json", schema.clone()),
        ("ResponsesRequest", "json_schema", schema.clone()),
        ("ResponsesRequest", "early_stopping", early.clone()),
        ("ResponsesRequest", "truncate_prompt_tokens", keep.clone()),
        (
            "InputItem",
            "content",
            or_null(listed::<Part>("InputPart", 0)),
        ),
        (
            "InputItem",
            "output",
            or_null(listed::<Part>("InputPart", 0)),
        ),
        ("TextFormat", "schema", schema.clone()),
        ("CompletionRequest", "stop", stop(config)),
        ("ChatRequest", "stop", stop(config)),
        ("ChatRequest", "tool_choice", tool_choice()),
        ("ChatRequest", "function_call", function_call()),
        ("ChatRequest", "guided_json", schema.clone()),
        ("ChatRequest", "json_schema", schema.clone()),
        ("CompletionRequest", "guided_json", schema.clone()),
        ("CompletionRequest", "json_schema", schema.clone()),
        ("StructuredOutputs", "json", schema.clone()),
        ("NamedSchema", "schema", schema.clone()),
        ("Grammar", "value", schema.clone()),
        ("ResponseFormat", "schema", schema.clone()),
        ("ResponseFormat", "value", schema),
        ("ChatRequest", "early_stopping", early.clone()),
        ("CompletionRequest", "early_stopping", early.clone()),
        ("GenerateParameters", "early_stopping", early),
        ("ChatRequest", "truncate_prompt_tokens", keep.clone()),
        ("CompletionRequest", "truncate_prompt_tokens", keep),
        ("CalledFunction", "arguments", arguments),
        ("RequestEcho", "tool_choice", flat_choice()),
    ];
    #[cfg(feature = "kserve")]
    let shapes = [shapes, super::kserve::shapes()].concat();
    shapes
}

/// Replaces the schema of a field by these alternatives.
pub(super) fn take(property: &mut Value, shapes: Value) {
    for word in ["type", "items", "format", "minimum"] {
        property
            .as_object_mut()
            .map(|property| property.remove(word));
    }
    property["anyOf"] = shapes;
}

fn parts() -> Value {
    let part = |kind: &str| {
        let mut properties = json!({"type": {"type": "string", "enum": [kind]}});
        properties[kind] = json!({"type": "string"});
        json!({"type": "object", "required": ["type", kind], "properties": properties})
    };
    json!([{"type": "string"}, {"type": "null"}, {
        "type": "array",
        "maxItems": openai::wire::chat::PartText::MOST,
        "items": {"anyOf": [part(TEXT), part(REFUSAL)]},
    }])
}

/// Returns the alternatives of a field that takes a text or a list of entries with this schema.
fn listed<T: StringOrListEntry>(schema: &str, least: usize) -> Value {
    let mut list = json!({
        "type": "array",
        "maxItems": T::MOST,
        "items": {"$ref": format!("#/components/schemas/{schema}")},
    });
    if least > 0 {
        list["minItems"] = least.into();
    }
    json!([{"type": "string"}, list])
}

fn or_null(mut shapes: Value) -> Value {
    if let Some(shapes) = shapes.as_array_mut() {
        shapes.push(json!({"type": "null"}));
    }
    shapes
}

fn prompts(config: &RouterConfig) -> Value {
    let most = config.max_client_batch_size.min(MOST_PROMPTS);
    let text = json!({"type": "string", "minLength": 1});
    let ids = json!({
        "type": "array", "minItems": 1,
        "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
    });
    let list = |of: &Value| json!({"type": "array", "minItems": 1, "maxItems": most, "items": of});
    json!([text, list(&text), ids, list(&ids)])
}

fn stop(config: &RouterConfig) -> Value {
    let mut one = text(1..=MAX_STOP_BYTES);
    let mut list = stops(config);
    one["type"] = "string".into();
    list["items"]["type"] = "string".into();
    list["type"] = "array".into();
    json!([one, {"type": "null"}, list])
}

fn tool_choice() -> Value {
    json!([
        {"type": "string", "minLength": 1, "description": "`none`, `auto`, `required`, or a function's name."},
        {"type": "null"},
        {"$ref": "#/components/schemas/NamedToolChoice"},
        {"$ref": "#/components/schemas/AllowedToolChoice"},
    ])
}

fn function_call() -> Value {
    json!([
        {"type": "string", "enum": ["none", "auto"]},
        {"type": "null"},
        {"$ref": "#/components/schemas/NamedFunction"},
    ])
}

fn flat_choice() -> Value {
    json!([
        {"type": "string", "enum": ["none", "auto", "required"]},
        {"type": "null"},
        {"$ref": "#/components/schemas/FunctionName"},
        {"$ref": "#/components/schemas/AllowedFunctions"},
    ])
}

/// Corrects what `utoipa` writes: the names of unsigned formats, and an `allOf` where a field with
/// an inlined enum has its own description.
pub(super) fn fix_schema(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(fix_schema),
        Value::Object(words) => {
            words.values_mut().for_each(fix_schema);
            let inner = words
                .get("allOf")
                .and_then(|all| all.as_array()?.first().cloned());
            if let Some(Value::Object(inner)) = inner.filter(|inner| inner["enum"].is_array()) {
                let of_field = words["allOf"][1]["description"].take();
                *words = inner;
                words.insert("description".into(), of_field);
            }
            if let Some(Value::String(format)) = words.get_mut("format") {
                *format = format.replace("u-int", "uint");
            }
        }
        _ => {}
    }
}
