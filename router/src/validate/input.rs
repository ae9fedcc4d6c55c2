//! What a client asks for, in whatever dialect.

use crate::budget::Charge;
use crate::chat::Chat;
use crate::engine::types::{BeamParameters, GrammarSpec};
use crate::error::ApiError;
use crate::logits_processors::{LogitsProcessors, Watermark};
use crate::logprobs::LogprobRequest;
use crate::tokenize::SpecialTokens;

use super::{Choices, FieldNames};

/// What a client asks for, in whatever dialect.
#[derive(Clone, Debug)]
pub struct GenerateInput {
    /// Where the answer begins.
    pub prompt: Prompt,
    /// How it goes on and when it ends.
    pub parameters: Parameters,
    /// What the client calls these fields; read by error messages.
    pub names: FieldNames,
    /// What the prompt's bytes are counted in until they are token ids; set by the HTTP routes.
    pub charge: Charge,
}

/// Where an answer begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text, with special tokens put around it or not.
    Text(String, SpecialTokens),
    /// Texts before and after the answer, for models that fill in the middle.
    Infill {
        /// Before.
        prefix: String,
        /// After.
        suffix: String,
        /// Whether special tokens are put before them.
        special: SpecialTokens,
    },
    /// Messages for the chat template.
    Chat(Chat),
    /// Token ids, taken as they are.
    Ids(Vec<u32>),
}

/// How an answer goes on and when it ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// `None` = until the context is full.
    pub max_new_tokens: Option<u32>,
    /// No stop token and no stop string counts before so many tokens.
    pub min_new_tokens: u32,
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// `None` = chosen for each request.
    pub seed: Option<u64>,
    /// The answer ends at the first of these strings.
    pub stop: Vec<String>,
    /// What is kept of the prompt; `None` = all of it.
    pub truncate: Option<Truncation>,
    /// What the model's own end tokens do.
    pub at_eos: AtEos,
    /// More tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// What is asked of the logits; its watermark is set by `watermark`.
    pub logits_processors: LogitsProcessors,
    /// Texts that the answer may not have; they join `logits_processors` when they are tokens.
    pub bad_words: Vec<String>,
    /// Whether the server's watermark is wanted.
    pub watermark: bool,
    /// What is told of probabilities.
    pub logprob_request: LogprobRequest,
    /// Tokens whose log-probabilities are told in the place of each generated token.
    pub logprob_token_ids: Vec<u32>,
    /// How many answers to make of the prompt.
    pub choices: Choices,
    /// What the answer must spell; its end tokens are filled in here.
    pub grammar: Option<Box<GrammarSpec>>,
    /// Search for the likeliest answers instead of sampling.
    pub beam: Option<BeamParameters>,
    /// What usually is left out of the text.
    pub output_text: OutputTextOptions,
    /// Computed blocks are shared only among requests with the same one.
    pub cache_salt: Option<String>,
}

/// What is kept of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// How much.
    pub keep: Keep,
    /// The end that is cut off.
    pub side: TruncationSide,
}

/// How much of a prompt is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So many tokens.
    Tokens(usize),
    /// As many as leave room for the answer's tokens in the context.
    Room,
}

/// The end of a prompt that is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// The beginning: the last tokens are kept.
    #[default]
    Left,
    /// The end: the first tokens are kept.
    Right,
}

/// What usually is left out of an answer's text, and is not if this says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputTextOptions {
    /// The stop string that ends it.
    pub stop_string: bool,
    /// Special tokens, but for the one that ends it.
    pub special_tokens: bool,
}

/// Bytes of a cache salt at most.
pub(crate) const MAX_SALT_BYTES: usize = 256;

pub(super) fn check_salt(salt: Option<&str>) -> Result<(), ApiError> {
    let length = salt.map_or(1, str::len);
    if (1..=MAX_SALT_BYTES).contains(&length) {
        return Ok(());
    }
    let rule = format!("`cache_salt` must have 1 to {MAX_SALT_BYTES} bytes. Given: {length}");
    Err(ApiError::validation("cache_salt", rule))
}

/// What the model's own end tokens do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtEos {
    /// They end the answer.
    #[default]
    Stop,
    /// The answer goes on (`ignore_eos`).
    Continue,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            min_new_tokens: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            seed: None,
            stop: Vec::new(),
            truncate: None,
            at_eos: AtEos::Stop,
            stop_token_ids: Vec::new(),
            logits_processors: LogitsProcessors::default(),
            bad_words: Vec::new(),
            watermark: false,
            choices: Choices::default(),
            grammar: None,
            logprob_request: LogprobRequest::default(),
            logprob_token_ids: Vec::new(),
            beam: None,
            output_text: OutputTextOptions::default(),
            cache_salt: None,
        }
    }
}

impl Truncation {
    /// Keeps the last tokens.
    pub fn to_last(tokens: usize) -> Self {
        Self {
            keep: Keep::Tokens(tokens),
            side: TruncationSide::Left,
        }
    }

    /// Cuts a prompt; `room` is how many tokens leave room for the answer.
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

impl Prompt {
    /// Bytes of its text, about: what preparing it will cost.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text, _) => text.len(),
            Self::Infill { prefix, suffix, .. } => prefix.len() + suffix.len(),
            Self::Chat(chat) => chat.size(),
            Self::Ids(_) => 0,
        }
    }

    pub(super) fn check(&self, name: &'static str) -> Result<(), ApiError> {
        let empty = match self {
            Self::Text(text, _) => text.is_empty(),
            // What stands after says enough.
            Self::Infill { .. } => false,
            Self::Chat(chat) => chat.messages.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        };
        if empty {
            let rule = format!("`{name}` cannot be empty");
            return Err(ApiError::validation(name, rule));
        }
        Ok(())
    }
}

impl Parameters {
    pub(super) fn set_watermark(&mut self, servers: Watermark) {
        self.logits_processors.watermark = self.watermark.then_some(servers);
    }
}
