//! Chat templates: they render messages to the prompt's text.

mod jinja;
mod template;
mod template_sandbox;
mod tool_prompt;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::template::ChatTemplate;
pub(crate) use self::template_sandbox::TemplateSandbox;
pub use self::template_sandbox::{MOST_TEMPLATE, RequestTemplates, render_job};
use crate::tool_parsers::OutputParserOptions;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// The role. Any string; the template decides which roles it accepts.
    pub role: String,
    /// The text; `None` only beside `tool_calls`.
    pub content: Option<String>,
    /// The texts of the content's parts, if it came in parts; joined, they are `content`.
    #[serde(default)]
    pub parts: Vec<String>,
    /// The reasoning that preceded the content, for templates that show it.
    pub reasoning_content: Option<String>,
    /// The speaker's name, for templates that show it.
    pub name: Option<String>,
    /// An assistant's tool calls: a JSON list, parsed when the chat is rendered.
    pub tool_calls: Option<String>,
    /// The id of the call that a tool message answers.
    pub tool_call_id: Option<String>,
}

/// What follows the last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GenerationPrompt {
    /// The opening of an assistant message: the model answers.
    #[default]
    Add,
    /// Nothing: the prompt ends where the template ends.
    Omit,
    /// Nothing: the last message stays open and the model continues it.
    ContinueFinalMessage,
}

/// A conversation to render.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// The messages in order; not empty.
    pub messages: Vec<ChatMessage>,
    /// What follows the messages.
    pub generation_prompt: GenerationPrompt,
    /// The server's system prompt for conversations without a system message.
    pub system: Option<Arc<str>>,
    /// The introduction to the tools for templates that know none. Default: how to call them.
    pub tool_prompt: Option<String>,
    /// The tools: a JSON list, parsed when the chat is rendered.
    pub tools: Option<String>,
    /// Additional variables of the template: a JSON object, parsed when the chat is rendered.
    pub variables: Option<String>,
    /// Additional variables that only some templates use.
    pub optional_variables: Vec<TemplateVariable>,
    /// The client's own template, rendered in a sandbox process.
    pub template: Option<String>,
    /// The prompt's text, once the client's own template has been rendered.
    pub rendered_prompt: Option<String>,
    /// Text that the reply's content repeats before the model's text.
    pub echo_prefix: Option<String>,
    /// How to parse the output. Rendering determines whether it begins inside reasoning.
    pub parser_options: OutputParserOptions,
}

/// A variable that only some templates use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateVariable {
    /// The name in templates.
    pub name: String,
    /// The value as JSON.
    pub json: String,
    /// Whether the variable may be omitted for a template that does not use it, because its value
    /// requests the default. Otherwise such a request is refused.
    pub neutral: bool,
}

impl TemplateVariable {
    /// Creates the variable for the reasoning effort. `thinks`: whether the model has a reasoning
    /// format.
    pub fn effort(effort: &str, thinks: bool) -> Self {
        Self {
            neutral: effort == MEDIUM || (effort == "none" && !thinks),
            ..Self::required(
                REASONING_EFFORT,
                serde_json::Value::from(effort).to_string(),
            )
        }
    }

    /// Creates the variable for the verbosity of the reply.
    pub fn verbosity(verbosity: &str) -> Self {
        Self {
            neutral: verbosity == MEDIUM,
            ..Self::required("verbosity", serde_json::Value::from(verbosity).to_string())
        }
    }

    /// Creates the variable that enables reasoning. `thinks`: whether the model has a reasoning
    /// format.
    pub fn thinking(wanted: bool, thinks: bool) -> Self {
        Self {
            neutral: wanted == thinks,
            ..Self::required(THINKING, wanted.to_string())
        }
    }

    /// Creates a variable that may not be omitted.
    pub fn required(name: &str, json: String) -> Self {
        Self {
            name: name.to_owned(),
            json,
            neutral: false,
        }
    }
}

/// The variable of chat templates for the reasoning effort.
pub const REASONING_EFFORT: &str = "reasoning_effort";
/// The variable of chat templates that enables reasoning.
const THINKING: &str = "enable_thinking";
/// The default effort and verbosity of OpenAI's models.
const MEDIUM: &str = "medium";

impl Chat {
    /// Returns the approximate size of the chat's text in bytes, which determines the cost of
    /// rendering.
    pub fn size(&self) -> usize {
        let messages = self.messages.iter().map(ChatMessage::size);
        let texts = [
            &self.tools,
            &self.variables,
            &self.tool_prompt,
            &self.template,
            &self.rendered_prompt,
        ];
        let texts = texts.into_iter().flatten().chain(&self.echo_prefix).chain(
            self.optional_variables
                .iter()
                .map(|variable| &variable.json),
        );
        messages.chain(texts.map(String::len)).sum()
    }
}

/// Marks the end of a message that stays open. It consists of private-use characters, which no
/// template writes, trims or escapes. A search for the content itself could match later text, such
/// as the "<" of `<|im_end|>`.
const CONTENT_END_MARK: &str = "\u{E000}\u{E0A5}\u{E000}";

const SYSTEM: &str = "system";
/// The newer name of the role `system`.
const DEVELOPER: &str = "developer";

impl ChatMessage {
    /// Whether the role is `system` or its newer name.
    fn is_system(&self) -> bool {
        [SYSTEM, DEVELOPER].contains(&self.role.as_str())
    }

    /// Returns the approximate size in bytes, including the text that a template adds.
    fn size(&self) -> usize {
        const AROUND: usize = 64;
        let texts = [
            &self.content,
            &self.reasoning_content,
            &self.name,
            &self.tool_calls,
            &self.tool_call_id,
        ];
        let parts = self.parts.iter().map(String::len);
        let texts = texts.into_iter().flatten().map(String::len).chain(parts);
        AROUND + self.role.len() + texts.sum::<usize>()
    }
}

/// Returns a call in the form of `ChatMessage::tool_calls`. `arguments` is JSON: an object, or a
/// string that contains one.
pub fn tool_call_json(id: Option<String>, name: String, arguments: &str) -> String {
    use serde_json::Value;
    let id = id.map_or_else(String::new, |id| format!("\"id\":{},", Value::from(id)));
    let name = Value::from(name);
    format!(
        "{{{id}\"type\":\"function\",\"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}"
    )
}

/// Parses a message's calls. Clients send arguments as JSON in a string; the result has objects.
fn tool_calls(json: &str) -> Result<serde_json::Value, serde_json::Error> {
    let mut calls: serde_json::Value = serde_json::from_str(json)?;
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let text = arguments.as_str();
        let parsed = text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        if let Some(object) = parsed.filter(serde_json::Value::is_object) {
            *arguments = object;
        }
    }
    Ok(calls)
}
