//! A compiled chat template.

use std::collections::BTreeMap;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind as JinjaKind, context};
use penstock_request::error::{ApiError, ErrorKind};

use super::jinja::{self, TemplateNames};
use super::messages::messages;
use super::tool_prompt::{self, ToolPromptPosition};
use super::{
    CONTENT_END_MARK, Chat, DEVELOPER, GenerationPrompt, REASONING_EFFORT, THINKING,
    TemplateVariable,
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

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
