//! Validation of requests: all rules. Those of lengths and of sampling have files of their own. Only
//! this module creates a `ValidRequest`.

pub mod input;
mod limits;
pub mod sampling;
mod valid;

use crate::RequestLimits;
use crate::error::ApiError;
use crate::logprobs::MAX_TOP_LOGPROBS;
use sampling::{MAX_STOP_TOKEN_IDS, check_ids};

pub use input::{
    AtEos, Choices, Dialect, FieldNames, Keep, OutputTextOptions, Parameters, Truncation,
    TruncationSide,
};
pub use limits::TokenLimits;
pub use limits::too_long;
pub use valid::{TokenizedPrompt, ValidParameters, ValidRequest};

/// Maximum bytes of a stop string. Its automaton uses several times its length for the whole
/// request, also while it waits.
pub const MAX_STOP_BYTES: usize = 4096;

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
        parameters.choices.check(config.max_best_of)?;
        sampling::check_beam(&parameters, names)?;
        parameters.check_constraint(names, config.structured_output)?;
        limits::check_truncate(parameters.truncate, names, limits)?;
        input::check_salt(parameters.cache_salt.as_deref())?;
        (parameters.logprob_request).check(names.top_logprobs, config.max_top_tokens)?;
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
        self.logprob_request
            .check(names.top_logprobs, MAX_TOP_LOGPROBS)
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
