//! Converts items to messages of a conversation.

use penstock_request::error::ApiError;
use penstock_text::chat::{ChatMessage, GenerationPrompt, tool_call_json};
use serde_json::Value;

use crate::openai::wire::items::{Item, ItemKind, Role, Status, joined};
use crate::strict::StringOrList;

/// The messages so far. Consecutive items of the assistant form one message: its reasoning, its
/// text and its calls.
#[derive(Default)]
struct Turns {
    done: Vec<ChatMessage>,
    assistant: AssistantTurn,
}

/// The assistant's message in progress.
#[derive(Default)]
struct AssistantTurn {
    reasoning: Option<String>,
    content: Option<String>,
    calls: Vec<String>,
}

/// Returns the messages of a request after those of `earlier`, and how the prompt ends.
pub(super) fn turns(
    instructions: Option<String>,
    earlier: Vec<Item>,
    input: StringOrList<Item>,
) -> Result<(Vec<ChatMessage>, GenerationPrompt), ApiError> {
    let mut turns = Turns::default();
    if let Some(text) = instructions {
        turns.add("system", text);
    }
    for item in earlier {
        turns.take(item, "previous_response_id")?;
    }
    let items = match input {
        StringOrList::Text(text) => {
            turns.add("user", text);
            return Ok((turns.done, GenerationPrompt::Add));
        }
        StringOrList::List(items) => items,
    };
    let Some(last) = items.last() else {
        return Err(ApiError::at("input", "cannot be empty"));
    };
    let turn = if is_open(last) {
        GenerationPrompt::ContinueFinalMessage
    } else {
        GenerationPrompt::Add
    };
    for (index, item) in items.into_iter().enumerate() {
        turns.take(item, &format!("input[{index}]"))?;
    }
    turns.end();
    Ok((turns.done, turn))
}

/// Returns whether the output continues an item: an assistant's message that was cut off.
fn is_open(item: &Item) -> bool {
    item.kind() == ItemKind::Message
        && item.role == Some(Role::Assistant)
        && matches!(item.status, Some(Status::Incomplete | Status::InProgress))
}

impl Turns {
    fn take(&mut self, item: Item, at: &str) -> Result<(), ApiError> {
        match item.kind() {
            ItemKind::Message => self.message(item, at),
            ItemKind::FunctionCall => self.call(item, at),
            ItemKind::FunctionCallOutput => self.result(item, at),
            ItemKind::Reasoning => {
                if let Some(content) = item.content {
                    self.add_reasoning(&joined(content));
                }
                Ok(())
            }
        }
    }

    fn message(&mut self, item: Item, at: &str) -> Result<(), ApiError> {
        let content = item.content.map(joined);
        let content = content.ok_or_else(|| missing(at, "content"))?;
        match item.role.ok_or_else(|| missing(at, "role"))? {
            Role::User => self.add("user", content),
            Role::System => self.add("system", content),
            Role::Developer => self.add("developer", content),
            Role::Assistant => self.add_assistant_text(&content),
        }
        Ok(())
    }

    fn call(&mut self, item: Item, at: &str) -> Result<(), ApiError> {
        let id = item.call_id.ok_or_else(|| missing(at, "call_id"))?;
        let name = item.name.ok_or_else(|| missing(at, "name"))?;
        let arguments = item.arguments.ok_or_else(|| missing(at, "arguments"))?;
        let arguments = Value::from(arguments).to_string();
        self.assistant
            .calls
            .push(tool_call_json(Some(id), name, &arguments));
        Ok(())
    }

    fn result(&mut self, item: Item, at: &str) -> Result<(), ApiError> {
        let id = item.call_id.ok_or_else(|| missing(at, "call_id"))?;
        let output = item.output.map(joined);
        self.add("tool", output.ok_or_else(|| missing(at, "output"))?);
        if let Some(turn) = self.done.last_mut() {
            turn.tool_call_id = Some(id);
        }
        Ok(())
    }

    /// Adds reasoning, which comes first in a message.
    fn add_reasoning(&mut self, text: &str) {
        if self.assistant.content.is_some() || !self.assistant.calls.is_empty() {
            self.end();
        }
        self.assistant
            .reasoning
            .get_or_insert_default()
            .push_str(text);
    }

    /// Adds text. After calls it belongs to their message; after text it starts a new one.
    fn add_assistant_text(&mut self, text: &str) {
        if self.assistant.calls.is_empty() && self.assistant.content.is_some() {
            self.end();
        }
        self.assistant
            .content
            .get_or_insert_default()
            .push_str(text);
    }

    fn add(&mut self, role: &str, content: String) {
        self.end();
        self.done.push(ChatMessage {
            role: role.to_owned(),
            content: Some(content),
            ..ChatMessage::default()
        });
    }

    /// Ends the assistant's message, if any. Reasoning alone is not a message.
    fn end(&mut self) {
        let AssistantTurn {
            reasoning,
            content,
            calls,
        } = std::mem::take(&mut self.assistant);
        if content.is_none() && calls.is_empty() {
            return;
        }
        self.done.push(ChatMessage {
            role: "assistant".to_owned(),
            content,
            reasoning_content: reasoning,
            tool_calls: (!calls.is_empty()).then(|| format!("[{}]", calls.join(","))),
            ..ChatMessage::default()
        });
    }
}

fn missing(at: &str, field: &str) -> ApiError {
    ApiError::at(&format!("{at}.{field}"), "is missing")
}
