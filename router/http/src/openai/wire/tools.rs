//! Tools of chat requests.

use penstock_request::error::Excerpt;
use penstock_text::chat::tool_call_json;
use penstock_text::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use utoipa::ToSchema;

use crate::strict::{self, JsonText, from_object};

from_object!(
    Tool,
    Function,
    AllowedChoice,
    AllowedTools,
    NamedChoice,
    NamedFunction,
    MessageCall,
    CalledFunction
);

/// Names of the tool fields in this API, for errors.
pub(crate) const FIELDS: ToolFields = ToolFields {
    list: "tools",
    name: "function.name",
    parameters: "function.parameters",
    choice: "tool_choice",
    forcing: "`required`",
};

/// The type of a choice restricted to some of the tools.
pub(crate) const ALLOWED: &str = "allowed_tools";

/// The only tool type that is supported.
pub(crate) const FUNCTION: &str = "function";

/// A tool. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a tool (a JSON object)")]
pub(crate) struct Tool {
    /// Always `function`.
    #[serde(deserialize_with = "kind")]
    #[schema(value_type = String, example = "function")]
    r#type: (),
    /// The function.
    function: Function,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a function (a JSON object)")]
pub(crate) struct Function {
    /// Name: up to 64 characters of a-z, A-Z, 0-9, `_`, `-` and `.`.
    #[schema(example = "get_weather")]
    name: String,
    /// Description for the model.
    description: Option<String>,
    /// JSON schema of the arguments, passed to the model unchanged.
    #[serde(alias = "arguments")]
    #[schema(value_type = Option<Object>)]
    parameters: Option<JsonText>,
    /// Whether the arguments of calls with `auto` are held to the schema. Forced calls always are.
    strict: Option<bool>,
}

/// `none`, `auto`, `required`, or a function, by name or as an object. `allowed_tools` restricts
/// `auto` or `required` to some of the tools.
#[derive(Debug)]
pub(crate) struct ToolChoice {
    choice: ToolChoiceMode,
    /// Names of the tools that are allowed; `None` = all.
    allowed: Option<Vec<String>>,
}

/// A tool call of an assistant's message. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a call (a JSON object)")]
pub(crate) struct MessageCall {
    /// The id from the server's response.
    id: Option<String>,
    /// Always `function`.
    #[serde(default, deserialize_with = "kind", rename = "type")]
    #[schema(value_type = String)]
    _type: (),
    /// The called function.
    function: CalledFunction,
}

/// The function and the arguments of a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a function (a JSON object)")]
pub(crate) struct CalledFunction {
    /// The function's name.
    name: String,
    /// Arguments: JSON in a string, or an object.
    #[schema(value_type = Option<String>)]
    arguments: Option<JsonText>,
}

/// A choice restricted to some of the tools.
#[derive(Deserialize, ToSchema)]
#[schema(as = AllowedToolChoice)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a choice (a JSON object)"
)]
pub(crate) struct AllowedChoice {
    /// Always `allowed_tools`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    _type: IgnoredAny,
    /// The allowed tools, and whether one must be called.
    allowed_tools: AllowedTools,
}

/// Some of the tools, and whether one must be called.
#[derive(Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a mode and tools (a JSON object)"
)]
pub(crate) struct AllowedTools {
    /// `auto`: the model decides. `required`: the output is one or more calls.
    #[schema(inline)]
    mode: Mode,
    /// Some of the tools in `tools`; not empty.
    #[serde(deserialize_with = "strict::list::<MOST_TOOLS, _, _>")]
    tools: Vec<NamedChoice>,
}

/// Whether the model must call a tool.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Auto,
    Required,
}

/// The type of an object, which decides how it is parsed.
#[derive(Deserialize)]
pub(super) struct TypeField {
    pub(super) r#type: Option<String>,
}

/// A choice of one tool.
#[derive(Deserialize, ToSchema)]
#[schema(as = NamedToolChoice)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a choice (a JSON object)"
)]
pub(crate) struct NamedChoice {
    /// Always `function`; `huggingface_hub` omits it.
    #[serde(default, deserialize_with = "kind", rename = "type")]
    #[schema(value_type = String)]
    _type: (),
    /// The function.
    function: NamedFunction,
}

/// A function, by name.
#[derive(Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a function (a JSON object)"
)]
pub(crate) struct NamedFunction {
    /// Name of a function in `tools`.
    name: String,
}

/// Deserializes tools or null.
pub(crate) fn tools<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Tool>>, D::Error> {
    strict::list_or_null::<MOST_TOOLS, _, _>(from)
}

pub(super) fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    match String::deserialize(from)?.as_str() {
        FUNCTION => Ok(()),
        other => Err(D::Error::custom(format_args!(
            "`type` must be `{FUNCTION}`. Given: `{}`",
            Excerpt::new(other)
        ))),
    }
}

impl MessageCall {
    pub(super) fn new(function: CalledFunction, id: String) -> Self {
        Self {
            id: Some(id),
            _type: (),
            function,
        }
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Converts calls to JSON for the chat template.
    pub(super) fn list_to_json(calls: Vec<Self>) -> String {
        let calls: Vec<String> = calls.into_iter().map(Self::into_json).collect();
        format!("[{}]", calls.join(","))
    }

    fn into_json(self) -> String {
        let CalledFunction { name, arguments } = self.function;
        let arguments = arguments.map_or_else(|| "{}".to_owned(), JsonText::into_string);
        tool_call_json(self.id, name, &arguments)
    }
}

impl From<Tool> for penstock_text::tool_parsers::Tool {
    fn from(tool: Tool) -> Self {
        let Tool {
            r#type: (),
            function,
        } = tool;
        let parameters = function.parameters.map(JsonText::into_string);
        Self {
            name: function.name,
            description: function.description,
            parameters: parameters.filter(|schema| schema != "null"),
            strict: function.strict == Some(true),
        }
    }
}

impl ToolChoice {
    /// Returns whether the output is only calls.
    pub(super) fn forces(&self) -> bool {
        matches!(
            self.choice,
            ToolChoiceMode::Required | ToolChoiceMode::Named(_)
        )
    }

    /// Creates a choice among the tools of these names, or among all.
    pub(super) fn from_parts(choice: ToolChoiceMode, allowed: Option<Vec<String>>) -> Self {
        Self { choice, allowed }
    }

    /// Returns the mode, and the names of the allowed tools.
    pub(crate) fn into_parts(self) -> (ToolChoiceMode, Option<Vec<String>>) {
        (self.choice, self.allowed)
    }

    fn from_json_object<E: Error>(text: &str) -> Result<Self, E> {
        let kind: TypeField = strict::read_text(text)?;
        if kind.r#type.as_deref() != Some(ALLOWED) {
            let named: NamedChoice = strict::read_text(text)?;
            return Ok(ToolChoiceMode::Named(named.function.name).into());
        }
        let AllowedChoice { allowed_tools, .. } = strict::read_text(text)?;
        let names = allowed_tools
            .tools
            .into_iter()
            .map(|tool| tool.function.name);
        Ok(Self::from_parts(
            allowed_tools.mode.into(),
            Some(names.collect()),
        ))
    }
}

impl From<ToolChoiceMode> for ToolChoice {
    fn from(choice: ToolChoiceMode) -> Self {
        Self::from_parts(choice, None)
    }
}

impl NamedFunction {
    pub(super) fn into_choice(self) -> ToolChoiceMode {
        ToolChoiceMode::Named(self.name)
    }
}

impl From<Function> for Tool {
    fn from(function: Function) -> Self {
        Self {
            r#type: (),
            function,
        }
    }
}

impl From<Mode> for ToolChoiceMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Auto => Self::Auto,
            Mode::Required => Self::Required,
        }
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = JsonText::deserialize(from)?;
        if text.as_str().starts_with('{') {
            return Self::from_json_object(text.as_str());
        }
        let word: String = serde_json::from_str(text.as_str()).map_err(|_| {
            D::Error::custom(
                "must be `none`, `auto`, `required`, or an object that names a function",
            )
        })?;
        let choice = match word.as_str() {
            "none" => ToolChoiceMode::None,
            "auto" => ToolChoiceMode::Auto,
            "required" => ToolChoiceMode::Required,
            _ => ToolChoiceMode::Named(word),
        };
        Ok(choice.into())
    }
}
