//! OpenAI's older names on chats: `functions` for `tools`, `function_call` for `tool_choice`, for the
//! one call of an answer, and for that of an earlier turn.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::tools::{Function, NamedFunction, Tool, ToolChoice};
use crate::error::{ApiError, Excerpt};
use crate::http::strict::{self, JsonText};
use crate::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};

/// Where this dialect keeps what may be wrong.
const FIELDS: ToolFields = ToolFields {
    list: "functions",
    name: "name",
    parameters: "parameters",
    choice: "function_call",
    forcing: "an object with a `name`",
};

/// `none`, `auto`, or the function that is to be called.
#[derive(Debug)]
pub(crate) struct FunctionChoice(ToolChoiceMode);

/// The tools that a request asks for, in either words.
pub(crate) struct RequestedTools {
    pub(crate) tools: Vec<crate::tool_parsers::Tool>,
    pub(crate) choice: Option<ToolChoice>,
    pub(crate) parallel: Option<bool>,
    pub(crate) fields: ToolFields,
    /// Whether it was in the older ones, and so must be the answer.
    pub(crate) older: bool,
}

/// What a request says of tools.
pub(super) struct ToolRequestFields {
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) choice: Option<ToolChoice>,
    pub(super) parallel: Option<bool>,
    pub(super) functions: Option<Vec<Function>>,
    pub(super) function_call: Option<FunctionChoice>,
}

/// Functions, or null.
pub(super) fn functions<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<Function>>, D::Error> {
    strict::list_or_null::<MOST_TOOLS, _, _>(from)
}

impl FunctionChoice {
    /// Whether the answer is nothing but a call.
    pub(super) fn forces(&self) -> bool {
        matches!(self.0, ToolChoiceMode::Named(_))
    }
}

impl RequestedTools {
    /// Of either words: not of both. Older ones that ask for nothing are as good as absent.
    pub(super) fn from_fields(given: ToolRequestFields) -> Result<Self, ApiError> {
        let functions = given.functions.unwrap_or_default();
        let call = given.function_call;
        let older = if !functions.is_empty() {
            "functions"
        } else if call.as_ref().is_some_and(FunctionChoice::forces) {
            "function_call"
        } else {
            return Ok(Self {
                tools: all(given.tools.unwrap_or_default()),
                choice: given.choice,
                parallel: given.parallel,
                fields: super::tools::FIELDS,
                older: false,
            });
        };
        if given.tools.is_some() || given.choice.is_some() {
            let rule = "cannot go with `tools` or `tool_choice`, which are the newer names";
            return Err(ApiError::at(older, rule));
        }
        if given.parallel == Some(true) {
            let rule = format!(
                "must be false beside `{older}`: such an answer has one call at most. Given: true"
            );
            return Err(ApiError::at("parallel_tool_calls", &rule));
        }
        Ok(Self {
            tools: all(functions.into_iter().map(Tool::from).collect()),
            choice: call.map(|choice| choice.0.into()),
            parallel: Some(false),
            fields: FIELDS,
            older: true,
        })
    }
}

fn all(tools: Vec<Tool>) -> Vec<crate::tool_parsers::Tool> {
    tools
        .into_iter()
        .map(crate::tool_parsers::Tool::from)
        .collect()
}

impl<'de> Deserialize<'de> for FunctionChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = JsonText::deserialize(from)?;
        if text.as_str().starts_with('{') {
            let named: NamedFunction = strict::read_text(text.as_str())?;
            return Ok(Self(named.into_choice()));
        }
        match serde_json::from_str(text.as_str()) {
            Ok("none") => Ok(Self(ToolChoiceMode::None)),
            Ok("auto") => Ok(Self(ToolChoiceMode::Auto)),
            _ => Err(D::Error::custom(format_args!(
                "must be `none`, `auto`, or an object with the `name` of a function. Given: {}",
                Excerpt::new(text.as_str())
            ))),
        }
    }
}
