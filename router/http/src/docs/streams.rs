//! Schemas of the events of streaming routes.

use serde_json::{Value, json};

/// Adds the events to the responses of the routes.
pub(super) fn describe(paths: &mut Value) {
    for (path, schema) in [
        ("/v1/messages", messages()),
        (
            "/v1/chat/completions",
            chunks("chat.completion.chunk", "delta"),
        ),
        ("/v1/completions", chunks("text_completion", "text")),
        ("/v1/responses", responses()),
    ] {
        paths[path]["post"]["responses"]["200"]["content"]["text/event-stream"] =
            json!({ "schema": schema });
    }
}

fn messages() -> Value {
    let index = json!({"type": "integer", "minimum": 0});
    let object = json!({"type": "object", "required": ["type"]});
    let error = json!({"type": "object", "required": ["type", "message"]});
    let delta = json!({"type": "object", "required": ["stop_reason", "stop_sequence"]});
    let usage = json!({
        "type": "object", "required": ["output_tokens"],
        "properties": {"output_tokens": {"type": "integer", "minimum": 0}},
    });
    let message = json!({"$ref": "#/components/schemas/MessageResponse"});
    json!({
        "description": "The data of one event, whose name is its `type`.",
        "oneOf": [
            event("message_start", &json!({"message": message})),
            event("ping", &json!({})),
            event("content_block_start", &json!({"index": index, "content_block": object})),
            event("content_block_delta", &json!({"index": index, "delta": object})),
            event("content_block_stop", &json!({"index": index})),
            event("message_delta", &json!({"delta": delta, "usage": usage})),
            event("message_stop", &json!({})),
            event("error", &json!({"error": error})),
        ],
    })
}

/// Returns the schema of an event; all `fields` are required.
fn event(name: &str, fields: &Value) -> Value {
    let mut properties = json!({"type": {"type": "string", "enum": [name]}});
    let mut required = vec![json!("type")];
    for (field, schema) in super::entries(fields) {
        required.push(json!(field));
        properties[field] = schema.clone();
    }
    json!({"type": "object", "required": required, "properties": properties})
}

/// Returns the schema of the chunks of OpenAI's completions, and of the error that may end them.
/// The last event is `[DONE]`.
fn chunks(object: &str, text: &str) -> Value {
    let index = json!({"type": "integer", "minimum": 0});
    let choice = json!({
        "type": "object",
        "required": ["index", text, "finish_reason"],
        "properties": {
            "index": index,
            text: {"type": if text == "text" { "string" } else { "object" }},
            "finish_reason": {"type": ["string", "null"]},
        },
    });
    let chunk = json!({
        "type": "object",
        "required": ["id", "object", "created", "model", "choices"],
        "properties": {
            "object": {"type": "string", "enum": [object]},
            "choices": {"type": "array", "items": choice},
        },
    });
    let error = json!({"$ref": "#/components/schemas/ErrorBody"});
    json!({"description": "The data of one event; that of the last is `[DONE]`.", "oneOf": [chunk, error]})
}

fn responses() -> Value {
    json!({
        "description": "The data of one event, whose name is its `type`.",
        "type": "object",
        "required": ["type", "sequence_number"],
        "properties": {
            "type": {"type": "string"},
            "sequence_number": {"type": "integer", "minimum": 0},
        },
    })
}
