//! Every rule about a request, in one place. A `ValidRequest` can only be made here.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;

use crate::adjustment::{Adjustment, Watermark};
use crate::budget::Charge;
use crate::chat::Chat;
use crate::config::RouterConfig;
use crate::engine::types::{Beam, EngineRequest, Guide, Sampling, Stopping};
use crate::error::ApiError;
use crate::logprobs::Wanted;
use crate::text_bound::TextBound;
use crate::tokenize::SpecialTokens;
use crate::tools::Reading;

pub(crate) mod adjustment;
pub(crate) mod beam;

/// Bytes of one stop string: its automaton takes memory several times its length for as long as the
/// request lives, also while it waits.
const MAX_STOP_BYTES: usize = 4096;

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
    /// Keep only so many tokens at the end of the prompt.
    pub truncate: Option<usize>,
    /// What the model's own end tokens do.
    pub at_eos: AtEos,
    /// More tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// What is asked of the logits; its watermark is set by `watermark`.
    pub adjustment: Adjustment,
    /// Texts that the answer may not have; they join `adjustment` when they are tokens.
    pub bad_words: Vec<String>,
    /// Whether the server's watermark is wanted.
    pub watermark: bool,
    /// What is told of probabilities.
    pub wanted: Wanted,
    /// How many answers to make of the prompt.
    pub choices: Choices,
    /// What the answer must spell; its end tokens are filled in here.
    pub guide: Option<Box<Guide>>,
    /// Search for the likeliest answers instead of sampling.
    pub beam: Option<Beam>,
}

/// How many answers to make of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Answers that are told.
    pub n: u32,
    /// Answers that are made, of which the `n` best are told; `None` = as many as are told. The
    /// best have the highest mean log-probability of their tokens.
    pub best_of: Option<u32>,
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
    /// What is told of the prompt's tokens.
    pub prompt_logprobs: &'static str,
    /// How many tokens of the prompt to keep.
    pub truncate: &'static str,
}

/// Tokens that a request may have, as configuration and engine allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Prompt tokens.
    pub max_input: usize,
    /// Prompt and answer together.
    pub max_total: usize,
    /// Ids at or above it do not exist.
    pub vocabulary: usize,
}

/// Parameters that keep every rule.
#[derive(Clone, Debug)]
pub struct ValidParameters {
    parameters: Parameters,
    names: FieldNames,
    limits: TokenLimits,
}

/// A request that keeps every rule, with its stop strings, which stay with the text.
#[derive(Clone, Debug)]
pub struct ValidRequest {
    /// For the engine.
    pub engine: EngineRequest,
    /// For the text of the answer.
    pub stop: Vec<String>,
    /// What the text of the answer means; set for chats.
    pub reading: Reading,
    /// What is told of probabilities.
    pub wanted: Wanted,
    /// The prompt's text, if the answer begins with it.
    pub echoed: String,
    /// Whether the answer is the prompt alone: the token that the engine makes then is not told.
    pub prompt_only: bool,
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
            adjustment: Adjustment::default(),
            bad_words: Vec::new(),
            watermark: false,
            choices: Choices::default(),
            guide: None,
            wanted: Wanted::default(),
            beam: None,
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
    /// Answers that are made.
    pub fn made(self) -> u32 {
        self.best_of.unwrap_or(self.n)
    }

    /// Whether all answers must be complete before one can be told.
    pub fn rank(self) -> bool {
        self.made() > self.n
    }

    fn check(self, most: u32) -> Result<(), ApiError> {
        let within = |name: &'static str, given: u32| {
            if (1..=most).contains(&given) {
                return Ok(());
            }
            let rule = format!("`{name}` must be > 0 and <= {most}. Given: {given}");
            Err(ApiError::validation(name, rule))
        };
        within("n", self.n)?;
        within("best_of", self.made())?;
        if self.made() < self.n {
            let (n, made) = (self.n, self.made());
            let rule = format!("`best_of` must be >= `n` ({n}). Given: {made}");
            return Err(ApiError::validation("best_of", rule));
        }
        Ok(())
    }
}

impl FieldNames {
    /// `/generate` and its kin.
    pub const NATIVE: Self = Self {
        prompt: "inputs",
        max_new_tokens: "max_new_tokens",
        min_new_tokens: "min_new_tokens",
        top_logprobs: "top_n_tokens",
        prompt_logprobs: "decoder_input_details",
        truncate: "truncate",
    };
    /// `/v1/completions`, and the Python package.
    pub const COMPLETIONS: Self = Self {
        prompt: "prompt",
        max_new_tokens: "max_tokens",
        min_new_tokens: "min_tokens",
        top_logprobs: "logprobs",
        prompt_logprobs: "prompt_logprobs",
        truncate: "truncate_prompt_tokens",
    };
    /// `/v1/chat/completions`.
    pub const CHAT: Self = Self {
        prompt: "messages",
        top_logprobs: "top_logprobs",
        ..Self::COMPLETIONS
    };
}

impl TokenLimits {
    /// The smaller of what is configured and what the engine can hold.
    pub fn new(config: &RouterConfig, max_sequence_tokens: usize, vocabulary: usize) -> Self {
        let max_total = config
            .max_total_tokens
            .unwrap_or(usize::MAX)
            .min(max_sequence_tokens);
        let room = max_total.saturating_sub(1);
        let max_input = config.max_input_tokens.unwrap_or(usize::MAX).min(room);
        Self {
            max_input,
            max_total,
            vocabulary,
        }
    }
}

impl GenerateInput {
    /// Checks every rule that needs no token ids.
    pub fn validate(
        self,
        config: &RouterConfig,
        limits: TokenLimits,
    ) -> Result<(Prompt, ValidParameters), ApiError> {
        let Self {
            prompt,
            mut parameters,
            names,
            charge: _,
        } = self;
        prompt.check(names.prompt)?;
        parameters.check_sampling()?;
        parameters.adjustment.check(limits.vocabulary)?;
        adjustment::check_texts(&parameters.bad_words)?;
        parameters.set_watermark(config.watermark);
        adjustment::check_ids(
            "stop_token_ids",
            &parameters.stop_token_ids,
            adjustment::MAX_STOP_TOKEN_IDS,
            limits.vocabulary,
        )?;
        parameters.check_ends(names, config.max_stop_sequences)?;
        parameters.choices.check(config.max_best_of)?;
        beam::check(&parameters, names)?;
        parameters.check_guide(names, config.guides)?;
        check_truncate(parameters.truncate, names, limits)?;
        (parameters.wanted).check(names.top_logprobs, config.max_top_tokens)?;
        Ok((
            prompt,
            ValidParameters {
                parameters,
                names,
                limits,
            },
        ))
    }
}

impl Prompt {
    /// Bytes of its text, about: what preparing it will cost.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text, _) => text.len(),
            Self::Chat(chat) => chat.size(),
            Self::Ids(_) => 0,
        }
    }

    fn check(&self, name: &'static str) -> Result<(), ApiError> {
        let empty = match self {
            Self::Text(text, _) => text.is_empty(),
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
    fn check_sampling(&self) -> Result<(), ApiError> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let rule = format!(
                "`temperature` must be >= 0 and finite. Given: {}",
                self.temperature
            );
            return Err(ApiError::validation("temperature", rule));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            let rule = format!("`top_p` must be > 0.0 and <= 1.0. Given: {}", self.top_p);
            return Err(ApiError::validation("top_p", rule));
        }
        Ok(())
    }

    fn check_ends(&self, names: FieldNames, max_stop: usize) -> Result<(), ApiError> {
        let name = names.max_new_tokens;
        if self.max_new_tokens == Some(0) && !self.wanted.echo {
            return Err(ApiError::validation(
                name,
                format!("`{name}` must be strictly positive"),
            ));
        }
        let given = self.stop.len();
        if given > max_stop {
            let rule = format!("`stop` supports up to {max_stop} stop sequences. Given: {given}");
            return Err(ApiError::validation("stop", rule));
        }
        if self.stop.iter().any(String::is_empty) {
            let rule = "`stop` sequences cannot be empty strings";
            return Err(ApiError::validation("stop", rule));
        }
        let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
        if longest > MAX_STOP_BYTES {
            let rule = format!(
                "`stop` sequences must have at most {MAX_STOP_BYTES} bytes. Given: {longest}"
            );
            return Err(ApiError::validation("stop", rule));
        }
        Ok(())
    }

    fn set_watermark(&mut self, servers: Watermark) {
        self.adjustment.watermark = self.watermark.then_some(servers);
    }

    /// Tokens that end the answer, each once.
    fn stop_token_ids(&self, eos_ids: &[u32]) -> Vec<u32> {
        let mut ids = match self.at_eos {
            AtEos::Stop => eos_ids.to_vec(),
            AtEos::Continue => Vec::new(),
        };
        for &id in &self.stop_token_ids {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    /// A guide alone says when the answer is whole, by the model's end tokens.
    fn check_guide(&self, names: FieldNames, offered: bool) -> Result<(), ApiError> {
        let Some(guide) = &self.guide else {
            return Ok(());
        };
        let refused = |field: &'static str, rule: &str| {
            let rule = format!("`{field}` cannot go with `{}`: {rule}", guide.field);
            Err(ApiError::validation(field, rule))
        };
        if !offered {
            let field = guide.field;
            let rule =
                format!("grammar is not supported: `{field}` is switched off on this server");
            return Err(ApiError::validation(field, rule));
        }
        if guide.text.is_empty() {
            let rule = format!("`{}` cannot be empty", guide.field);
            return Err(ApiError::validation(guide.field, rule));
        }
        if self.at_eos == AtEos::Continue {
            return refused("ignore_eos", "the end token is what follows a whole text");
        }
        if self.min_new_tokens > 0 {
            let rule = "a text that is whole before could not go on";
            return refused(names.min_new_tokens, rule);
        }
        let rule = "it may need a token that is forbidden";
        if self.adjustment.allowed.is_some() {
            return refused("allowed_token_ids", rule);
        }
        if !(self.adjustment.banned.is_empty() && self.adjustment.bad_words.is_empty()) {
            return refused("bad_words_ids", rule);
        }
        if !self.bad_words.is_empty() {
            return refused("bad_words", rule);
        }
        Ok(())
    }

    fn seed(&self) -> u64 {
        // A fresh hasher has fresh random keys: enough for a seed that nobody must guess.
        self.seed
            .unwrap_or_else(|| RandomState::new().hash_one(0_u64))
    }
}

fn check_truncate(
    truncate: Option<usize>,
    names: FieldNames,
    limits: TokenLimits,
) -> Result<(), ApiError> {
    match truncate {
        Some(n) if n == 0 || n > limits.max_input => {
            let (name, max) = (names.truncate, limits.max_input);
            let rule =
                format!("`{name}` must be strictly positive and less than {max}. Given: {n}");
            Err(ApiError::validation(name, rule))
        }
        _ => Ok(()),
    }
}

impl ValidParameters {
    /// Whether the answer begins with the prompt.
    pub(crate) fn echo(&self) -> bool {
        self.parameters.wanted.echo
    }

    /// Whether texts have to be tokens before `with_ids`: `forbid` takes them.
    pub(crate) fn has_texts(&self) -> bool {
        !self.parameters.bad_words.is_empty()
    }

    /// Makes tokens of the texts that the answer may not have.
    pub(crate) fn forbid(
        &mut self,
        tokens: impl Fn(&str) -> Result<Vec<u32>, ApiError>,
    ) -> Result<(), ApiError> {
        for text in std::mem::take(&mut self.parameters.bad_words) {
            self.parameters.adjustment.forbid_text(&text, &tokens)?;
        }
        Ok(())
    }

    /// Refuses a text that has too many tokens however it is tokenized.
    pub fn check_length(&self, text: &str, bound: TextBound) -> Result<(), ApiError> {
        let least = bound.least_tokens(text.len());
        if self.parameters.truncate.is_some() || least <= self.limits.max_input {
            return Ok(());
        }
        Err(too_long(
            self.names.prompt,
            self.limits.max_input,
            format_args!("at least {least}"),
        ))
    }

    /// Joins the prompt's ids with the parameters, checking what depends on its length.
    /// `eos_ids` are the model's end tokens.
    pub fn with_ids(self, mut ids: Vec<u32>, eos_ids: &[u32]) -> Result<ValidRequest, ApiError> {
        let Self {
            parameters,
            names,
            limits,
        } = self;
        // A text's as well: a tokenizer may know tokens that its model has no row for.
        adjustment::check_ids(names.prompt, &ids, usize::MAX, limits.vocabulary)?;
        if let Some(keep) = parameters.truncate {
            ids.drain(..ids.len().saturating_sub(keep));
        }
        let max_new_tokens = new_tokens(&parameters, names, limits, ids.len())?;
        let answers = parameters.choices.made();
        (parameters.wanted).check_prompt(names.prompt, (ids.len(), answers))?;
        let stop_token_ids = parameters.stop_token_ids(eos_ids);
        let early = parameters.min_new_tokens > 0;
        let impossible = if early { &*stop_token_ids } else { &[] };
        parameters.adjustment.check_possible(impossible)?;
        let mut telling = parameters.wanted.telling();
        if let Some(beam) = &parameters.beam {
            telling.top = beam::looked_at(beam, stop_token_ids.len(), limits.vocabulary)?;
        }
        let guide = parameters.guide.clone().map(|mut guide| {
            guide.end_token_ids = eos_ids.to_vec();
            guide
        });
        let engine = EngineRequest {
            prompt: ids,
            sampling: Sampling {
                temperature: parameters.temperature,
                top_k: parameters.top_k,
                top_p: parameters.top_p,
                seed: parameters.seed(),
                adjustment: parameters.adjustment,
                guide,
                telling,
            },
            stopping: Stopping {
                max_new_tokens: max_new_tokens.max(1),
                min_new_tokens: parameters.min_new_tokens,
                stop_token_ids,
            },
            branches: parameters.choices.made(),
            beam: parameters.beam,
        };
        Ok(ValidRequest {
            engine,
            stop: parameters.stop,
            reading: Reading::default(),
            wanted: parameters.wanted,
            echoed: String::new(),
            prompt_only: max_new_tokens == 0,
        })
    }
}

/// A prompt, or another text called `name`, that has too many tokens.
pub(crate) fn too_long(name: &'static str, max: usize, given: impl fmt::Display) -> ApiError {
    let rule = format!("`{name}` must have less than {max} tokens. Given: {given}");
    ApiError::validation(name, rule)
}

/// How many tokens the answer may have.
fn new_tokens(
    parameters: &Parameters,
    names: FieldNames,
    limits: TokenLimits,
    input: usize,
) -> Result<u32, ApiError> {
    let FieldNames {
        prompt,
        max_new_tokens,
        min_new_tokens,
        ..
    } = names;
    if input == 0 {
        let rule = format!("`{prompt}` cannot be empty: the tokenizer makes no token of it");
        return Err(ApiError::validation(prompt, rule));
    }
    if input > limits.max_input {
        return Err(too_long(prompt, limits.max_input, input));
    }
    let room = u32::try_from(limits.max_total - input).unwrap_or(u32::MAX);
    let wanted = parameters.max_new_tokens.unwrap_or(room);
    if wanted > room {
        let max = limits.max_total;
        let rule = format!(
            "`{prompt}` tokens + `{max_new_tokens}` must be <= {max}. \
             Given: {input} `{prompt}` tokens and {wanted} `{max_new_tokens}`"
        );
        return Err(ApiError::validation(max_new_tokens, rule));
    }
    let least = parameters.min_new_tokens;
    if least > wanted {
        let rule =
            format!("`{min_new_tokens}` must be <= `{max_new_tokens}` ({wanted}). Given: {least}");
        return Err(ApiError::validation(min_new_tokens, rule));
    }
    Ok(wanted)
}
