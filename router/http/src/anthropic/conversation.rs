//! Converts Anthropic's messages for the chat template.

use penstock_request::error::ApiError;
use penstock_request::grammar_spec::OutputConstraint;
use penstock_text::chat::{Chat, ChatMessage, GenerationPrompt, REASONING_EFFORT, tool_call_json};
use penstock_text::generation::Generator;
use penstock_text::tool_parsers::{Tool, ToolChoiceMode, ToolSet};
use serde_json::{Map, Value, json};

use super::wire::{
    Block, BlockKind, Content, FIELDS, Message, MessagesRequest, OutputConfig, Role, Thinking,
};
use crate::parsed_output::{ToolPlan, plan_tools};
use crate::strict::JsonText;

/// Returns the conversation of a request, and the grammar of its output, if any.
pub(super) fn conversation(
    body: &mut MessagesRequest,
    generator: &Generator,
) -> Result<(Chat, Option<OutputConstraint>), ApiError> {
    let tool_set = tool_set(body)?;
    let variables = template_variables(body);
    let format = body.output_config.take().map(OutputConfig::into_grammar);
    let grammar = format.transpose()?.flatten();
    let ToolPlan {
        tools,
        parser_options,
        grammar,
    } = plan_tools(tool_set.as_ref(), generator, grammar)?;
    let mut messages = Vec::new();
    if let Some(system) = body.system.take() {
        messages.push(turn("system", texts(system, "system")?));
    }
    for (index, message) in std::mem::take(&mut body.messages).into_iter().enumerate() {
        let at = format!("messages[{index}]");
        match message.role {
            Role::User => user(message, &at, &mut messages)?,
            Role::Assistant => messages.push(assistant(message, &at)?),
        }
    }
    let open = messages
        .last()
        .is_some_and(|m| m.role == "assistant" && m.content.is_some() && m.tool_calls.is_none());
    let chat = Chat {
        messages,
        generation_prompt: if open {
            GenerationPrompt::ContinueFinalMessage
        } else {
            GenerationPrompt::Add
        },
        tools,
        variables,
        parser_options,
        ..Chat::default()
    };
    Ok((chat, grammar))
}

/// Returns the variables for the chat template, a JSON object; `None` if there are none. What a template does
/// not use has no effect, as Anthropic's clients send the effort whatever the model is.
fn template_variables(body: &MessagesRequest) -> Option<String> {
    let thinks = body.thinking.as_ref().map(Thinking::is_enabled);
    let effort = body.output_config.as_ref().and_then(|config| config.effort);
    let variables = [
        thinks.map(|on| ("enable_thinking", json!(on))),
        effort.map(|effort| (REASONING_EFFORT, json!(effort))),
    ];
    let found: Map<String, Value> = variables
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    (!found.is_empty()).then(|| Value::from(found).to_string())
}

/// Returns the tools of a request, validated; `None` if there are none.
fn tool_set(body: &mut MessagesRequest) -> Result<Option<ToolSet>, ApiError> {
    let tools = body.tools.take().unwrap_or_default();
    let choice = body.tool_choice.take();
    let single = choice
        .as_ref()
        .and_then(|choice| choice.disable_parallel_tool_use);
    let choice = choice.map_or(Ok(ToolChoiceMode::Auto), |choice| choice.into_choice())?;
    if tools.is_empty() {
        if matches!(choice, ToolChoiceMode::Required | ToolChoiceMode::Named(_)) {
            let rule = "must be `auto` or `none` when there are no `tools`";
            return Err(ApiError::at("tool_choice.type", rule));
        }
        return Ok(None);
    }
    let tool_set = ToolSet {
        tools: tools.into_iter().map(Tool::from).collect(),
        choice,
        parallel: single != Some(true),
        fields: FIELDS,
    };
    tool_set.check()?;
    Ok(Some(tool_set))
}

fn turn(role: &str, content: String) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content: Some(content),
        ..ChatMessage::default()
    }
}

/// Appends a user's turn. Tool results become turns of their own, in order.
fn user(message: Message, at: &str, out: &mut Vec<ChatMessage>) -> Result<(), ApiError> {
    let blocks = match message.content {
        Content::Text(text) => {
            out.push(turn("user", text));
            return Ok(());
        }
        Content::List(blocks) => blocks,
    };
    let mut said: Option<String> = None;
    for (index, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}.content[{index}]");
        if block.r#type != BlockKind::ToolResult {
            said.get_or_insert_default().push_str(&text(block, &at)?);
            continue;
        }
        out.extend(said.take().map(|text| turn("user", text)));
        let content = block
            .content
            .map(|content| texts(content, &format!("{at}.content")));
        let mut content = content.transpose()?.unwrap_or_default();
        if block.is_error == Some(true) {
            content = failed(content);
        }
        out.push(ChatMessage {
            tool_call_id: Some(
                block
                    .tool_use_id
                    .ok_or_else(|| missing(&at, "tool_use_id"))?,
            ),
            ..turn("tool", content)
        });
    }
    out.extend(said.map(|text| turn("user", text)));
    Ok(())
}

/// Returns the result of a failed tool. Chat templates have no field for failures, so the text
/// begins with `Error` unless it does already.
fn failed(text: String) -> String {
    const WORD: &str = "Error";
    let start = text.trim_start();
    let first = start.split(|c: char| !c.is_alphabetic()).next();
    match first {
        Some(first) if first.eq_ignore_ascii_case(WORD) => text,
        _ if text.is_empty() => WORD.to_owned(),
        _ => format!("{WORD}: {text}"),
    }
}

fn assistant(message: Message, at: &str) -> Result<ChatMessage, ApiError> {
    let blocks = match message.content {
        Content::Text(text) => return Ok(turn("assistant", text)),
        Content::List(blocks) => blocks,
    };
    let mut content: Option<String> = None;
    let mut reasoning: Option<String> = None;
    let mut calls = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}.content[{index}]");
        match block.r#type {
            BlockKind::ToolUse => calls.push(call(block, &at)?),
            BlockKind::Thinking => {
                let text = block.thinking.ok_or_else(|| missing(&at, "thinking"))?;
                reasoning.get_or_insert_default().push_str(&text);
            }
            BlockKind::RedactedThinking => {}
            _ => content.get_or_insert_default().push_str(&text(block, &at)?),
        }
    }
    if content.is_none() && calls.is_empty() {
        return Err(ApiError::at(
            &format!("{at}.content"),
            "must hold a `text` or a `tool_use`",
        ));
    }
    Ok(ChatMessage {
        role: "assistant".to_owned(),
        content,
        reasoning_content: reasoning,
        tool_calls: (!calls.is_empty()).then(|| format!("[{}]", calls.join(","))),
        ..ChatMessage::default()
    })
}

/// Returns a tool call in the format of the chat template.
fn call(block: Block, at: &str) -> Result<String, ApiError> {
    let id = block.id.ok_or_else(|| missing(at, "id"))?;
    let name = block.name.ok_or_else(|| missing(at, "name"))?;
    let input = block
        .input
        .map_or_else(|| "{}".to_owned(), JsonText::into_string);
    if !input.starts_with('{') {
        return Err(ApiError::at(&format!("{at}.input"), "must be an object"));
    }
    Ok(tool_call_json(Some(id), name, &input))
}

/// Returns a text, or the joined texts of a list of text blocks.
fn texts(content: Content, at: &str) -> Result<String, ApiError> {
    match content {
        Content::Text(text) => Ok(text),
        Content::List(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            blocks
                .map(|(index, block)| text(block, &format!("{at}[{index}]")))
                .collect()
        }
    }
}

fn text(block: Block, at: &str) -> Result<String, ApiError> {
    match (block.r#type, block.text) {
        (BlockKind::Text, Some(text)) => Ok(text),
        (BlockKind::Text, None) => Err(missing(at, "text")),
        _ => Err(ApiError::at(&format!("{at}.type"), "must be `text` here")),
    }
}

fn missing(at: &str, field: &str) -> ApiError {
    ApiError::at(&format!("{at}.{field}"), "is missing")
}
