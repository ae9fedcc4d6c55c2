//! Validation of requests: all rules that do not belong to one API. Only this module creates a
//! `ValidRequest`. The rules of lengths (`limits`), and of sampling, beam search and logprobs
//! (`sampling`) have files of their own; `input` has the types that are validated.

mod input;
mod limits;
pub mod sampling;

use std::collections::HashSet;

use crate::deadline::{Deadline, MAX_TIMEOUT_SECONDS};
use crate::error::ApiError;
use crate::grammar_spec::{ExpectedReasoning, GrammarFormat, GrammarSpec};
use crate::logprobs::{LogprobRequest, MAX_TOP_LOGPROBS};
use crate::sampling_params::{SamplingParams, Watermark};
use crate::types::{EngineRequest, Stopping};
use limits::{new_tokens, room_for_prompt};
use sampling::{MAX_STOP_TOKEN_IDS, check_ids};

pub use input::{
    AtEos, Choices, Dialect, FieldNames, Keep, OutputTextOptions, Parameters, Truncation,
    TruncationSide,
};
pub use limits::{RequestLimits, TokenLimits, too_long};

/// Maximum bytes of a stop string. Its automaton uses several times its length for the whole
/// request, also while it waits.
pub const MAX_STOP_BYTES: usize = 4096;
/// Maximum bytes of a cache salt.
pub const MAX_SALT_BYTES: usize = 256;

/// Validated parameters.
#[derive(Clone, Debug)]
pub struct ValidParameters {
    parameters: Parameters,
    names: FieldNames,
    limits: TokenLimits,
    /// The server's watermark, if the output gets it.
    watermark: Option<Watermark>,
}

/// A prompt as the model gets it, and what follows from it for the output.
#[derive(Clone, Debug, Default)]
pub struct TokenizedPrompt {
    /// Token ids, from `ValidParameters::fit_prompt`.
    pub ids: Vec<u32>,
    /// The tokens with which the model ends its output.
    pub end_token_ids: Vec<u32>,
    /// The reasoning that may precede the text.
    pub reasoning: ExpectedReasoning,
}

/// A validated request, with its stop strings, which only the text layer uses.
#[derive(Clone, Debug)]
pub struct ValidRequest {
    /// The engine's part.
    pub engine: EngineRequest,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Requested logprobs.
    pub logprob_request: LogprobRequest,
    /// Which parts of the text are included.
    pub output_text: OutputTextOptions,
    /// Whether the output is the prompt alone; the one token that the engine generates is dropped
    /// then.
    pub prompt_only: bool,
}

impl Parameters {
    /// Checks every rule that needs no token ids. `names` are the client's names of the fields.
    pub fn validate(
        self,
        names: FieldNames,
        config: &RequestLimits,
        limits: TokenLimits,
    ) -> Result<ValidParameters, ApiError> {
        let parameters = self;
        parameters.sampling.check(limits.vocabulary)?;
        sampling::check_texts(&parameters.bad_words)?;
        parameters.check_stop_token_ids(limits.vocabulary)?;
        parameters.check_ends(names, config.max_stop_sequences)?;
        check_choices(parameters.choices, config.max_best_of)?;
        sampling::check_beam(&parameters, names)?;
        parameters.check_constraint(names, config.structured_output)?;
        limits::check_truncate(parameters.truncate, names, limits)?;
        check_salt(parameters.cache_salt.as_deref())?;
        check_timeout("timeout", parameters.timeout)?;
        let logprobs = parameters.logprob_request;
        sampling::check_logprobs(logprobs, names.top_logprobs, config.max_top_tokens)?;
        Ok(ValidParameters {
            watermark: parameters.watermark.then_some(config.watermark),
            parameters,
            names,
            limits,
        })
    }

    /// Checks the rules that need neither a model nor a server's settings.
    ///
    /// # Errors
    /// What every server refuses.
    pub fn check_alone(&self, names: FieldNames) -> Result<(), ApiError> {
        self.sampling.check(usize::MAX)?;
        sampling::check_texts(&self.bad_words)?;
        sampling::check_beam(self, names)?;
        sampling::check_logprobs(self.logprob_request, names.top_logprobs, MAX_TOP_LOGPROBS)
    }

    /// Checks the stop strings, and that an end is possible.
    fn check_ends(&self, names: FieldNames, max_stop: usize) -> Result<(), ApiError> {
        let name = names.max_new_tokens;
        if self.max_new_tokens == Some(0) && !self.logprob_request.echo {
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

    fn check_stop_token_ids(&self, vocabulary: usize) -> Result<(), ApiError> {
        check_ids(
            "stop_token_ids",
            &self.stop_token_ids,
            MAX_STOP_TOKEN_IDS,
            vocabulary,
        )
    }

    /// Checks that nothing conflicts with the constraint: only its grammar decides when the text is
    /// complete, by allowing the model's end tokens.
    fn check_constraint(&self, names: FieldNames, offered: bool) -> Result<(), ApiError> {
        let Some(constraint) = &self.constraint else {
            return Ok(());
        };
        let refused = |field: &'static str, rule: &str| {
            let rule = format!("`{field}` cannot go with `{}`: {rule}", constraint.field);
            Err(ApiError::validation(field, rule))
        };
        if !offered {
            let field = constraint.field;
            let rule =
                format!("grammar is not supported: `{field}` is switched off on this server");
            return Err(ApiError::validation(field, rule));
        }
        if constraint.text.is_empty() {
            let rule = format!("`{}` cannot be empty", constraint.field);
            return Err(ApiError::validation(constraint.field, rule));
        }
        let (given, most) = (constraint.text.len(), constraint.kind.max_bytes());
        if given > most {
            let field = constraint.field;
            let rule = format!("`{field}` must have at most {most} bytes. Given: {given}");
            return Err(ApiError::validation(field, rule));
        }
        if self.at_eos == AtEos::Continue {
            return refused(
                "ignore_eos",
                "only the end token may follow a complete text",
            );
        }
        if self.min_new_tokens > 0 {
            let rule = "a text that is complete earlier could not continue";
            return refused(names.min_new_tokens, rule);
        }
        if !self.bad_words.is_empty() {
            return refused("bad_words", "the grammar may need a forbidden token");
        }
        Ok(())
    }

    /// Returns the tokens that end the output, without duplicates.
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
}

impl ValidParameters {
    /// Whether the output begins with the prompt.
    pub fn echo(&self) -> bool {
        self.parameters.logprob_request.echo
    }

    /// Whether the prompt may be truncated.
    pub fn truncates(&self) -> bool {
        self.parameters.truncate.is_some()
    }

    /// Returns the prompt's ids as the model gets them: truncated.
    ///
    /// # Errors
    /// Ids outside the vocabulary.
    pub fn fit_prompt(&self, mut ids: Vec<u32>) -> Result<Vec<u32>, ApiError> {
        // Ids from the tokenizer are checked, too: it may have tokens without an embedding row.
        let vocabulary = self.limits.vocabulary;
        sampling::check_ids(self.names.prompt, &ids, usize::MAX, vocabulary)?;
        if let Some(truncation) = self.parameters.truncate {
            let room = room_for_prompt(&self.parameters, self.limits);
            limits::truncate(truncation, &mut ids, room);
        }
        Ok(ids)
    }

    /// Returns the format that a grammar gives the answer; `None` if the request has no grammar.
    pub fn grammar_format(&self) -> Option<GrammarFormat> {
        let limited = self.parameters.sampling.thinking_token_budget.is_some();
        let constraint = self.parameters.constraint.as_ref();
        let text = limited.then_some(GrammarFormat::Text);
        constraint.map(|constraint| constraint.kind).or(text)
    }

    /// Whether `forbid` must tokenize texts before `into_request`.
    pub fn has_texts(&self) -> bool {
        !self.parameters.bad_words.is_empty()
    }

    /// Tokenizes the texts that the output must not contain.
    pub fn forbid(
        &mut self,
        tokens: impl Fn(&str) -> Result<Vec<u32>, ApiError>,
    ) -> Result<(), ApiError> {
        for text in std::mem::take(&mut self.parameters.bad_words) {
            self.parameters.sampling.forbid_text(&text, &tokens)?;
        }
        Ok(())
    }

    /// Refuses a text that has at least `least` tokens however it is tokenized, if that is too long
    /// for a prompt.
    pub fn check_length(&self, least: usize) -> Result<(), ApiError> {
        self.check_length_of(self.names.prompt, least)
    }

    /// Like `check_length`, for a text in another field, which the error names.
    pub fn check_length_of(&self, field: &'static str, least: usize) -> Result<(), ApiError> {
        if self.parameters.truncate.is_some() || least <= self.limits.max_input {
            return Ok(());
        }
        let names = FieldNames {
            prompt: field,
            ..self.names
        };
        let given = format_args!("at least {least}");
        Err(too_long(names, self.limits, given))
    }

    /// Combines the parameters with the prompt, checking the rules that depend on it.
    ///
    /// # Errors
    /// A prompt that is too long, or parameters that do not fit it or the model's end tokens.
    pub fn into_request(self, prompt: TokenizedPrompt) -> Result<ValidRequest, ApiError> {
        let Self {
            parameters,
            names,
            limits,
            watermark,
        } = self;
        let max_new_tokens = new_tokens(&parameters, names, limits, prompt.ids.len())?;
        let stopping = Stopping {
            max_new_tokens: max_new_tokens.max(1),
            min_new_tokens: parameters.min_new_tokens,
            stop_token_ids: parameters.stop_token_ids(&prompt.end_token_ids),
        };
        check_with_prompt(&parameters, (names, limits), (&prompt, &stopping))?;
        let grammar = GrammarSpec::new(
            parameters.constraint,
            &parameters.sampling,
            prompt.reasoning,
            prompt.end_token_ids,
        )?;
        let logprob_request = parameters.logprob_request;
        let engine = EngineRequest {
            prompt: prompt.ids,
            sampling: SamplingParams {
                seed: sampling::seed(parameters.seed),
                watermark,
                top_logprobs: logprob_request.tokens.unwrap_or(0),
                prompt_logprobs: logprob_request.prompt_logprobs(),
                logprob_token_ids: each_once(&parameters.sampling.logprob_token_ids),
                ..parameters.sampling
            },
            grammar,
            stopping,
            choices: parameters.choices.made(),
            beam: parameters.beam,
            cache_salt: parameters.cache_salt.unwrap_or_default().into_boxed_str(),
            priority: parameters.priority,
        };
        Ok(ValidRequest {
            engine,
            stop: parameters.stop,
            logprob_request,
            output_text: parameters.output_text,
            prompt_only: max_new_tokens == 0,
        })
    }
}

/// Checks the rules that depend on the prompt and the model's end tokens.
fn check_with_prompt(
    parameters: &Parameters,
    (names, limits): (FieldNames, TokenLimits),
    (prompt, stopping): (&TokenizedPrompt, &Stopping),
) -> Result<(), ApiError> {
    let sizes = (prompt.ids.len(), parameters.choices.made());
    let logprob_request = parameters.logprob_request;
    sampling::check_prompt_logprobs(logprob_request, names.prompt, sizes, limits.vocabulary)?;
    let ends = &*stopping.stop_token_ids;
    let early = parameters.min_new_tokens > 0;
    let impossible = if early { ends } else { &[] };
    parameters.sampling.check_possible(impossible)?;
    match &parameters.beam {
        Some(beam) => sampling::check_beam_width(beam, ends.len(), limits.vocabulary),
        None => Ok(()),
    }
}

/// Checks the numbers of choices; `most` comes from the configuration.
fn check_choices(choices: Choices, most: u32) -> Result<(), ApiError> {
    let (n, made) = (choices.n, choices.made());
    Choices::range(most).check("n", n)?;
    if most == 1 && made > 1 {
        // TGI's message where only one choice is allowed.
        let rule = format!(
            "`best_of` != 1 is not allowed for this endpoint: it must be > 0 and <= 1. Given: {made}"
        );
        return Err(ApiError::validation("best_of", rule));
    }
    Choices::range(most).check("best_of", made)?;
    if made < n {
        let rule = format!("`best_of` must be >= `n` ({n}). Given: {made}");
        return Err(ApiError::validation("best_of", rule));
    }
    Ok(())
}

/// Checks the length of a cache salt.
fn check_salt(salt: Option<&str>) -> Result<(), ApiError> {
    let length = salt.map_or(1, str::len);
    if (1..=MAX_SALT_BYTES).contains(&length) {
        return Ok(());
    }
    let rule = format!("`cache_salt` must have 1 to {MAX_SALT_BYTES} bytes. Given: {length}");
    Err(ApiError::validation("cache_salt", rule))
}

/// Checks the range of a timeout in seconds, which the client named `name`.
pub fn check_timeout(name: &'static str, seconds: Option<f64>) -> Result<(), ApiError> {
    let Some(given) = seconds.filter(|&seconds| Deadline::timeout(seconds).is_none()) else {
        return Ok(());
    };
    let rule = format!(
        "`{name}` must be above 0 and at most {MAX_TIMEOUT_SECONDS} seconds. Given: {given}"
    );
    Err(ApiError::validation(name, rule))
}

/// Returns the ids without duplicates.
fn each_once(ids: &[u32]) -> Vec<u32> {
    let mut seen = HashSet::new();
    ids.iter().copied().filter(|&id| seen.insert(id)).collect()
}
