//! Validated parameters and requests.

use std::collections::HashSet;

use crate::error::ApiError;
use crate::grammar_spec::{ExpectedReasoning, GrammarSpec};
use crate::logprobs::LogprobRequest;
use crate::sampling_params::{SamplingParams, Watermark};
use crate::types::{EngineRequest, Stopping};

use super::limits::{new_tokens, room_for_prompt, too_long};
use super::sampling;
use super::{FieldNames, OutputTextOptions, Parameters, TokenLimits};

/// Validated parameters.
#[derive(Clone, Debug)]
pub struct ValidParameters {
    pub(super) parameters: Parameters,
    pub(super) names: FieldNames,
    pub(super) limits: TokenLimits,
    /// The server's watermark, if the output gets it.
    pub(super) watermark: Option<Watermark>,
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
            truncation.cut(&mut ids, room);
        }
        Ok(ids)
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
    logprob_request.check_prompt(names.prompt, sizes, limits.vocabulary)?;
    let ends = &*stopping.stop_token_ids;
    let early = parameters.min_new_tokens > 0;
    let impossible = if early { ends } else { &[] };
    parameters.sampling.check_possible(impossible)?;
    match &parameters.beam {
        Some(beam) => sampling::check_beam_width(beam, ends.len(), limits.vocabulary),
        None => Ok(()),
    }
}

/// Returns the ids without duplicates.
fn each_once(ids: &[u32]) -> Vec<u32> {
    let mut seen = HashSet::new();
    ids.iter().copied().filter(|&id| seen.insert(id)).collect()
}
