//! The parameters of a generation, independent of the API, and an API's names of them.

use crate::grammar_spec::OutputConstraint;
use crate::logprobs::LogprobRequest;
use crate::range::Range;
use crate::sampling_params::SamplingParams;
use crate::types::BeamParameters;

/// Parameters of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Maximum generated tokens; `None` = until the context is full.
    pub max_new_tokens: Option<u32>,
    /// Generated tokens before which no stop token and no stop string counts.
    pub min_new_tokens: u32,
    /// Sampling parameters. Validation adds the seed, the watermark and the logprobs, which depend
    /// on the other fields.
    pub sampling: SamplingParams,
    /// Seed of sampling; `None` = chosen for each request.
    pub seed: Option<u64>,
    /// Stop strings: the output ends at the first match.
    pub stop: Vec<String>,
    /// Truncation of the prompt; `None` = none.
    pub truncate: Option<Truncation>,
    /// Effect of the model's own end tokens.
    pub at_eos: AtEos,
    /// Further tokens that end the output.
    pub stop_token_ids: Vec<u32>,
    /// Texts that the output must not contain; once tokenized, they join the bad words of
    /// `sampling`.
    pub bad_words: Vec<String>,
    /// Whether to embed the server's watermark.
    pub watermark: bool,
    /// Requested logprobs.
    pub logprob_request: LogprobRequest,
    /// Number of choices.
    pub choices: Choices,
    /// Constraint on the output.
    pub constraint: Option<OutputConstraint>,
    /// Beam search in place of sampling.
    pub beam: Option<BeamParameters>,
    /// Parts of the text that are normally omitted.
    pub output_text: OutputTextOptions,
    /// Prefix-cache salt: only requests with the same one share computed blocks.
    pub cache_salt: Option<String>,
    /// Seconds until the answer must be complete; `None` = no deadline of its own.
    pub timeout: Option<f64>,
    /// Order among the waiting requests of a tenant, smaller first.
    pub priority: i32,
}

/// Truncation of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// How much to keep.
    pub keep: Keep,
    /// Which end to cut off.
    pub side: TruncationSide,
}

/// How much of a prompt to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// This many tokens.
    Tokens(usize),
    /// As many tokens as leave room for the output in the context.
    Room,
}

/// Which end of a prompt to cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// The beginning: the last tokens are kept.
    #[default]
    Left,
    /// The end: the first tokens are kept.
    Right,
}

/// Effect of the model's own end tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtEos {
    /// They end the output.
    #[default]
    Stop,
    /// The output continues (`ignore_eos`).
    Continue,
}

/// Parts of the text that are normally omitted and are included if set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputTextOptions {
    /// The stop string that ends it.
    pub stop_string: bool,
    /// Special tokens, except for the one that ends it.
    pub special_tokens: bool,
}

/// Number of choices to generate from one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Choices that are returned.
    pub n: u32,
    /// Choices that are generated; the best `n` are returned. `None` = `n`. The best have the
    /// highest mean logprob of their tokens.
    pub best_of: Option<u32>,
}

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

impl Default for Parameters {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            min_new_tokens: 0,
            sampling: SamplingParams::default(),
            seed: None,
            stop: Vec::new(),
            truncate: None,
            at_eos: AtEos::Stop,
            stop_token_ids: Vec::new(),
            bad_words: Vec::new(),
            watermark: false,
            choices: Choices::default(),
            constraint: None,
            logprob_request: LogprobRequest::default(),
            beam: None,
            output_text: OutputTextOptions::default(),
            cache_salt: None,
            timeout: None,
            priority: 0,
        }
    }
}

impl Truncation {
    /// Keeps the last `tokens` tokens.
    pub fn to_last(tokens: usize) -> Self {
        Self {
            keep: Keep::Tokens(tokens),
            side: TruncationSide::Left,
        }
    }
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            n: 1,
            best_of: None,
        }
    }
}

impl Choices {
    /// Returns the allowed numbers of choices; `most` comes from the configuration.
    pub const fn range(most: u32) -> Range<u32> {
        Range::above(0, most)
    }

    /// Returns the number of choices that are generated.
    pub fn made(self) -> u32 {
        self.best_of.unwrap_or(self.n)
    }

    /// Whether all choices must be complete before one can be returned.
    pub fn rank(self) -> bool {
        self.made() > self.n
    }
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
