//! Responses of the OpenAI routes.

use penstock_text::generation::TokenUsage;
use serde::Serialize;
use utoipa::ToSchema;

use crate::openai::logprobs::{Logprobs, LogprobsById};

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Prompt tokens, each prompt counted once.
    pub(crate) prompt_tokens: usize,
    /// Output tokens of all candidates, end tokens included.
    pub(crate) completion_tokens: usize,
    /// Prompt and output tokens.
    pub(crate) total_tokens: usize,
    /// Breakdown of the prompt tokens.
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// Breakdown of prompt tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Tokens found in the prefix cache.
    pub(crate) cached_tokens: usize,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit.
    Length,
    /// The output calls tools.
    ToolCalls,
    /// The output calls a function of the legacy `functions`.
    FunctionCall,
}

/// A response of `/v1/chat/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    /// Unique id.
    pub(crate) id: String,
    /// Always `chat.completion`.
    pub(crate) object: &'static str,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// The served model.
    pub(crate) model: String,
    /// Penstock's version.
    pub(crate) system_fingerprint: &'static str,
    /// `n` choices.
    pub(crate) choices: Vec<ChatChoice>,
    /// Token counts.
    pub(crate) usage: Usage,
    /// The prompt's logprobs, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub(crate) prompt_logprobs: Option<Vec<Option<LogprobsById>>>,
    /// The prompt's token ids, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// What ended the output before its maximum length, if it is no end token of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum StopReason {
    /// A stop string.
    Text(String),
    /// A token of `stop_token_ids`.
    Token(u32),
}

/// A choice of a chat.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// Index of the choice.
    pub(crate) index: usize,
    /// The assistant's message.
    pub(crate) message: AssistantMessage,
    /// The output's logprobs, if requested.
    pub(crate) logprobs: Option<Logprobs>,
    /// Why the output ended.
    pub(crate) finish_reason: FinishReason,
    /// The stop string, or the token of `stop_token_ids`, that ended the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
    /// The output's token ids, an end token included, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// An assistant's message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AssistantMessage {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The text; null if the message only calls tools.
    pub(crate) content: Option<String>,
    /// The reasoning before the text, unless hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Same as `reasoning_content`; the name that recent vLLM clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// The call of one of the legacy `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function_call: Option<FunctionCall>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A tool call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// Unique id, which the message with the call's result repeats.
    pub(crate) id: String,
    /// Always `function`.
    pub(crate) r#type: &'static str,
    /// The called function.
    pub(crate) function: FunctionCall,
}

/// The function and the arguments of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    /// The function's name.
    pub(crate) name: String,
    /// Arguments as JSON, unchanged from the model.
    pub(crate) arguments: String,
}

/// A response of `/v1/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    /// Unique id.
    pub(crate) id: String,
    /// Always `text_completion`.
    pub(crate) object: &'static str,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// The served model.
    pub(crate) model: String,
    /// Penstock's version.
    pub(crate) system_fingerprint: &'static str,
    /// `n` choices per prompt, in the order of the prompts.
    pub(crate) choices: Vec<TextChoice>,
    /// Token counts of all choices.
    pub(crate) usage: Usage,
}

/// A choice of a completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextChoice {
    /// Index of the choice. Divided by `n`, it is the index of the prompt.
    pub(crate) index: usize,
    /// The text.
    pub(crate) text: String,
    /// Logprobs of the text's tokens, if requested.
    pub(crate) logprobs: Option<Logprobs>,
    /// The prompt's logprobs, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub(crate) prompt_logprobs: Option<Vec<Option<LogprobsById>>>,
    /// Why the output ended.
    pub(crate) finish_reason: FinishReason,
    /// The stop string, or the token of `stop_token_ids`, that ended the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
    /// The prompt's token ids, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// The output's token ids, an end token included, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// The served models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The served model, once for each of its names.
    pub(crate) data: Vec<Model>,
}

/// A name of the served model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Model {
    /// The value of `model` in requests.
    pub(crate) id: String,
    /// Always `model`.
    pub(crate) object: &'static str,
    /// Start of the server in Unix seconds.
    pub(crate) created: u64,
    /// Always `penstock`.
    pub(crate) owned_by: &'static str,
    /// Maximum number of prompt and output tokens together; null while the model loads.
    pub(crate) max_model_len: Option<usize>,
}

impl Usage {
    /// Adds up token counts.
    pub(crate) fn sum(parts: impl Iterator<Item = TokenUsage>) -> Self {
        let add = |sum: Self, cost: TokenUsage| {
            let completion_tokens = sum.completion_tokens + cost.generated as usize;
            let prompt_tokens = sum.prompt_tokens + cost.prompt;
            let cached_tokens = sum.prompt_tokens_details.cached_tokens + cost.cached;
            Self {
                prompt_tokens,
                completion_tokens,
                total_tokens: prompt_tokens + completion_tokens,
                prompt_tokens_details: PromptDetails { cached_tokens },
            }
        };
        parts.fold(Self::default(), add)
    }
}

impl From<penstock_text::generation::FinishReason> for FinishReason {
    fn from(reason: penstock_text::generation::FinishReason) -> Self {
        use penstock_text::generation::FinishReason as Reason;
        match reason {
            Reason::Length => Self::Length,
            Reason::StopToken | Reason::StopString => Self::Stop,
        }
    }
}
