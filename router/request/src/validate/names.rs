//! An API's names of the fields that error messages mention.

/// An API's names of the fields that error messages mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldNames {
    /// Field of the prompt.
    pub prompt: &'static str,
    /// Field of the maximum of new tokens.
    pub max_new_tokens: &'static str,
    /// Field of the minimum of new tokens.
    pub min_new_tokens: &'static str,
    /// Field of the number of top logprobs.
    pub top_logprobs: &'static str,
    /// Field of the prompt tokens to keep.
    pub truncate: &'static str,
    /// Dialect of the messages about the context length.
    pub dialect: Dialect,
}

/// Dialect of the messages about the context length: clients search them for known phrases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// TGI's.
    Native,
    /// OpenAI's and vLLM's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl FieldNames {
    /// `/generate` and related routes.
    pub const NATIVE: Self = Self {
        prompt: "inputs",
        max_new_tokens: "max_new_tokens",
        min_new_tokens: "min_new_tokens",
        top_logprobs: "top_n_tokens",
        truncate: "truncate",
        dialect: Dialect::Native,
    };
    /// `/v1/completions`, and the Python package.
    pub const COMPLETIONS: Self = Self {
        prompt: "prompt",
        max_new_tokens: "max_tokens",
        min_new_tokens: "min_tokens",
        top_logprobs: "logprobs",
        truncate: "truncate_prompt_tokens",
        dialect: Dialect::OpenAi,
    };
    /// `/v1/chat/completions`.
    pub const CHAT: Self = Self {
        prompt: "messages",
        top_logprobs: "top_logprobs",
        ..Self::COMPLETIONS
    };
    /// `/v1/responses`. The prompt consists of two fields; messages put it in backquotes.
    pub const RESPONSES: Self = Self {
        prompt: "instructions` and `input",
        max_new_tokens: "max_output_tokens",
        ..Self::CHAT
    };
    /// `/v1/messages`.
    pub const MESSAGES: Self = Self {
        prompt: "system` and `messages",
        dialect: Dialect::Anthropic,
        ..Self::CHAT
    };

    /// Returns these names with another field of the maximum of new tokens, if one was sent.
    pub fn with_bound(self, name: Option<&'static str>) -> Self {
        Self {
            max_new_tokens: name.unwrap_or(self.max_new_tokens),
            ..self
        }
    }
}
