//! JSON of the requests of Anthropic's clients.

use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use penstock_request::grammar_spec::OutputConstraint;
use penstock_text::tool_parsers::{MOST_TOOLS, ToolChoiceMode, ToolFields};
use serde::de::{Deserializer, Error, IgnoredAny};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::neutral::{self, Neutral, Neutrals};
use crate::strict::{self, JsonText, StringOrList, StringOrListEntry, from_object};
use crate::structured_output::schema_grammar;

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

/// Maximum number of messages: more than a context holds.
pub(crate) const MOST_MESSAGES: usize = 1 << 16;
/// Names of the tool fields in this API, for errors.
pub(super) const FIELDS: ToolFields = ToolFields {
    list: "tools",
    name: "name",
    parameters: "input_schema",
    choice: "tool_choice",
    forcing: "an object of `type` `any`",
};

/// Parameters that are not supported.
pub(crate) const NEUTRAL: Neutrals<3> = [
    ("container", Neutral::Null),
    ("context_management", Neutral::Null),
    ("mcp_servers", Neutral::Json("[]")),
];
/// Parameters that are not supported and have an error code of their own.
pub(crate) const NEUTRAL_THREAD: Neutrals<1> = [("thread", Neutral::Null)];
/// The only tool type that is supported.
pub(crate) const CUSTOM: &str = "custom";

/// Body of `/v1/messages`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct MessagesRequest {
    /// The served model's id.
    #[schema(example = "brook")]
    pub(super) model: String,
    /// The conversation, not empty. If the last message is an assistant's, the output continues it.
    #[serde(deserialize_with = "messages")]
    pub(super) messages: Vec<Message>,
    /// > 0.
    #[schema(value_type = u32, example = 64)]
    pub(super) max_tokens: Option<u32>,
    /// System prompt: a text, or a list of text blocks.
    #[schema(value_type = Option<String>)]
    pub(super) system: Option<Content>,
    /// Tools that the model may call.
    #[serde(default, deserialize_with = "tools")]
    pub(super) tools: Option<Vec<Tool>>,
    /// Whether the model calls tools, and which ones.
    pub(super) tool_choice: Option<ToolChoice>,
    /// The output ends before the first of these texts.
    pub(super) stop_sequences: Option<Vec<String>>,
    /// Whether to stream.
    pub(super) stream: Option<bool>,
    /// >= 0; 0 = greedy. Default 1.
    pub(super) temperature: Option<f32>,
    /// > 0 and <= 1. Default 1.
    pub(super) top_p: Option<f32>,
    /// 0 = off.
    pub(super) top_k: Option<u32>,
    /// Whether the model reasons first, if its chat template has `enable_thinking`.
    pub(super) thinking: Option<Thinking>,
    /// Has no effect on the output.
    #[serde(rename = "metadata")]
    #[schema(value_type = Option<Object>)]
    _metadata: Option<IgnoredAny>,
    /// Has no effect on the output.
    #[serde(rename = "service_tier")]
    #[schema(value_type = Option<String>)]
    _service_tier: Option<IgnoredAny>,
    /// Has no effect: prefixes are always cached.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<IgnoredAny>,
    /// Not supported.
    #[schema(value_type = Option<Object>)]
    container: Option<JsonText>,
    /// Not supported.
    #[schema(value_type = Option<Object>)]
    context_management: Option<JsonText>,
    /// Not supported; `[]` is neutral.
    #[schema(value_type = Option<Vec<Object>>)]
    mcp_servers: Option<JsonText>,
    /// Not supported: conversations are not stored. Anthropic's tool runner tries it first and then
    /// continues without it.
    #[schema(value_type = Option<Object>)]
    thread: Option<JsonText>,
    /// Seconds until the answer must be complete, > 0; as in the header `x-request-timeout`. A
    /// request that cannot meet its deadline is refused, one that does not is ended.
    pub(super) timeout: Option<f64>,
    /// Structured output.
    pub(super) output_config: Option<OutputConfig>,
}

/// A message of the conversation. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
#[serde(remote = "Self", expecting = "a message (a JSON object)")]
pub(crate) struct Message {
    /// Author of the message.
    #[schema(inline)]
    pub(super) role: Role,
    /// A text, or a list of blocks.
    #[schema(value_type = String, example = "What is 12 + 30?")]
    pub(super) content: Content,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
}

/// A text, or a list of blocks.
pub(super) type Content = StringOrList<Block>;

/// A block of a message. Its type decides which fields apply; others have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicBlock)]
#[serde(remote = "Self", expecting = "a block (a JSON object)")]
pub(crate) struct Block {
    /// The block's type.
    #[schema(inline)]
    pub(super) r#type: BlockKind,
    /// Text of a `text` block.
    pub(super) text: Option<String>,
    /// Id of a `tool_use` block.
    pub(super) id: Option<String>,
    /// Function name of a `tool_use` block.
    pub(super) name: Option<String>,
    /// Arguments of a `tool_use` block, an object.
    #[schema(value_type = Option<Object>)]
    pub(super) input: Option<JsonText>,
    /// For `tool_result`: the id of its `tool_use` block.
    pub(super) tool_use_id: Option<String>,
    /// For `tool_result`: a text, or a list of text blocks.
    #[schema(value_type = Option<String>)]
    pub(super) content: Option<Content>,
    /// Text of a `thinking` block.
    pub(super) thinking: Option<String>,
    /// For `tool_result`: whether the tool failed. The model sees the text with the prefix `Error:
    /// `.
    pub(super) is_error: Option<bool>,
    /// For `thinking`. Has no effect.
    #[serde(rename = "signature")]
    #[schema(value_type = Option<String>)]
    _signature: Option<IgnoredAny>,
    /// For `redacted_thinking`. Has no effect.
    #[serde(rename = "data")]
    #[schema(value_type = Option<String>)]
    _data: Option<IgnoredAny>,
    /// Has no effect: prefixes are always cached.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<IgnoredAny>,
}

/// The type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BlockKind {
    Text,
    ToolUse,
    ToolResult,
    Thinking,
    RedactedThinking,
}

/// A tool. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicTool)]
#[serde(remote = "Self", expecting = "a tool (a JSON object)")]
pub(crate) struct Tool {
    /// `custom` or absent.
    #[serde(default, deserialize_with = "custom", rename = "type")]
    #[schema(value_type = Option<String>)]
    _type: (),
    /// Up to 64 characters of a-z, A-Z, 0-9, `_`, `-` and `.`.
    #[schema(example = "get_weather")]
    name: String,
    /// Description for the model.
    description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Object)]
    input_schema: JsonText,
    /// Has no effect: prefixes are always cached.
    #[serde(rename = "cache_control")]
    #[schema(value_type = Option<Object>)]
    _cache_control: Option<IgnoredAny>,
    /// Whether the arguments of calls with `auto` are held to the schema. Forced calls always are.
    strict: Option<bool>,
}

/// Whether the model calls tools, and which ones.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicToolChoice)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a choice (a JSON object)"
)]
pub(crate) struct ToolChoice {
    /// `tool` forces the named tool; `any` forces one or more calls.
    #[schema(inline)]
    r#type: ChoiceKind,
    /// The tool, for type `tool`.
    name: Option<String>,
    /// Whether the output ends after its first call.
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// The type of a tool choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChoiceKind {
    Auto,
    Any,
    Tool,
    None,
}

/// Whether the model reasons first.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct Thinking {
    /// `adaptive` is the same as `enabled`.
    #[schema(inline)]
    r#type: ThinkingKind,
    /// Has no effect: `max_tokens` bounds reasoning and text together.
    #[serde(rename = "budget_tokens")]
    _budget_tokens: Option<u32>,
    /// Has no effect: reasoning is returned unchanged.
    #[serde(rename = "display")]
    #[schema(value_type = Option<String>)]
    _display: Option<IgnoredAny>,
}

/// The format of the output.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct OutputConfig {
    /// A format; without one, the text is unconstrained.
    format: Option<OutputFormat>,
    /// Effort of the reasoning, if the model's chat template has `reasoning_effort`.
    #[schema(inline)]
    pub(super) effort: Option<Effort>,
}

/// How much a model reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// A format of outputs.
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

/// The type of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputKind {
    JsonSchema,
}

/// The type of reasoning.
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
            "`type` must be `{CUSTOM}`: the server runs no tools itself. Given: `{}`",
            Excerpt::new(other)
        ))),
    }
}

impl StringOrListEntry for Block {
    const EXPECTED: &'static str = "a string or a list of blocks";
    const MOST: usize = 1 << 14;
}

impl MessagesRequest {
    /// Fails if a parameter is not supported.
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
    /// Returns the grammar of the output, if any.
    pub(super) fn into_grammar(self) -> Result<Option<OutputConstraint>, ApiError> {
        let schema = self.format.map(|format| format.schema);
        schema
            .map(|schema| schema_grammar("output_config", schema))
            .transpose()
    }
}

impl From<Tool> for penstock_text::tool_parsers::Tool {
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
    /// Returns whether reasoning is enabled.
    pub(super) fn is_enabled(&self) -> bool {
        self.r#type != ThinkingKind::Disabled
    }
}
