//! The tools of a request, from `tools` and `tool_choice` or from OpenAI's legacy fields of chats:
//! `functions`, and `function_call` for the choice and for the call of an earlier message. And the
//! ids of earlier calls, which legacy clients leave out of their results.

use std::collections::VecDeque;

use penstock_request::error::{ApiError, Excerpt};
use penstock_text::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields, ToolSet};
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

/// The tools of a request.
pub(crate) struct RequestedTools {
    pub(crate) tools: Vec<penstock_text::tool_parsers::Tool>,
    pub(crate) choice: Option<ToolChoice>,
    pub(crate) parallel: Option<bool>,
    pub(crate) fields: ToolFields,
    /// Whether they were given in legacy fields; then the response uses these too.
    pub(crate) legacy: bool,
}

/// The legacy tool fields of a request that requests something with them.
pub(super) struct LegacyTools {
    functions: Vec<Function>,
    call: Option<FunctionChoice>,
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
    /// Returns the tools, validated; `None` if there are none.
    pub(crate) fn into_tool_set(self) -> Result<Option<ToolSet>, ApiError> {
        let Self {
            mut tools, fields, ..
        } = self;
        let choice = self.choice.map(ToolChoice::into_parts);
        let (choice, allowed) = choice.unwrap_or_default();
        if tools.is_empty() {
            return match choice {
                ToolChoiceMode::None | ToolChoiceMode::Auto => Ok(None),
                ToolChoiceMode::Required | ToolChoiceMode::Named(_) => {
                    let list = fields.list;
                    let rule = format!("must be `none` or `auto` when there are no `{list}`");
                    Err(ApiError::at(fields.choice, &rule))
                }
            };
        }
        if let Some(allowed) = allowed {
            keep_allowed(&mut tools, &allowed)?;
        }
        let tool_set = ToolSet {
            tools,
            choice,
            parallel: self.parallel.unwrap_or(true),
            fields,
        };
        tool_set.check()?;
        Ok(Some(tool_set))
    }
}

/// Removes the tools that `tool_choice` does not allow.
fn keep_allowed(
    tools: &mut Vec<penstock_text::tool_parsers::Tool>,
    allowed: &[String],
) -> Result<(), ApiError> {
    let refused = |rule: String| Err(ApiError::validation("tool_choice", rule));
    if allowed.is_empty() {
        return refused("`tool_choice.allowed_tools.tools` cannot be empty".to_owned());
    }
    let absent = |name: &&String| !tools.iter().any(|tool| tool.name == **name);
    if let Some(name) = allowed.iter().find(absent) {
        let name = Excerpt::new(name);
        return refused(format!(
            "`tool_choice.allowed_tools.tools` must name tools of `tools`. Given: `{name}`"
        ));
    }
    tools.retain(|tool| allowed.contains(&tool.name));
    Ok(())
}

impl LegacyTools {
    /// Returns the fields; `None` if they request nothing.
    pub(super) fn new(
        functions: Option<Vec<Function>>,
        call: Option<FunctionChoice>,
    ) -> Option<Self> {
        let functions = functions.unwrap_or_default();
        let forces = call.as_ref().is_some_and(FunctionChoice::forces);
        (forces || !functions.is_empty()).then_some(Self { functions, call })
    }

    /// Converts them to the current form. They cannot go with current fields.
    pub(super) fn into_requested(
        self,
        current: bool,
        parallel: Option<bool>,
    ) -> Result<RequestedTools, ApiError> {
        let name = match self.functions.is_empty() {
            true => "function_call",
            false => "functions",
        };
        if current {
            let rule = "cannot go with `tools` or `tool_choice`, which are the newer names";
            return Err(ApiError::at(name, rule));
        }
        if parallel == Some(true) {
            let rule = format!(
                "must be false beside `{name}`: such an output has at most one call. Given: true"
            );
            return Err(ApiError::at("parallel_tool_calls", &rule));
        }
        Ok(RequestedTools {
            tools: self
                .functions
                .into_iter()
                .map(Tool::from)
                .map(Into::into)
                .collect(),
            choice: self.call.map(|choice| choice.0.into()),
            parallel: Some(false),
            fields: FIELDS,
            legacy: true,
        })
    }
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
