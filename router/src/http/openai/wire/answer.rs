//! Answers of the OpenAI routes.

use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::TokenUsage;
use crate::http::openai::logprobs::{Logprobs, LogprobsById};

/// What a request cost.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompts, each counted once.
    pub(crate) prompt_tokens: usize,
    /// Tokens of all answers that were made, end tokens included.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    /// Of the prompts' tokens.
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// Tokens of prompts, by what was done with them.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Found in the prefix cache: computed for an earlier request.
    pub(crate) cached_tokens: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// As many tokens as allowed.
    Length,
    /// The answer calls tools.
    ToolCalls,
    /// The same, where they were asked for as `functions`.
    FunctionCall,
}

/// An answer of `/v1/chat/completions` in one piece.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    /// Unique.
    pub(crate) id: String,
    /// Always `chat.completion`.
    pub(crate) object: &'static str,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// The served model.
    pub(crate) model: String,
    /// Penstock's version.
    pub(crate) system_fingerprint: &'static str,
    /// `n`.
    pub(crate) choices: Vec<ChatChoice>,
    /// What it cost.
    pub(crate) usage: Usage,
    /// Of the prompt's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub(crate) prompt_logprobs: Option<Vec<Option<LogprobsById>>>,
    /// Of the prompt, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// An answer's text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// Its place among the choices.
    pub(crate) index: usize,
    /// The assistant's turn.
    pub(crate) message: AssistantMessage,
    /// Of the answer's tokens, if asked for.
    pub(crate) logprobs: Option<Logprobs>,
    /// Why it ended.
    pub(crate) finish_reason: FinishReason,
    /// Of the answer, an end token included, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// An assistant's turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AssistantMessage {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// What it says; null if it only calls tools.
    pub(crate) content: Option<String>,
    /// What the model thought before, where it shows that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// The same, by the name that vLLM's newer clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// The call of one of `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function_call: Option<FunctionCall>,
    /// Calls of tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// Unique; a message with the call's result names it.
    pub(crate) id: String,
    /// Always `function`.
    pub(crate) r#type: &'static str,
    /// What is called.
    pub(crate) function: FunctionCall,
}

/// What a call calls.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    /// A tool's name.
    pub(crate) name: String,
    /// Its arguments as JSON, as the model wrote them.
    pub(crate) arguments: String,
}

/// An answer of `/v1/completions` in one piece.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    /// Unique.
    pub(crate) id: String,
    /// Always `text_completion`.
    pub(crate) object: &'static str,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// The served model.
    pub(crate) model: String,
    /// Penstock's version.
    pub(crate) system_fingerprint: &'static str,
    /// `n` per prompt, in the prompts' order.
    pub(crate) choices: Vec<TextChoice>,
    /// What they cost together.
    pub(crate) usage: Usage,
}

/// An answer's text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextChoice {
    /// Its place among the choices: divided by `n`, which prompt it answers.
    pub(crate) index: usize,
    /// The answer.
    pub(crate) text: String,
    /// Of the tokens of its text, if asked for.
    pub(crate) logprobs: Option<Logprobs>,
    /// Of the prompt's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub(crate) prompt_logprobs: Option<Vec<Option<LogprobsById>>>,
    /// Why it ended.
    pub(crate) finish_reason: FinishReason,
    /// Of the prompt, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Of the answer, an end token included, if asked for.
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

/// A served model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Model {
    /// What to send as `model`.
    pub(crate) id: String,
    /// Always `model`.
    pub(crate) object: &'static str,
    /// Unix time in seconds when the server started.
    pub(crate) created: u64,
    /// Always `penstock`.
    pub(crate) owned_by: &'static str,
    /// Tokens of prompt and answer together; null while the model loads.
    pub(crate) max_model_len: Option<usize>,
}

impl Usage {
    /// The sum of several.
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

impl From<crate::generation::FinishReason> for FinishReason {
    fn from(reason: crate::generation::FinishReason) -> Self {
        use crate::generation::FinishReason as Reason;
        match reason {
            Reason::Length => Self::Length,
            Reason::StopToken | Reason::StopString => Self::Stop,
        }
    }
}
