//! What keeps every rule.

use std::collections::HashSet;

use crate::engine::types::{EngineRequest, Sampling, Stopping, Thoughts};
use crate::error::ApiError;
use crate::logprobs::Wanted;
use crate::text_bound::TextBound;
use crate::tools::Reading;

use super::limits::{new_tokens, room_for_prompt, too_long};
use super::{FieldNames, Parameters, Shown, TokenLimits};
use super::{adjustment, beam};

/// Parameters that keep every rule.
#[derive(Clone, Debug)]
pub struct ValidParameters {
    pub(super) parameters: Parameters,
    pub(super) names: FieldNames,
    pub(super) limits: TokenLimits,
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
    /// What else is part of the text of the answer.
    pub shown: Shown,
    /// Whether the answer is the prompt alone: the token that the engine makes then is not told.
    pub prompt_only: bool,
}

impl ValidParameters {
    /// Whether the answer begins with the prompt.
    pub(crate) fn echo(&self) -> bool {
        self.parameters.wanted.echo
    }

    /// Whether only the prompt's end may be kept.
    pub(crate) fn truncates(&self) -> bool {
        self.parameters.truncate.is_some()
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

    /// Lets thoughts come before what the answer must spell.
    pub(crate) fn think_first(&mut self, thoughts: Option<Thoughts>) {
        if let Some(guide) = &mut self.parameters.guide {
            guide.thoughts = thoughts;
        }
    }

    /// Refuses a text that has too many tokens however it is tokenized.
    pub fn check_length(&self, text: &str, bound: TextBound) -> Result<(), ApiError> {
        self.check_length_of(self.names.prompt, text, bound)
    }

    /// The same of a text in another field, which the error names.
    pub fn check_length_of(
        &self,
        field: &'static str,
        text: &str,
        bound: TextBound,
    ) -> Result<(), ApiError> {
        let least = bound.least_tokens(text.len());
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
        if let Some(truncation) = parameters.truncate {
            truncation.cut(&mut ids, room_for_prompt(&parameters, limits));
        }
        let max_new_tokens = new_tokens(&parameters, names, limits, ids.len())?;
        let answers = parameters.choices.made();
        let told = (ids.len(), answers);
        (parameters.wanted).check_prompt(names.prompt, told, limits.vocabulary)?;
        let stop_token_ids = parameters.stop_token_ids(eos_ids);
        let early = parameters.min_new_tokens > 0;
        let impossible = if early { &*stop_token_ids } else { &[] };
        parameters.adjustment.check_possible(impossible)?;
        let mut telling = parameters.wanted.telling();
        telling.token_ids = each_once(&parameters.logprob_token_ids);
        let mut beam = parameters.beam;
        if let Some(beam) = &mut beam {
            beam.told = telling.top;
            let looked_at = beam::looked_at(beam, stop_token_ids.len(), limits.vocabulary)?;
            telling.top = looked_at.max(telling.top);
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
            beam,
            cache_salt: parameters.cache_salt.unwrap_or_default().into_boxed_str(),
        };
        Ok(ValidRequest {
            engine,
            stop: parameters.stop,
            reading: Reading::default(),
            wanted: parameters.wanted,
            shown: parameters.shown,
            echoed: String::new(),
            prompt_only: max_new_tokens == 0,
        })
    }
}

/// The ids without those that were there before.
fn each_once(ids: &[u32]) -> Vec<u32> {
    let mut seen = HashSet::new();
    ids.iter().copied().filter(|&id| seen.insert(id)).collect()
}
