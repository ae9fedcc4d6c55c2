//! Converts a request's items to JSON for the store.

use serde_json::{Value, json};

use super::store::StoredItem;
use crate::ids::unique;
use crate::openai::wire::items::{Item, ItemKind, Part, Role, Status};
use crate::strict::StringOrList;

impl StoredItem {
    /// Returns the items of a request's `input`.
    pub(super) fn all(input: &StringOrList<Item>) -> Vec<Self> {
        match input {
            StringOrList::Text(text) => vec![Self::from_text(text)],
            StringOrList::List(items) => items.iter().map(Self::from_item).collect(),
        }
    }

    /// Returns a user's message.
    fn from_text(text: &str) -> Self {
        Self::new("msg_", |id| {
            json!({
                "id": id, "type": "message", "role": "user", "status": "completed",
                "content": [{"type": "input_text", "text": text}],
            })
        })
    }

    fn from_item(item: &Item) -> Self {
        let status = match item.status {
            None | Some(Status::Completed) => "completed",
            Some(Status::Incomplete) => "incomplete",
            Some(Status::InProgress) => "in_progress",
        };
        match item.kind() {
            ItemKind::Message => Self::new("msg_", |id| {
                let (role, part) = match item.role {
                    Some(Role::Assistant) => ("assistant", "output_text"),
                    Some(Role::System) => ("system", "input_text"),
                    Some(Role::Developer) => ("developer", "input_text"),
                    Some(Role::User) | None => ("user", "input_text"),
                };
                json!({
                    "id": id, "type": "message", "role": role, "status": status,
                    "content": parts(item.content.as_ref(), part),
                })
            }),
            ItemKind::FunctionCall => Self::new("fc_", |id| {
                json!({
                    "id": id, "type": "function_call", "status": status, "call_id": item.call_id,
                    "name": item.name, "arguments": item.arguments,
                })
            }),
            ItemKind::FunctionCallOutput => Self::new("fco_", |id| {
                let output = match &item.output {
                    Some(StringOrList::Text(text)) => Value::from(text.as_str()),
                    parts_of => parts(parts_of.as_ref(), "input_text"),
                };
                json!({
                    "id": id, "type": "function_call_output", "status": status,
                    "call_id": item.call_id, "output": output,
                })
            }),
            ItemKind::Reasoning => Self::new("rs_", |id| {
                json!({
                    "id": id, "type": "reasoning", "status": status, "summary": [],
                    "content": parts(item.content.as_ref(), "reasoning_text"),
                })
            }),
        }
    }

    fn new(prefix: &str, json: impl FnOnce(&str) -> Value) -> Self {
        let id = unique(prefix);
        let json = json(&id).to_string();
        Self { id, json }
    }
}

/// Returns the parts of a text as JSON, with type `kind`.
fn parts(content: Option<&StringOrList<Part>>, kind: &str) -> Value {
    let part = |text: &str| match kind {
        "output_text" => json!({"type": kind, "text": text, "annotations": []}),
        _ => json!({"type": kind, "text": text}),
    };
    let parts = match content {
        None => Vec::new(),
        Some(StringOrList::Text(text)) => vec![part(text)],
        Some(StringOrList::List(parts)) => parts.iter().map(|each| part(each.text())).collect(),
    };
    Value::Array(parts)
}
