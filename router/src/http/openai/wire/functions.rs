//! OpenAI's older names on chats: `functions` for `tools`, `function_call` for `tool_choice`, for the
//! one call of an answer, and for that of an earlier turn.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::tools::{Function, NamedFunction, Tool, ToolChoice};
use crate::error::ApiError;
use crate::http::reading::Offered;
use crate::http::strict::{self, JsonText};
use crate::tools::{Choice, MOST_TOOLS, OfferFields};

/// Where this dialect keeps what may be wrong.
const FIELDS: OfferFields = OfferFields {
    list: "functions",
    name: "name",
    parameters: "parameters",
};

/// The same thing's newer and older name.
const NAMES: [(&str, &str); 2] = [("tools", "functions"), ("tool_choice", "function_call")];

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

/// What a request says of tools.
pub(super) struct Words {
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) choice: Option<ToolChoice>,
    pub(super) parallel: Option<bool>,
    pub(super) functions: Option<Vec<Function>>,
    pub(super) function_call: Option<FunctionChoice>,
}

impl Asked {
    /// Of either words: not of both.
    pub(super) fn of(words: Words) -> Result<Self, ApiError> {
        let Words {
            tools,
            choice,
            parallel,
            functions,
            function_call,
        } = words;
        if functions.is_none() && function_call.is_none() {
            return Ok(Self {
                tools: all(tools.unwrap_or_default()),
                choice,
                parallel,
                fields: super::tools::FIELDS,
                older: false,
            });
        }
        if tools.is_some() || choice.is_some() {
            let older = NAMES[usize::from(functions.is_none())].1;
            let rule = format!(
                "`{older}` cannot go with `tools` or `tool_choice`, which are the newer names"
            );
            return Err(ApiError::validation(older, rule));
        }
        let functions = functions.unwrap_or_default().into_iter().map(Tool::from);
        Ok(Self {
            tools: all(functions.collect()),
            choice: function_call.map(|choice| choice.0.into()),
            parallel: Some(false),
            fields: FIELDS,
            older: true,
        })
    }
}

fn all(tools: Vec<Tool>) -> Vec<crate::tools::Tool> {
    tools.into_iter().map(crate::tools::Tool::from).collect()
}

/// The same in the older words: what is wrong, what the answer is guided by, how calls are told.
pub(crate) fn in_older_words(offered: Result<Offered, ApiError>) -> Result<Offered, ApiError> {
    let mut offered = offered.map_err(|mut error| {
        for (newer, older) in NAMES {
            let ticked = |name| format!("`{name}`");
            error.message = error.message.replace(&ticked(newer), &ticked(older));
            if error.param.as_deref() == Some(newer) {
                error.param = Some(older.into());
            }
        }
        error
    })?;
    offered.reading.older = true;
    if let Some(guide) = &mut offered.guide {
        let renamed = NAMES.into_iter().find(|(newer, _)| *newer == guide.field);
        guide.field = renamed.map_or(guide.field, |(_, older)| older);
    }
    Ok(offered)
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
            _ => Err(D::Error::custom(
                "must be `none`, `auto`, or an object with the `name` of a function",
            )),
        }
    }
}
