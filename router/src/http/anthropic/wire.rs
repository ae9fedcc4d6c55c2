//! JSON that Anthropic's clients send.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use utoipa::ToSchema;

use crate::engine::types::GrammarSpec;
use crate::error::{ApiError, ErrorKind, Excerpt};
use crate::http::neutral::{self, Neutral, Neutrals};
use crate::http::strict::{self, JsonText, StringOrList, StringOrListEntry, from_object};
use crate::http::structured_output::schema_grammar;
use crate::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};

from_object!(
    MessagesRequest,
    Message,
    Block,
    Tool,
    ToolChoice,
    Thinking,
    OutputConfig,
    OutputFormat
);

/// Messages that are read: more than a context has room for.
pub(crate) const MOST_MESSAGES: usize = 1 << 16;
/// Where this dialect keeps what may be wrong.
pub(super) const FIELDS: ToolFields = ToolFields {
    list: "tools",
    name: "name",
    parameters: "input_schema",
    choice: "tool_choice",
    forcing: "an object of `type` `any`",
};

/// Not offered.
pub(crate) const NEUTRAL: Neutrals<3> = [
    ("container", Neutral::Null),
    ("context_management", Neutral::Null),
    ("mcp_servers", Neutral::Json("[]")),
];
/// Not offered, with an error of its own.
pub(crate) const NEUTRAL_THREAD: Neutrals<1> = [("thread", Neutral::Null)];
/// The type of tools that are offered.
pub(crate) const CUSTOM: &str = "custom";

/// Body of `/v1/messages`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct MessagesRequest {
    /// The served model's id.
    #[schema(example = "brook")]
    pub(super) model: String,
    /// The conversation; not empty. If the last message is an assistant's, the answer goes on with it.
    #[serde(deserialize_with = "messages")]
    pub(super) messages: Vec<Message>,
    /// > 0.
    #[schema(value_type = u32, example = 64)]
    pub(super) max_tokens: Option<u32>,
    /// What comes before the conversation: a text, or a list of text blocks.
    #[schema(value_type = Option<String>)]
    pub(super) system: Option<Content>,
    /// Tools that the model may call.
    #[serde(default, deserialize_with = "tools")]
    pub(super) tools: Option<Vec<Tool>>,
    /// Which of them it calls.
    pub(super) tool_choice: Option<ToolChoice>,
    /// The answer ends before the first of these.
    pub(super) stop_sequences: Option<Vec<String>>,
    /// Whether to stream.
    pub(super) stream: Option<bool>,
    /// >= 0; 0 = greedy. Default 1.
    pub(super) temperature: Option<f32>,
    /// > 0 and <= 1. Default 1.
    pub(super) top_p: Option<f32>,
    /// 0 = off.
    pub(super) top_k: Option<u32>,
    /// Whether the model thinks first, where its chat template knows `enable_thinking`.
    pub(super) thinking: Option<Thinking>,
    /// Has no effect on the answer.
    #[serde(rename = "metadata")]
    #[schema(value_type = Option<Object>)]
    _metadata: Option<IgnoredAny>,
    /// Has no effect on the answer.
    #[serde(rename = "service_tier")]
    #[schema(value_type = Option<String>)]
    _service_tier: Option<IgnoredAny>,
    /// Has no effect: prefixes are cached anyway.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<IgnoredAny>,
    /// Not offered.
    #[schema(value_type = Option<Object>)]
    container: Option<JsonText>,
    /// Not offered.
    #[schema(value_type = Option<Object>)]
    context_management: Option<JsonText>,
    /// Not offered; `[]` is neutral.
    #[schema(value_type = Option<Vec<Object>>)]
    mcp_servers: Option<JsonText>,
    /// Not offered: conversations are not stored. Anthropic's tool runner sends it first, and goes on without it.
    #[schema(value_type = Option<Object>)]
    thread: Option<JsonText>,
    /// What the answer must spell.
    pub(super) output_config: Option<OutputConfig>,
}

/// One turn of a conversation. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
#[serde(remote = "Self", expecting = "a message (a JSON object)")]
pub(crate) struct Message {
    /// Who says it.
    #[schema(inline)]
    pub(super) role: Role,
    /// A text, or a list of blocks.
    #[schema(value_type = String, example = "What is 12 + 30?")]
    pub(super) content: Content,
}

/// Who says a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
}

/// A text, or blocks.
pub(super) type Content = StringOrList<Block>;

/// One block of a message; which fields it has follows from its type, and others have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicBlock)]
#[serde(remote = "Self", expecting = "a block (a JSON object)")]
pub(crate) struct Block {
    /// What it is.
    #[schema(inline)]
    pub(super) r#type: BlockKind,
    /// Of `text`.
    pub(super) text: Option<String>,
    /// Of `tool_use`.
    pub(super) id: Option<String>,
    /// Of `tool_use`.
    pub(super) name: Option<String>,
    /// Of `tool_use`: an object.
    #[schema(value_type = Option<Object>)]
    pub(super) input: Option<JsonText>,
    /// Of `tool_result`: the id of the `tool_use` that it answers.
    pub(super) tool_use_id: Option<String>,
    /// Of `tool_result`: a text, or text blocks.
    #[schema(value_type = Option<String>)]
    pub(super) content: Option<Content>,
    /// Of `thinking`.
    pub(super) thinking: Option<String>,
    /// Of `tool_result`: whether the tool failed. The model is told: the text begins with `Error: `.
    pub(super) is_error: Option<bool>,
    /// Of `thinking`: has no effect.
    #[serde(rename = "signature")]
    #[schema(value_type = Option<String>)]
    _signature: Option<IgnoredAny>,
    /// Of `redacted_thinking`: has no effect.
    #[serde(rename = "data")]
    #[schema(value_type = Option<String>)]
    _data: Option<IgnoredAny>,
    /// Has no effect: prefixes are cached anyway.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<IgnoredAny>,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BlockKind {
    Text,
    ToolUse,
    ToolResult,
    Thinking,
    RedactedThinking,
}

/// A tool on offer. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicTool)]
#[serde(remote = "Self", expecting = "a tool (a JSON object)")]
pub(crate) struct Tool {
    /// `custom`, if anything.
    #[serde(default, deserialize_with = "custom", rename = "type")]
    #[schema(value_type = Option<String>)]
    _type: (),
    /// Up to 64 characters of a-z, A-Z, 0-9, `_`, `-` and `.`.
    #[schema(example = "get_weather")]
    name: String,
    /// What it does, for the model.
    description: Option<String>,
    /// A JSON schema of its arguments.
    #[schema(value_type = Object)]
    input_schema: JsonText,
    /// Has no effect: prefixes are cached anyway.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<IgnoredAny>,
    /// Whether calls that the model makes by itself keep the schema. Forced ones always do.
    strict: Option<bool>,
}

/// Which tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicToolChoice)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a choice (a JSON object)"
)]
pub(crate) struct ToolChoice {
    /// `tool`: the one that is named; `any`: one or more.
    #[schema(inline)]
    r#type: ChoiceKind,
    /// With `tool`: which.
    name: Option<String>,
    /// Whether the answer ends with its first call.
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// Which tools are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChoiceKind {
    Auto,
    Any,
    Tool,
    None,
}

/// Whether the model thinks.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct Thinking {
    /// `adaptive` is `enabled` here.
    #[schema(inline)]
    r#type: ThinkingKind,
    /// Has no effect: `max_tokens` bounds thoughts and answer together.
    #[serde(rename = "budget_tokens")]
    #[schema(value_type = Option<u32>)]
    _budget_tokens: Option<IgnoredAny>,
    /// Has no effect: thoughts are told as they are.
    #[serde(rename = "display")]
    #[schema(value_type = Option<String>)]
    _display: Option<IgnoredAny>,
}

/// What the answer must spell.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct OutputConfig {
    /// A format; without one the text is free.
    format: Option<OutputFormat>,
    /// Not offered.
    #[schema(value_type = Option<String>)]
    effort: Option<JsonText>,
}

/// What is not offered of it.
pub(crate) const NEUTRAL_OUTPUT: Neutrals<1> = [("effort", Neutral::Null)];

/// A format of answers.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputFormat)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct OutputFormat {
    /// Always `json_schema`.
    #[serde(rename = "type")]
    #[schema(inline)]
    _type: OutputKind,
    /// The JSON schema.
    #[schema(value_type = Object)]
    schema: JsonText,
}

/// What a format is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputKind {
    JsonSchema,
}

/// Whether the model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ThinkingKind {
    Enabled,
    Adaptive,
    Disabled,
}

fn messages<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Message>, D::Error> {
    strict::list::<MOST_MESSAGES, _, _>(from)
}

fn tools<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Tool>>, D::Error> {
    strict::list_or_null::<MOST_TOOLS, _, _>(from)
}

fn custom<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some(CUSTOM) => Ok(()),
        Some(other) => Err(D::Error::custom(format_args!(
            "`type` must be `{CUSTOM}`: no tools run on this server. Given: `{}`",
            Excerpt::new(other)
        ))),
    }
}

impl StringOrListEntry for Block {
    const EXPECTED: &'static str = "a string or a list of blocks";
    const MOST: usize = 1 << 14;
}

impl MessagesRequest {
    /// Refuses what is not offered.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let values = [&self.container, &self.context_management, &self.mcp_servers];
        neutral::check(&NEUTRAL, values)?;
        neutral::check(&NEUTRAL_THREAD, [&self.thread]).map_err(|error| ApiError {
            kind: ErrorKind::MessageThread,
            message: "`thread` is not supported: conversations are not stored. Send the whole \
                      conversation in `messages`, without `thread`"
                .into(),
            ..error
        })
    }
}

impl OutputConfig {
    /// What the answer must spell, if anything.
    pub(super) fn into_grammar(self) -> Result<Option<Box<GrammarSpec>>, ApiError> {
        neutral::check(&NEUTRAL_OUTPUT, [&self.effort])?;
        let schema = self.format.map(|format| format.schema);
        schema
            .map(|schema| schema_grammar("output_config", schema))
            .transpose()
    }
}

impl From<Tool> for crate::tool_parsers::Tool {
    fn from(tool: Tool) -> Self {
        Self {
            name: tool.name,
            description: tool.description,
            parameters: Some(tool.input_schema.into_string()),
            strict: tool.strict == Some(true),
        }
    }
}

impl ToolChoice {
    pub(super) fn into_choice(self) -> Result<ToolChoiceMode, ApiError> {
        match (self.r#type, self.name) {
            (ChoiceKind::Auto, _) => Ok(ToolChoiceMode::Auto),
            (ChoiceKind::Any, _) => Ok(ToolChoiceMode::Required),
            (ChoiceKind::None, _) => Ok(ToolChoiceMode::None),
            (ChoiceKind::Tool, Some(name)) => Ok(ToolChoiceMode::Named(name)),
            (ChoiceKind::Tool, None) => {
                let rule = "`tool_choice.name` must name a tool when the type is `tool`";
                Err(ApiError::validation("tool_choice.name", rule))
            }
        }
    }
}

impl Thinking {
    /// Whether thoughts are wanted.
    pub(super) fn is_enabled(&self) -> bool {
        self.r#type != ThinkingKind::Disabled
    }
}
