//! OpenAI's older names on chats: `functions` for `tools`, `function_call` for `tool_choice`, for the
//! one call of an answer, and for that of an earlier turn.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::tools::{Function, NamedFunction, Tool, ToolChoice};
use crate::error::{ApiError, Excerpt};
use crate::http::strict::{self, JsonText};
use crate::tools::{Choice, MOST_TOOLS, OfferFields};

/// Where this dialect keeps what may be wrong.
const FIELDS: OfferFields = OfferFields {
    list: "functions",
    name: "name",
    parameters: "parameters",
    choice: "function_call",
    forcing: "an object with a `name`",
};

/// `none`, `auto`, or the function that is to be called.
#[derive(Debug)]
pub(crate) struct FunctionChoice(Choice);

/// The tools that a request asks for, in either words.
pub(crate) struct Asked {
    pub(crate) tools: Vec<crate::tools::Tool>,
    pub(crate) choice: Option<ToolChoice>,
    pub(crate) parallel: Option<bool>,
    pub(crate) fields: OfferFields,
    /// Whether it was in the older ones, and so must be the answer.
    pub(crate) older: bool,
}

/// What a request says of tools.
pub(super) struct Words {
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
        matches!(self.0, Choice::Named(_))
    }
}

impl Asked {
    /// Of either words: not of both. Older ones that ask for nothing are as good as absent.
    pub(super) fn of(words: Words) -> Result<Self, ApiError> {
        let functions = words.functions.unwrap_or_default();
        let call = words.function_call;
        let older = if !functions.is_empty() {
            "functions"
        } else if call.as_ref().is_some_and(FunctionChoice::forces) {
            "function_call"
        } else {
            return Ok(Self {
                tools: all(words.tools.unwrap_or_default()),
                choice: words.choice,
                parallel: words.parallel,
                fields: super::tools::FIELDS,
                older: false,
            });
        };
        if words.tools.is_some() || words.choice.is_some() {
            let rule = "cannot go with `tools` or `tool_choice`, which are the newer names";
            return Err(ApiError::at(older, rule));
        }
        if words.parallel == Some(true) {
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

fn all(tools: Vec<Tool>) -> Vec<crate::tools::Tool> {
    tools.into_iter().map(crate::tools::Tool::from).collect()
}

impl<'de> Deserialize<'de> for FunctionChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = JsonText::deserialize(from)?;
        if text.as_str().starts_with('{') {
            let named: NamedFunction = strict::read_text(text.as_str())?;
            return Ok(Self(named.into_choice()));
        }
        match serde_json::from_str(text.as_str()) {
            Ok("none") => Ok(Self(Choice::None)),
            Ok("auto") => Ok(Self(Choice::Auto)),
            _ => Err(D::Error::custom(format_args!(
                "must be `none`, `auto`, or an object with the `name` of a function. Given: {}",
                Excerpt::new(text.as_str())
            ))),
        }
    }
}
