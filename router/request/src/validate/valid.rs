//! Validated parameters and requests.

use std::collections::HashSet;

use crate::error::ApiError;
use crate::logprobs::LogprobRequest;
use crate::types::{EngineRequest, ReasoningMarkers, Sampling, Stopping};

use super::limits::{new_tokens, room_for_prompt, too_long};
use super::{FieldNames, OutputTextOptions, Parameters, TokenLimits};
use super::{beam, logits_processors};

/// Validated parameters.
#[derive(Clone, Debug)]
pub struct ValidParameters {
    pub(super) parameters: Parameters,
    pub(super) names: FieldNames,
    pub(super) limits: TokenLimits,
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

    /// Whether `forbid` must tokenize texts before `with_ids`.
    pub fn has_texts(&self) -> bool {
        !self.parameters.bad_words.is_empty()
    }

    /// Tokenizes the texts that the output must not contain.
    pub fn forbid(
        &mut self,
        tokens: impl Fn(&str) -> Result<Vec<u32>, ApiError>,
    ) -> Result<(), ApiError> {
        for text in std::mem::take(&mut self.parameters.bad_words) {
            self.parameters
                .logits_processors
                .forbid_text(&text, &tokens)?;
        }
        Ok(())
    }

    /// Allows reasoning before the text that the grammar constrains.
    pub fn allow_reasoning_first(&mut self, reasoning: Option<ReasoningMarkers>) {
        if let Some(grammar) = &mut self.parameters.grammar {
            grammar.reasoning = reasoning;
        }
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

    /// Combines the parameters with the prompt's ids, checking the rules that depend on its length.
    /// `eos_ids` are the model's end tokens.
    pub fn with_ids(self, mut ids: Vec<u32>, eos_ids: &[u32]) -> Result<ValidRequest, ApiError> {
        let Self {
            parameters,
            names,
            limits,
        } = self;
        // Ids from the tokenizer are checked, too: it may have tokens without an embedding row.
        logits_processors::check_ids(names.prompt, &ids, usize::MAX, limits.vocabulary)?;
        if let Some(truncation) = parameters.truncate {
            truncation.cut(&mut ids, room_for_prompt(&parameters, limits));
        }
        let max_new_tokens = new_tokens(&parameters, names, limits, ids.len())?;
        let sizes = (ids.len(), parameters.choices.made());
        let logprob_request = &parameters.logprob_request;
        logprob_request.check_prompt(names.prompt, sizes, limits.vocabulary)?;
        let stop_token_ids = parameters.stop_token_ids(eos_ids);
        let early = parameters.min_new_tokens > 0;
        let impossible = if early { &*stop_token_ids } else { &[] };
        parameters.logits_processors.check_possible(impossible)?;
        let mut logprob_options = parameters.logprob_request.logprob_options();
        logprob_options.token_ids = each_once(&parameters.logprob_token_ids);
        let mut beam = parameters.beam;
        if let Some(beam) = &mut beam {
            beam.top_logprobs = logprob_options.top;
            let stops = stop_token_ids.len();
            let candidates = beam::candidate_count(beam, stops, limits.vocabulary)?;
            logprob_options.top = candidates.max(logprob_options.top);
        }
        let grammar = parameters.grammar.clone().map(|mut grammar| {
            grammar.end_token_ids = eos_ids.to_vec();
            grammar
        });
        let engine = EngineRequest {
            prompt: ids,
            sampling: Sampling {
                temperature: parameters.temperature,
                top_k: parameters.top_k,
                top_p: parameters.top_p,
                seed: parameters.seed(),
                logits_processors: parameters.logits_processors,
                grammar,
                logprob_options,
            },
            stopping: Stopping {
                max_new_tokens: max_new_tokens.max(1),
                min_new_tokens: parameters.min_new_tokens,
                stop_token_ids,
            },
            choices: parameters.choices.made(),
            beam,
            cache_salt: parameters.cache_salt.unwrap_or_default().into_boxed_str(),
        };
        Ok(ValidRequest {
            engine,
            stop: parameters.stop,
            logprob_request: parameters.logprob_request,
            output_text: parameters.output_text,
            prompt_only: max_new_tokens == 0,
        })
    }
}

/// Returns the ids without duplicates.
fn each_once(ids: &[u32]) -> Vec<u32> {
    let mut seen = HashSet::new();
    ids.iter().copied().filter(|&id| seen.insert(id)).collect()
}
