//! A compiled chat template, and messages as templates receive them.

use std::collections::BTreeMap;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind as JinjaKind, context};
use penstock_request::error::{ApiError, ErrorKind};

use super::jinja::{self, TemplateNames};
use super::tool_prompt::{self, ToolPromptPosition};
use super::{
    CONTENT_END_MARK, Chat, ChatMessage, DEVELOPER, GenerationPrompt, REASONING_EFFORT, SYSTEM,
    THINKING, TemplateVariable,
};

/// A compiled chat template with the special tokens that it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    source: String,
    /// The variables that it uses.
    names: TemplateNames,
    /// Whether it writes earlier tool calls.
    writes_tool_calls: bool,
    /// Whether it mentions the role `developer`. A template without it rejects such a message,
    /// drops it, or writes a role that the model was not trained on.
    knows_developer: bool,
}

/// An exception that the template raised.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct TemplateException(String);

const NAME: &str = "chat_template";

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

impl ChatTemplate {
    /// Compiles `source`. `special_tokens` are (name, content), such as (`bos_token`, `<s>`). The
    /// error contains the position in the source.
    pub fn new(source: &str, special_tokens: Vec<(String, String)>) -> Result<Self, Error> {
        let (mut environment, rewritten, names) = jinja::environment(source)?;
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, rewritten)?;
        Ok(Self {
            environment,
            special_tokens,
            source: source.to_owned(),
            names,
            writes_tool_calls: source.contains("tool_calls"),
            knows_developer: source.contains(DEVELOPER),
        })
    }

    /// Returns the template's source as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the special tokens that it may write, as (name, content).
    pub(crate) fn special_tokens(&self) -> &[(String, String)] {
        &self.special_tokens
    }

    /// Whether the template uses the variable `tools`.
    pub fn knows_tools(&self) -> bool {
        self.names.variables.contains("tools")
    }

    /// Renders the prompt's text. Fails if the template raises an exception or cannot use a value.
    pub fn render(&self, chat: &Chat) -> Result<String, ApiError> {
        let calls = !self.writes_tool_calls && chat.messages.iter().any(tool_prompt::uses_tools);
        if self.knows_tools() || !(calls || chat.tools.is_some()) {
            return self.render_turns(chat);
        }
        let rendered = self.render_turns(&tool_prompt::with_tool_prompt(
            chat,
            ToolPromptPosition::System,
        )?);
        match rendered {
            // Some templates reject system messages.
            Err(error) if error.kind == ErrorKind::Template && chat.tools.is_some() => {
                let with_prompt =
                    tool_prompt::with_tool_prompt(chat, ToolPromptPosition::FirstUser)?;
                self.render_turns(&with_prompt).map_err(|_| error)
            }
            rendered => rendered,
        }
    }

    /// Returns the name and value of a variable that only some templates use; `None` if it may be
    /// omitted here.
    fn optional_variable<'a>(
        &self,
        variable: &'a TemplateVariable,
    ) -> Result<Option<(&'a str, Value)>, ApiError> {
        let TemplateVariable {
            name,
            json,
            neutral,
        } = variable;
        let refused = |why: &str| ApiError {
            param: Some(name.clone().into()),
            ..ApiError::new(
                ErrorKind::Unsupported,
                format!("`{name}` cannot be used: {why}"),
            )
        };
        if !self.names.variables.contains(name) {
            // Templates that know only `enable_thinking` express the effort `none` as `false`.
            if name == REASONING_EFFORT
                && json == "\"none\""
                && self.names.variables.contains(THINKING)
            {
                return Ok(Some((THINKING, Value::from(false))));
            }
            if *neutral {
                return Ok(None);
            }
            return Err(refused("the model's chat template does not use it"));
        }
        let value = jinja::from_json(json).map_err(|error| refused(&error.to_string()))?;
        Ok(Some((name, value)))
    }

    fn render_turns(&self, chat: &Chat) -> Result<String, ApiError> {
        let special = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let given = chat
            .optional_variables
            .iter()
            .filter_map(|variable| self.optional_variable(variable).transpose());
        let mut given: BTreeMap<_, _> = given.collect::<Result<_, _>>()?;
        // As in transformers, an absent `tools` or `documents` is none, not undefined.
        let context = context! {
            messages => messages(chat, &self.names, self.knows_developer)?,
            tools => json_variable("tools", chat.tools.as_deref())?,
            documents => given.remove("documents"),
            add_generation_prompt => chat.generation_prompt == GenerationPrompt::Add,
            ..context! {
                ..json_variable("chat_template_kwargs", chat.variables.as_deref())?,
                ..Value::from_pairs(special.chain(given))
            }
        };
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| template_error(&e))?;
        let text = template.render(context).map_err(|e| template_error(&e))?;
        match chat.generation_prompt {
            GenerationPrompt::ContinueFinalMessage => cut_after_content(text),
            GenerationPrompt::Add | GenerationPrompt::Omit => Ok(text),
        }
    }
}

/// Parses a variable from the JSON of the request's field `name`; none if the field is absent.
fn json_variable(name: &'static str, json: Option<&str>) -> Result<Value, ApiError> {
    let wrong = |error| ApiError::validation(name, format!("`{name}` cannot be used: {error}"));
    let value = json.map(jinja::from_json).transpose().map_err(wrong)?;
    Ok(value.unwrap_or_else(|| Value::from(())))
}

/// Cuts the text that the template writes after the last message's content, at `CONTENT_END_MARK`.
fn cut_after_content(mut text: String) -> Result<String, ApiError> {
    let end = text.rfind(CONTENT_END_MARK).ok_or_else(|| {
        let message = "the chat template does not write the last message's content as it is, \
                       so it cannot be continued; set `continue_final_message` to false";
        ApiError::new(ErrorKind::Template, message)
    })?;
    text.truncate(end);
    Ok(text)
}

fn template_error(error: &Error) -> ApiError {
    let raised =
        std::error::Error::source(error).and_then(|s| s.downcast_ref::<TemplateException>());
    let message = match raised {
        Some(TemplateException(message)) => {
            format!("the chat template refuses `messages`: {message}")
        }
        None => format!("the chat template failed on `messages`: {error}"),
    };
    ApiError {
        param: Some("messages".into()),
        ..ApiError::new(ErrorKind::Template, message)
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(JinjaKind::InvalidOperation, message.clone())
        .with_source(TemplateException(message)))
}

/// Implements `datetime.now().strftime(format)`, in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|e| Error::new(JinjaKind::InvalidOperation, format!("strftime_now: {e}")))
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
fn messages(chat: &Chat, names: &TemplateNames, knows_developer: bool) -> Result<Value, ApiError> {
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

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
