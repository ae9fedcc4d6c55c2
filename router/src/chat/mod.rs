//! Chat templates: messages in, the prompt's text out.

mod jinja;
mod messages;
mod template;
mod template_sandbox;
mod tool_prompt;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::template::ChatTemplate;
pub(crate) use self::template_sandbox::{MOST_TEMPLATE, TemplateSandbox};
pub use self::template_sandbox::{RequestTemplates, render_job};
use crate::tool_parsers::OutputParserOptions;

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Free-form; the template decides which roles it knows.
    pub role: String,
    /// Text; `None` only beside `tool_calls`.
    pub content: Option<String>,
    /// The texts of the content's parts, where it came in parts; joined, they are `content`.
    #[serde(default)]
    pub parts: Vec<String>,
    /// What the model thought before it said that; read by templates that show it.
    pub reasoning_content: Option<String>,
    /// The speaker's name; read by templates that show it.
    pub name: Option<String>,
    /// Calls made by an assistant's turn: a JSON list, parsed only when the turn is rendered.
    pub tool_calls: Option<String>,
    /// Which call a tool's turn answers.
    pub tool_call_id: Option<String>,
}

/// What follows the last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GenerationPrompt {
    /// The opening of an assistant's turn: the model answers.
    #[default]
    Add,
    /// Nothing: the prompt ends where the template ends.
    Omit,
    /// The last message stays open, and the model goes on with it.
    ContinueFinalMessage,
}

/// A conversation to render.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// In order; not empty.
    pub messages: Vec<ChatMessage>,
    /// What follows them.
    pub generation_prompt: GenerationPrompt,
    /// What the system says in a conversation without a system turn; set by the server.
    pub system: Option<Arc<str>>,
    /// What introduces the tools where the template knows none. Default: how to call them.
    pub tool_prompt: Option<String>,
    /// Tools that the model may call: a JSON list, parsed only when the chat is rendered.
    pub tools: Option<String>,
    /// More variables of the template: a JSON object, parsed only when the chat is rendered.
    pub variables: Option<String>,
    /// More variables, which only some templates speak of.
    pub optional_variables: Vec<TemplateVariable>,
    /// The client's own template, rendered apart from the server.
    pub template: Option<String>,
    /// The prompt's text, once that has been rendered.
    pub rendered_prompt: Option<String>,
    /// What the answer's content begins with, before what the model says.
    pub echo_prefix: Option<String>,
    /// How the answer is read; whether it begins in a thought is found when the chat is rendered.
    pub parser_options: OutputParserOptions,
}

/// A variable that only some templates speak of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateVariable {
    /// What templates call it.
    pub name: String,
    /// Its value.
    pub json: String,
    /// Whether a template that does not speak of it may leave it out: its value asks for what would
    /// be done anyway. Else the request is refused there.
    pub neutral: bool,
}

impl TemplateVariable {
    /// How much the model is to think. `thinks`: whether the model shows thoughts.
    pub(crate) fn effort(effort: &str, thinks: bool) -> Self {
        Self {
            neutral: effort == MEDIUM || (effort == "none" && !thinks),
            ..Self::required(
                REASONING_EFFORT,
                serde_json::Value::from(effort).to_string(),
            )
        }
    }

    /// How much the model is to say.
    pub(crate) fn verbosity(verbosity: &str) -> Self {
        Self {
            neutral: verbosity == MEDIUM,
            ..Self::required("verbosity", serde_json::Value::from(verbosity).to_string())
        }
    }

    /// Whether the model is to think. `thinks`: whether it shows thoughts.
    pub(crate) fn thinking(wanted: bool, thinks: bool) -> Self {
        Self {
            neutral: wanted == thinks,
            ..Self::required(THINKING, wanted.to_string())
        }
    }

    /// One that may not be left out.
    pub(crate) fn required(name: &str, json: String) -> Self {
        Self {
            name: name.to_owned(),
            json,
            neutral: false,
        }
    }
}

/// What chat templates call the effort of thinking.
pub(crate) const REASONING_EFFORT: &str = "reasoning_effort";
/// What chat templates call it whether there is any.
const THINKING: &str = "enable_thinking";
/// What OpenAI's models do unless they are told otherwise.
const MEDIUM: &str = "medium";

impl Chat {
    /// Bytes of its text, about: what rendering it will cost.
    pub(crate) fn size(&self) -> usize {
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

/// Stands at the end of a message that stays open: characters for private use, which no template
/// writes, trims or escapes. Looking for the content itself would find it in what follows, such as
/// a "<" in `<|im_end|>`.
const CONTENT_END_MARK: &str = "\u{E000}\u{E0A5}\u{E000}";

const SYSTEM: &str = "system";
/// The newer name of the role `system`.
const DEVELOPER: &str = "developer";

impl ChatMessage {
    /// Whether it is the system's turn, also by its newer name.
    fn is_system(&self) -> bool {
        [SYSTEM, DEVELOPER].contains(&self.role.as_str())
    }

    /// Bytes of its text, about, with what a template writes around it.
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

/// A call as `ChatMessage::tool_calls` lists it; `arguments` are JSON: an object, or a string that holds one.
pub(crate) fn tool_call_json(id: Option<String>, name: String, arguments: &str) -> String {
    use serde_json::Value;
    let id = id.map_or_else(String::new, |id| format!("\"id\":{},", Value::from(id)));
    let name = Value::from(name);
    format!(
        "{{{id}\"type\":\"function\",\"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}"
    )
}

/// An earlier turn's calls, with their arguments as objects; clients send them as JSON in a string.
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
