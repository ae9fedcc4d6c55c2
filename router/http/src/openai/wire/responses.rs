//! Body of `/v1/responses`.

use penstock_request::error::ApiError;
use penstock_request::logprobs::{LogprobRequest, TokenNames};
use penstock_text::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use utoipa::ToSchema;

use super::common::request;
use super::items::Item;
use super::metadata::Metadata;
use super::tools::{ALLOWED, Mode, ToolChoice, TypeField, kind};
use crate::neutral::{self, Neutral, Neutrals};
use crate::strict::{self, JsonText, StringOrList, WithSource, from_object};
use crate::structured_output::ResponseFormat;

from_object!(
    FunctionTool,
    FunctionName,
    AllowedFunctions,
    TextConfig,
    TextFormat,
    Reasoning
);

/// Names of the tool fields in this API, for errors.
pub(crate) const FLAT_FIELDS: ToolFields = ToolFields {
    list: "tools",
    name: "name",
    parameters: "parameters",
    choice: "tool_choice",
    forcing: "`required`",
};
/// Maximum number of names in `include`.
pub(crate) const MOST_INCLUDED: usize = 16;

/// Parameters that are not supported: the server runs nothing in the background, runs no tools
/// itself and does not truncate conversations.
pub(crate) const NEUTRAL: Neutrals<8> = [
    ("background", Neutral::Json("false")),
    ("conversation", Neutral::Null),
    ("prompt", Neutral::Null),
    ("max_tool_calls", Neutral::Null),
    ("truncation", Neutral::Text(&["disabled"])),
    ("context_management", Neutral::Null),
    ("moderation", Neutral::Null),
    ("return_token_ids", Neutral::Json("false")),
];
request! {
    /// Body of `/v1/responses`.
    ResponsesRequest {
        /// The input: a text, or a list of items; not empty.
        #[schema(value_type = String, example = "What is 12 + 30?")]
        input: StringOrList<Item>,
        /// System message before the conversation.
        instructions: Option<String>,
        /// > 0: limit of reasoning and text together. `max_tokens` is the same here.
        max_output_tokens: Option<u32>,
        /// Functions that the model may call. The server runs no tools itself.
        #[serde(default, deserialize_with = "super::responses::tools")]
        tools: Option<Vec<FunctionTool>>,
        /// `none`: ignore the tools. `auto`: the model decides. `required`: the output is one or
        /// more calls. A function, as an object: the output is a call of it. Default `auto`.
        #[schema(value_type = Option<String>, example = "auto")]
        tool_choice: Option<WithSource<FlatChoice>>,
        /// Whether an output may have several calls. Default true.
        parallel_tool_calls: Option<bool>,
        /// Structured output.
        text: Option<TextConfig>,
        /// Reasoning options.
        reasoning: Option<Reasoning>,
        /// Strings by name, which the response repeats.
        #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
        metadata: Option<Metadata>,
        /// `message.output_text.logprobs`: return the logprobs of the output's tokens.
        /// `reasoning.encrypted_content` is ignored: reasoning is returned unchanged.
        #[serde(default, deserialize_with = "super::responses::included")]
        #[schema(inline)]
        include: Option<Vec<Include>>,
        /// 0 to 20: number of most likely tokens at each position whose logprobs are returned.
        /// Requires logprobs in `include`.
        top_logprobs: Option<u32>,
        /// Additional variables of the chat template, such as `{"enable_thinking": false}`.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<JsonText>,
        /// Whether to store the response. Default: true if the server stores responses and this one
        /// is not too large.
        store: Option<bool>,
        /// Not supported; false is neutral.
        #[schema(value_type = Option<bool>)]
        background: Option<JsonText>,
        /// A stored response whose conversation `input` continues. Its `instructions` and `tools`
        /// are not repeated.
        previous_response_id: Option<String>,
        /// Not supported. Use `previous_response_id`, or send the items of earlier turns in
        /// `input`.
        #[schema(value_type = Option<String>)]
        conversation: Option<JsonText>,
        /// Not supported: there are no stored prompts.
        #[schema(value_type = Option<Object>)]
        prompt: Option<JsonText>,
        /// Not supported: the server runs no tools itself.
        #[schema(value_type = Option<u32>)]
        max_tool_calls: Option<JsonText>,
        /// Not supported; `disabled` is neutral: too long inputs are refused.
        #[schema(value_type = Option<String>)]
        truncation: Option<JsonText>,
        /// Not supported.
        #[schema(value_type = Option<Vec<Object>>)]
        context_management: Option<JsonText>,
        /// Not supported.
        #[schema(value_type = Option<Object>)]
        moderation: Option<JsonText>,
        /// Not supported; false is neutral.
        #[schema(value_type = Option<bool>)]
        return_token_ids: Option<JsonText>,
        /// Has no effect on the output.
        #[serde(rename = "safety_identifier")]
        #[schema(value_type = Option<String>)]
        _safety_identifier: Option<IgnoredAny>,
        /// Has no effect: prefixes are always cached.
        #[serde(rename = "prompt_cache_key")]
        #[schema(value_type = Option<String>)]
        _prompt_cache_key: Option<IgnoredAny>,
        /// Has no effect: prefixes are always cached.
        #[serde(rename = "prompt_cache_retention")]
        #[schema(value_type = Option<String>)]
        _prompt_cache_retention: Option<IgnoredAny>,
        /// Has no effect: prefixes are always cached.
        #[serde(rename = "prompt_cache_options")]
        #[schema(value_type = Option<Object>)]
        _prompt_cache_options: Option<IgnoredAny>,
        /// Has no effect on the output.
        #[serde(rename = "service_tier")]
        #[schema(value_type = Option<String>)]
        _service_tier: Option<IgnoredAny>,
    }
}

/// Optional content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum Include {
    /// Logprobs of the text's tokens.
    #[serde(rename = "message.output_text.logprobs")]
    Logprobs,
    /// No effect: reasoning is returned unchanged.
    #[serde(rename = "reasoning.encrypted_content")]
    Encrypted,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a tool (a JSON object)")]
pub(crate) struct FunctionTool {
    /// Always `function`.
    #[serde(deserialize_with = "kind", rename = "type")]
    #[schema(value_type = String, example = "function")]
    _type: (),
    /// Name: up to 64 characters of a-z, A-Z, 0-9, `_`, `-` and `.`.
    #[schema(example = "get_weather")]
    pub(crate) name: String,
    /// Description for the model.
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments, passed to the model unchanged.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<JsonText>,
    /// Whether the arguments of calls with `auto` are held to the schema. Forced calls always are.
    /// Default false.
    pub(crate) strict: Option<bool>,
}

/// `none`, `auto`, `required`, or a function as an object. `allowed_tools` restricts `auto` or
/// `required` to some of the tools.
#[derive(Debug)]
pub(crate) struct FlatChoice(pub(crate) ToolChoice);

/// A function, by name.
#[derive(Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a function (a JSON object)"
)]
pub(crate) struct FunctionName {
    /// Always `function`.
    #[serde(deserialize_with = "kind", rename = "type")]
    #[schema(value_type = String)]
    _type: (),
    /// Name of a function in `tools`.
    name: String,
}

/// A choice restricted to some of the tools.
#[derive(Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a choice (a JSON object)"
)]
pub(crate) struct AllowedFunctions {
    /// Always `allowed_tools`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    _type: IgnoredAny,
    /// `auto`: the model decides. `required`: the output is one or more calls.
    #[schema(inline)]
    mode: Mode,
    /// Some of the functions in `tools`; not empty.
    #[serde(deserialize_with = "strict::list::<MOST_TOOLS, _, _>")]
    tools: Vec<FunctionName>,
}

/// The format of the text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct TextConfig {
    /// A format; without one, the text is unconstrained.
    #[schema(value_type = Option<TextFormat>)]
    pub(crate) format: Option<WithSource<TextFormat>>,
    /// Verbosity, if the chat template uses `verbosity`. Otherwise only `medium`, which is neutral.
    pub(crate) verbosity: Option<String>,
}

/// A format of the text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct TextFormat {
    /// `text` is unconstrained.
    #[schema(inline)]
    r#type: TextKind,
    /// The schema of type `json_schema`.
    #[schema(value_type = Option<Object>)]
    schema: Option<JsonText>,
    /// Has no effect on the output.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Has no effect on the output.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Has no effect: schemas are always enforced strictly.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// The type of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextKind {
    Text,
    JsonObject,
    JsonSchema,
}

/// Reasoning options.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct Reasoning {
    /// Reasoning effort, if the chat template uses `reasoning_effort`. Otherwise only neutral
    /// values: `medium`, and `none` if the model does not reason.
    pub(crate) effort: Option<String>,
    /// Has no effect: reasoning is returned unchanged.
    #[serde(rename = "summary")]
    #[schema(value_type = Option<String>)]
    _summary: Option<IgnoredAny>,
    /// Has no effect: reasoning is returned unchanged.
    #[serde(rename = "generate_summary")]
    #[schema(value_type = Option<String>)]
    _generate_summary: Option<IgnoredAny>,
}

fn tools<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<FunctionTool>>, D::Error> {
    strict::list_or_null::<MOST_TOOLS, _, _>(from)
}

fn included<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Include>>, D::Error> {
    strict::list_or_null::<MOST_INCLUDED, _, _>(from)
}

impl ResponsesRequest {
    /// Returns the logprobs that the request needs.
    pub(crate) fn logprob_request(&self) -> Result<LogprobRequest, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        let logprobs = self.include.as_deref().unwrap_or_default();
        let logprobs = logprobs.contains(&Include::Logprobs);
        if top > 0 && !logprobs {
            let rule = format!(
                "`top_logprobs` is only allowed when `include` has `message.output_text.logprobs`. \
                 Given: {top}"
            );
            return Err(ApiError::validation("top_logprobs", rule));
        }
        Ok(LogprobRequest {
            tokens: (logprobs || self.names_tokens()).then_some(top),
            names: TokenNames::from_flag(self.return_tokens_as_token_ids),
            ..LogprobRequest::default()
        })
    }

    /// Converts `text.format` to `response_format`, which the other routes have.
    pub(crate) fn resolve_text_format(&mut self) -> Result<(), ApiError> {
        const NAME: &str = "text.format";
        let format = self.text.as_mut().and_then(|text| text.format.as_mut());
        let Some(format) = format.map(|format| &mut format.value) else {
            return Ok(());
        };
        if self.response_format.is_some() {
            let rule = format!("`{NAME}` and `response_format` mean the same: send one of them");
            return Err(ApiError::validation(NAME, rule));
        }
        let schema = format.schema.take();
        self.response_format = match (format.r#type, schema) {
            (TextKind::Text, None) => None,
            (TextKind::JsonObject, None) => Some(ResponseFormat::any_object(NAME)),
            (TextKind::JsonSchema, Some(schema)) => Some(ResponseFormat::from_schema(NAME, schema)),
            (TextKind::JsonSchema, None) => {
                return Err(ApiError::at("text.format.schema", "is missing"));
            }
            (_, Some(_)) => {
                let rule = "is only for the type `json_schema`";
                return Err(ApiError::at("text.format.schema", rule));
            }
        };
        Ok(())
    }

    /// Fails if a parameter is not supported.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let values = [
            &self.background,
            &self.conversation,
            &self.prompt,
            &self.max_tool_calls,
            &self.truncation,
            &self.context_management,
            &self.moderation,
            &self.return_token_ids,
        ];
        neutral::check(&NEUTRAL, values)?;
        if let Some(n) = self.n.filter(|n| *n != 1) {
            let rule = format!("`n` must be 1: a response has one output. Given: {n}");
            return Err(ApiError::validation("n", rule));
        }
        self.check_shared()
    }
}

impl From<FunctionTool> for penstock_text::tool_parsers::Tool {
    fn from(tool: FunctionTool) -> Self {
        let parameters = tool.parameters.map(JsonText::into_string);
        Self {
            name: tool.name,
            description: tool.description,
            parameters: parameters.filter(|schema| schema != "null"),
            strict: tool.strict == Some(true),
        }
    }
}

impl FlatChoice {
    fn from_json_object<E: Error>(text: &str) -> Result<ToolChoice, E> {
        let kind: TypeField = strict::read_text(text)?;
        if kind.r#type.as_deref() != Some(ALLOWED) {
            let named: FunctionName = strict::read_text(text)?;
            return Ok(ToolChoiceMode::Named(named.name).into());
        }
        let AllowedFunctions { mode, tools, .. } = strict::read_text(text)?;
        let names = tools.into_iter().map(|tool| tool.name).collect();
        Ok(ToolChoice::from_parts(mode.into(), Some(names)))
    }
}

impl<'de> Deserialize<'de> for FlatChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = JsonText::deserialize(from)?;
        let choice = match text.as_str() {
            "\"none\"" => ToolChoiceMode::None.into(),
            "\"auto\"" => ToolChoiceMode::Auto.into(),
            "\"required\"" => ToolChoiceMode::Required.into(),
            object if object.starts_with('{') => Self::from_json_object(object)?,
            other => {
                return Err(D::Error::custom(format_args!(
                    "must be `none`, `auto`, `required`, or an object that names a function. \
                     Given: {}",
                    penstock_request::error::Excerpt::new(other)
                )));
            }
        };
        Ok(Self(choice))
    }
}
