//! Messages as chat templates receive them.

use minijinja::value::Value;
use penstock_request::error::ApiError;

use super::jinja::{self, TemplateNames};
use super::{CONTENT_END_MARK, Chat, ChatMessage, DEVELOPER, GenerationPrompt, SYSTEM};

/// The form in which a template takes a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentShape {
    /// A string.
    Text,
    /// A string, or a list of parts if the content came in parts.
    Either,
    /// A list of parts only.
    Parts,
}

impl ContentShape {
    fn from_names(names: &TemplateNames) -> Self {
        match (names.loops_over_content, names.checks_for_text) {
            (false, _) => Self::Text,
            (true, true) => Self::Either,
            (true, false) => Self::Parts,
        }
    }

    /// Returns the content, followed by `CONTENT_END_MARK` if `open`.
    fn value(self, text: &str, parts: &[String], open: bool) -> Value {
        let part = |text: String| {
            Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text))])
        };
        let marked = |text: &str, open: bool| {
            if open {
                format!("{text}{CONTENT_END_MARK}")
            } else {
                text.to_owned()
            }
        };
        let in_parts = match self {
            Self::Text => false,
            Self::Either => !parts.is_empty(),
            Self::Parts => true,
        };
        if !in_parts {
            return Value::from(marked(text, open));
        }
        if parts.is_empty() {
            return Value::from(vec![part(marked(text, open))]);
        }
        let last = parts.len() - 1;
        let parts = parts.iter().enumerate();
        parts
            .map(|(index, text)| part(marked(text, open && index == last)))
            .collect()
    }
}

/// Returns the messages. `CONTENT_END_MARK` ends the last one if it stays open. For templates that
/// do not know the role `developer`, the role becomes `system`.
pub(super) fn messages(
    chat: &Chat,
    names: &TemplateNames,
    knows_developer: bool,
) -> Result<Value, ApiError> {
    let content = ContentShape::from_names(names);
    let mut messages = Vec::with_capacity(chat.messages.len() + 1);
    let system = chat.system.as_deref();
    if let Some(text) = system.filter(|_| !chat.messages.iter().any(ChatMessage::is_system)) {
        let entries = [
            ("role", Value::from(SYSTEM)),
            ("content", content.value(text, &[], false)),
        ];
        messages.push(Value::from_pairs(entries));
    }
    for (index, message) in chat.messages.iter().enumerate() {
        let open = chat.generation_prompt == GenerationPrompt::ContinueFinalMessage
            && index + 1 == chat.messages.len();
        let mut entries: Vec<(&str, Value)> = Vec::with_capacity(8);
        if let Some(thought) = &message.reasoning_content {
            // gpt-oss's template reads reasoning under this name.
            entries.push(("thinking", thought.into()));
        }
        let role = match message.role.as_str() {
            DEVELOPER if !knows_developer => SYSTEM,
            role => role,
        };
        entries.push(("role", role.into()));
        // Absent fields are omitted, because many templates print a none as `None`.
        if let Some(text) = &message.content {
            entries.push(("content", content.value(text, &message.parts, open)));
        }
        let texts = [
            ("reasoning_content", &message.reasoning_content),
            ("name", &message.name),
            ("tool_call_id", &message.tool_call_id),
        ];
        for (name, text) in texts {
            entries.extend(text.as_ref().map(|text| (name, text.into())));
        }
        if let Some(calls) = &message.tool_calls {
            let calls = tool_calls(calls).map_err(|error| {
                let rule = format!("`messages[{index}].tool_calls` cannot be used: {error}");
                ApiError::validation("messages", rule)
            })?;
            entries.push(("tool_calls", calls));
        }
        messages.push(Value::from_pairs(entries));
    }
    Ok(Value::from(messages))
}

/// Parses the calls' arguments: templates expect an object, clients send JSON in a string.
fn tool_calls(json: &str) -> Result<Value, serde_json::Error> {
    let calls = jinja::from_json(json)?;
    let Ok(list) = calls.try_iter() else {
        return Ok(calls);
    };
    Ok(list
        .map(|call| with_item(&call, "function", with_parsed_arguments))
        .collect())
}

fn with_parsed_arguments(function: &Value) -> Value {
    with_item(function, "arguments", |arguments| {
        let parsed = arguments
            .as_str()
            .and_then(|text| jinja::from_json(text).ok());
        let object = parsed.filter(|value| value.kind() == minijinja::value::ValueKind::Map);
        object.unwrap_or_else(|| arguments.clone())
    })
}

/// Returns a copy of `dict` with the item `name` changed, if it exists.
fn with_item(dict: &Value, name: &str, change: impl Fn(&Value) -> Value) -> Value {
    let Some(entries) = dict.as_object().and_then(|object| object.try_iter_pairs()) else {
        return dict.clone();
    };
    let changed = entries.map(|(key, value)| match key.as_str() {
        Some(key) if key == name => (Value::from(key), change(&value)),
        _ => (key, value),
    });
    Value::from_pairs(changed)
}
