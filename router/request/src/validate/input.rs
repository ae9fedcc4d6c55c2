//! The parameters of a generation, independent of the API.

use crate::error::ApiError;
use crate::grammar_spec::OutputConstraint;
use crate::logprobs::LogprobRequest;
use crate::sampling_params::SamplingParams;
use crate::types::BeamParameters;

use super::Choices;

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

/// Parts of the text that are normally omitted and are included if set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputTextOptions {
    /// The stop string that ends it.
    pub stop_string: bool,
    /// Special tokens, except for the one that ends it.
    pub special_tokens: bool,
}

/// Maximum bytes of a cache salt.
pub const MAX_SALT_BYTES: usize = 256;

pub(super) fn check_salt(salt: Option<&str>) -> Result<(), ApiError> {
    let length = salt.map_or(1, str::len);
    if (1..=MAX_SALT_BYTES).contains(&length) {
        return Ok(());
    }
    let rule = format!("`cache_salt` must have 1 to {MAX_SALT_BYTES} bytes. Given: {length}");
    Err(ApiError::validation("cache_salt", rule))
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

    /// Truncates a prompt; `room` is how many tokens leave room for the output.
    pub(super) fn cut(self, ids: &mut Vec<u32>, room: usize) {
        let keep = match self.keep {
            Keep::Tokens(tokens) => tokens,
            Keep::Room => room,
        };
        match self.side {
            TruncationSide::Left => drop(ids.drain(..ids.len().saturating_sub(keep))),
            TruncationSide::Right => ids.truncate(keep),
        }
    }
}
