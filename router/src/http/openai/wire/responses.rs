//! Body of `/v1/responses`.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use utoipa::ToSchema;

use super::common::request;
use super::items::Item;
use super::metadata::Metadata;
use super::tools::{ALLOWED, Mode, ToolChoice, TypeField, kind};
use crate::error::ApiError;
use crate::http::neutral::{self, Neutral, Neutrals};
use crate::http::strict::{self, JsonText, StringOrList, WithSource, from_object};
use crate::http::structured_output::ResponseFormat;
use crate::logprobs::{LogprobRequest, TokenNames};
use crate::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};

from_object!(
    FunctionTool,
    FunctionName,
    AllowedFunctions,
    TextConfig,
    TextFormat,
    Reasoning
);

/// Where this dialect keeps what may be wrong.
pub(crate) const FLAT_FIELDS: ToolFields = ToolFields {
    list: "tools",
    name: "name",
    parameters: "parameters",
    choice: "tool_choice",
    forcing: "`required`",
};
/// Names in `include`.
pub(crate) const MOST_INCLUDED: usize = 16;

/// Not offered: the server runs nothing in the background, has no tools and cuts no conversation.
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
        /// What is to be answered: a text, or a list of items; not empty.
        #[schema(value_type = String, example = "What is 12 + 30?")]
        input: StringOrList<Item>,
        /// What the system says before it.
        instructions: Option<String>,
        /// > 0: bounds thoughts and answer together. `max_tokens` is the same here.
        max_output_tokens: Option<u32>,
        /// Functions that the model may call. No tools run on this server.
        #[serde(default, deserialize_with = "super::responses::tools")]
        tools: Option<Vec<FunctionTool>>,
        /// `none`: as if there were no tools. `auto`: the model decides. `required`: the answer is one
        /// call or more. A function, as an object: a call of that. Default `auto`.
        #[schema(value_type = Option<String>, example = "auto")]
        tool_choice: Option<WithSource<FlatChoice>>,
        /// Whether one answer may have several calls. Default true.
        parallel_tool_calls: Option<bool>,
        /// What the answer must spell.
        text: Option<TextConfig>,
        /// How the model thinks.
        reasoning: Option<Reasoning>,
        /// Strings by name, which the response tells again.
        #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
        metadata: Option<Metadata>,
        /// `message.output_text.logprobs`: tell the tokens' log-probabilities.
        /// `reasoning.encrypted_content`: nothing, for thoughts are told as they are.
        #[serde(default, deserialize_with = "super::responses::included")]
        #[schema(inline)]
        include: Option<Vec<Include>>,
        /// 0 to 20, only with log-probabilities in `include`: those of so many likely tokens in the
        /// place of each, too.
        top_logprobs: Option<u32>,
        /// More variables of the chat template, such as `{"enable_thinking": false}`.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<JsonText>,
        /// Whether the response is stored. Default: if the server stores responses and this one is not
        /// too large.
        store: Option<bool>,
        /// Not offered; false is neutral.
        #[schema(value_type = Option<bool>)]
        background: Option<JsonText>,
        /// A stored response: `input` goes on from its conversation. Its `instructions` and `tools` do not
        /// count.
        previous_response_id: Option<String>,
        /// Not offered. Use `previous_response_id`, or send the items of earlier turns in `input`.
        #[schema(value_type = Option<String>)]
        conversation: Option<JsonText>,
        /// Not offered: there are no stored prompts.
        #[schema(value_type = Option<Object>)]
        prompt: Option<JsonText>,
        /// Not offered: no tools run on this server.
        #[schema(value_type = Option<u32>)]
        max_tool_calls: Option<JsonText>,
        /// Not offered; `disabled` is neutral: what is too long is refused.
        #[schema(value_type = Option<String>)]
        truncation: Option<JsonText>,
        /// Not offered.
        #[schema(value_type = Option<Vec<Object>>)]
        context_management: Option<JsonText>,
        /// Not offered.
        #[schema(value_type = Option<Object>)]
        moderation: Option<JsonText>,
        /// Not offered; false is neutral.
        #[schema(value_type = Option<bool>)]
        return_token_ids: Option<JsonText>,
        /// Has no effect on the answer.
        #[serde(rename = "safety_identifier")]
        #[schema(value_type = Option<String>)]
        _safety_identifier: Option<IgnoredAny>,
        /// Has no effect: prefixes are cached anyway.
        #[serde(rename = "prompt_cache_key")]
        #[schema(value_type = Option<String>)]
        _prompt_cache_key: Option<IgnoredAny>,
        /// Has no effect: prefixes are cached anyway.
        #[serde(rename = "prompt_cache_retention")]
        #[schema(value_type = Option<String>)]
        _prompt_cache_retention: Option<IgnoredAny>,
        /// Has no effect: prefixes are cached anyway.
        #[serde(rename = "prompt_cache_options")]
        #[schema(value_type = Option<Object>)]
        _prompt_cache_options: Option<IgnoredAny>,
        /// Has no effect on the answer.
        #[serde(rename = "service_tier")]
        #[schema(value_type = Option<String>)]
        _service_tier: Option<IgnoredAny>,
    }
}

/// What a response may tell beside its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum Include {
    /// Log-probabilities.
    #[serde(rename = "message.output_text.logprobs")]
    Logprobs,
    /// Nothing: thoughts are told as they are.
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
    /// What calls name: up to 64 characters of a-z, A-Z, 0-9, `_`, `-` and `.`.
    #[schema(example = "get_weather")]
    pub(crate) name: String,
    /// What it does, for the model.
    pub(crate) description: Option<String>,
    /// A JSON schema of its arguments, told to the model as it is.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<JsonText>,
    /// Whether calls that the model makes by itself keep the schema. Forced ones always do. Default
    /// false.
    pub(crate) strict: Option<bool>,
}

/// `none`, `auto`, `required`, or a function as an object. `allowed_tools` is one of the first, of
/// some of the tools.
#[derive(Debug)]
pub(crate) struct FlatChoice(pub(crate) ToolChoice);

/// A function, by its name.
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
    /// That of a tool of `tools`.
    name: String,
}

/// A choice among some of the tools.
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
    /// `auto`: the model decides. `required`: the answer is one call or more.
    #[schema(inline)]
    mode: Mode,
    /// Tools of `tools`; not empty.
    #[serde(deserialize_with = "strict::list::<MOST_TOOLS, _, _>")]
    tools: Vec<FunctionName>,
}

/// What the answer must spell.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct TextConfig {
    /// A format; without one the text is free.
    #[schema(value_type = Option<TextFormat>)]
    pub(crate) format: Option<WithSource<TextFormat>>,
    /// How much the model is to say, where its chat template speaks of `verbosity`. Elsewhere only
    /// `medium`, which changes nothing.
    pub(crate) verbosity: Option<String>,
}

/// A format of answers.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct TextFormat {
    /// `text` is no format at all.
    #[schema(inline)]
    r#type: TextKind,
    /// With `json_schema`.
    #[schema(value_type = Option<Object>)]
    schema: Option<JsonText>,
    /// Has no effect on the answer.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Has no effect on the answer.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Has no effect: a schema is always kept strictly.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// What a format is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextKind {
    Text,
    JsonObject,
    JsonSchema,
}

/// How the model thinks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct Reasoning {
    /// How much, where the chat template speaks of `reasoning_effort`. Elsewhere only what changes
    /// nothing: `medium`, and `none` where the model shows no thoughts.
    pub(crate) effort: Option<String>,
    /// Has no effect: thoughts are told as they are.
    #[serde(rename = "summary")]
    #[schema(value_type = Option<String>)]
    _summary: Option<IgnoredAny>,
    /// Has no effect: thoughts are told as they are.
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
    /// What is to be told of probabilities.
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

    /// Says what the answer must spell in the words of the other routes.
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

    /// Refuses what is not offered.
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
            let rule = format!("`n` must be 1: a response is one answer. Given: {n}");
            return Err(ApiError::validation("n", rule));
        }
        self.check_shared()
    }
}

impl From<FunctionTool> for crate::tool_parsers::Tool {
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
                    crate::error::Excerpt::new(other)
                )));
            }
        };
        Ok(Self(choice))
    }
}
