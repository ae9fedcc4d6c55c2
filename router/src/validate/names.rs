//! What a dialect calls the fields that rules speak about.

/// What a dialect calls the fields that rules here speak about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldNames {
    /// The prompt.
    pub prompt: &'static str,
    /// The bound on new tokens.
    pub max_new_tokens: &'static str,
    /// The lower bound on new tokens.
    pub min_new_tokens: &'static str,
    /// Alternatives told of each token.
    pub top_logprobs: &'static str,
    /// How many tokens of the prompt to keep.
    pub truncate: &'static str,
    /// Whose words tell that a request is longer than the context.
    pub dialect: Dialect,
}

/// Whose words tell that a request is longer than the context: clients search messages for them.
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
    /// `/generate` and its kin.
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
    /// `/v1/responses`. The prompt is what two fields say, between the quotes of a message.
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

    /// The same with another name of the bound on new tokens, if one was sent.
    pub fn with_bound(self, name: Option<&'static str>) -> Self {
        Self {
            max_new_tokens: name.unwrap_or(self.max_new_tokens),
            ..self
        }
    }
}
