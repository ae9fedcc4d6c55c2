//! Tools for chat templates that do not support them. The tools are described in the system message
//! or, if the template rejects one, in the first user message. Calls and results become text.

use penstock_request::error::ApiError;
use serde_json::Value;

use super::{Chat, ChatMessage, tool_calls};
use crate::tool_parsers::ToolFormat;

/// The message that describes the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolPromptPosition {
    System,
    FirstUser,
}

/// Whether a message needs a template that supports tools.
pub(super) fn uses_tools(message: &ChatMessage) -> bool {
    message.tool_calls.is_some() || message.role == "tool"
}

/// Returns the conversation for a template that does not support tools.
pub(super) fn with_tool_prompt(
    chat: &Chat,
    position: ToolPromptPosition,
) -> Result<Chat, ApiError> {
    let tools = chat.parser_options.tools.as_ref();
    let format = tools.map_or(ToolFormat::Hermes, |(format, _)| *format);
    let mut messages = Vec::with_capacity(chat.messages.len() + 1);
    if !chat.messages.iter().any(ChatMessage::is_system) {
        messages.extend(
            chat.system
                .as_deref()
                .map(|text| text_message("system", text)),
        );
    }
    for (index, message) in chat.messages.iter().enumerate() {
        push_message(message, (index, format), &mut messages)?;
    }
    if let Some(tools) = &chat.tools {
        insert_tool_prompt(
            &tool_prompt_text(chat, tools, format)?,
            position,
            &mut messages,
        );
    }
    Ok(Chat {
        messages,
        system: None,
        tools: None,
        ..chat.clone()
    })
}

fn text_message(role: &str, text: &str) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content: Some(text.to_owned()),
        ..ChatMessage::default()
    }
}

/// Returns the introduction and one line of JSON per tool.
fn tool_prompt_text(chat: &Chat, tools: &str, format: ToolFormat) -> Result<String, ApiError> {
    let wrong = |error| ApiError::validation("tools", format!("`tools` cannot be used: {error}"));
    let tools: Vec<Value> = serde_json::from_str(tools).map_err(wrong)?;
    let mut text = chat.tool_prompt.clone().unwrap_or_else(|| {
        let call = format.write_calls(&[("name", r#"{"parameter": "value"}"#)]);
        format!(
            "You can call functions. Each is described by a line of JSON below. To call one, answer \
             with\n{call}\nand nothing else. Its result comes in the next message."
        )
    });
    for tool in tools {
        text.push('\n');
        text.push_str(&tool.to_string());
    }
    Ok(text)
}

/// Inserts the introduction at `position`.
fn insert_tool_prompt(text: &str, position: ToolPromptPosition, messages: &mut Vec<ChatMessage>) {
    match position {
        ToolPromptPosition::System => {
            match messages.first_mut().filter(|first| first.is_system()) {
                Some(first) => join(first, text),
                None => messages.insert(0, text_message("system", text)),
            }
        }
        ToolPromptPosition::FirstUser => {
            match messages.iter_mut().find(|message| message.role == "user") {
                Some(user) => {
                    user.parts.clear();
                    let said = user.content.take().unwrap_or_default();
                    user.content = Some(format!("{text}\n\n{said}"));
                }
                None => messages.insert(0, text_message("user", text)),
            }
        }
    }
}

fn join(message: &mut ChatMessage, text: &str) {
    message.parts.clear();
    let said = message.content.get_or_insert_default();
    if !said.is_empty() {
        said.push_str("\n\n");
    }
    said.push_str(text);
}

/// Appends a message. A result becomes a user message, because the template may know no other role.
/// Consecutive results, and a user message after them, are joined into one message.
fn push_message(
    message: &ChatMessage,
    (index, format): (usize, ToolFormat),
    out: &mut Vec<ChatMessage>,
) -> Result<(), ApiError> {
    let after_result = index > 0 && out.last().is_some_and(|last| last.role == "user");
    let mut message = message.clone();
    if message.role == "tool" {
        let result = message.content.take().unwrap_or_default();
        message = text_message(
            "user",
            &format!("<tool_response>\n{result}\n</tool_response>"),
        );
    } else if let Some(calls) = message.tool_calls.take() {
        let written = calls_text(&calls, format).ok_or_else(|| {
            let rule = format!("`messages[{index}].tool_calls` cannot be used");
            ApiError::validation("messages", rule)
        })?;
        join(&mut message, &written);
    }
    match out.last_mut() {
        Some(last) if after_result && message.role == "user" && is_result(last) => {
            join(last, message.content.as_deref().unwrap_or_default());
        }
        _ => out.push(message),
    }
    Ok(())
}

fn is_result(message: &ChatMessage) -> bool {
    let text = message.content.as_deref();
    text.is_some_and(|text| text.starts_with("<tool_response>"))
}

/// Returns a message's calls as the model writes them.
fn calls_text(calls: &str, format: ToolFormat) -> Option<String> {
    let calls = tool_calls(calls).ok()?;
    let calls: Vec<(String, String)> = calls
        .as_array()?
        .iter()
        .map(|call| {
            let function = call.get("function")?;
            let name = function.get("name")?.as_str()?.to_owned();
            let arguments = function.get("arguments").map(Value::to_string);
            Some((name, arguments.unwrap_or_else(|| "{}".to_owned())))
        })
        .collect::<Option<_>>()?;
    let pairs: Vec<(&str, &str)> = calls
        .iter()
        .map(|(n, a)| (n.as_str(), a.as_str()))
        .collect();
    Some(format.write_calls(&pairs))
}
