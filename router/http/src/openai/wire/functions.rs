//! OpenAI's legacy fields of chats: `functions` for `tools`, and `function_call` for `tool_choice`,
//! for the call of an output and for that of an earlier message. And the ids of earlier calls, which
//! legacy clients leave out of their results.

use std::collections::VecDeque;

use penstock_request::error::{ApiError, Excerpt};
use penstock_text::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::strict::{self, JsonText};

use super::tools::{Function, MessageCall, NamedFunction, Tool, ToolChoice};

/// Names of the tool fields in this API, for errors.
const FIELDS: ToolFields = ToolFields {
    list: "functions",
    name: "name",
    parameters: "parameters",
    choice: "function_call",
    forcing: "an object with a `name`",
};

/// `none`, `auto`, or the function to call.
#[derive(Debug)]
pub(crate) struct FunctionChoice(ToolChoiceMode);

/// The tools of a request, from current or legacy fields.
pub(crate) struct RequestedTools {
    pub(crate) tools: Vec<penstock_text::tool_parsers::Tool>,
    pub(crate) choice: Option<ToolChoice>,
    pub(crate) parallel: Option<bool>,
    pub(crate) fields: ToolFields,
    /// Whether they were given in legacy fields; then the response uses these too.
    pub(crate) older: bool,
}

/// The tool fields of a request.
pub(super) struct ToolRequestFields {
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) choice: Option<ToolChoice>,
    pub(super) parallel: Option<bool>,
    pub(super) functions: Option<Vec<Function>>,
    pub(super) function_call: Option<FunctionChoice>,
}

/// Calls of earlier messages.
#[derive(Default)]
pub(super) struct ToolCallIds {
    /// Id of the last legacy `function_call`, which has none. It is made from the message's index,
    /// since some chat templates require nine letters or digits for each call and its result.
    pub(super) older: Option<String>,
    /// Ids of the last message's calls that have no result yet.
    unanswered: VecDeque<Option<String>>,
}

/// Deserializes functions or null.
pub(super) fn functions<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<Function>>, D::Error> {
    strict::list_or_null::<MOST_TOOLS, _, _>(from)
}

impl FunctionChoice {
    /// Returns whether the output is only a call.
    pub(super) fn forces(&self) -> bool {
        matches!(self.0, ToolChoiceMode::Named(_))
    }
}

impl RequestedTools {
    /// Combines the fields; current and legacy fields together are an error. Legacy fields that
    /// request nothing count as absent.
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
                "must be false beside `{older}`: such an output has at most one call. Given: true"
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

fn all(tools: Vec<Tool>) -> Vec<penstock_text::tool_parsers::Tool> {
    tools
        .into_iter()
        .map(penstock_text::tool_parsers::Tool::from)
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

impl ToolCallIds {
    /// Records the calls of a message.
    pub(super) fn add_calls(&mut self, calls: &[MessageCall]) {
        if !calls.is_empty() {
            self.unanswered = calls
                .iter()
                .map(|call| call.id().map(str::to_owned))
                .collect();
        }
    }

    /// Returns the id of the call whose result a message has: `named`, or the first call without a
    /// result (the client `text-generation` cannot send ids). `None` if there is no such call.
    pub(super) fn take_answered(&mut self, named: Option<String>) -> Option<Option<String>> {
        if named.is_none() {
            return self.unanswered.pop_front();
        }
        let found = self.unanswered.iter().position(|id| *id == named);
        found.map(|place| self.unanswered.remove(place));
        Some(named)
    }
}
