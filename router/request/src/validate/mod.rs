//! Validation of requests: all rules, one file per subject. Only this module creates a
//! `ValidRequest`.

use crate::RequestLimits;
use crate::error::ApiError;
use crate::logprobs::MAX_TOP_LOGPROBS;

pub mod beam;
pub mod choices;
pub mod ends;
pub mod grammar;
pub mod input;
mod limits;
mod names;
pub mod sampling;
mod valid;

pub use choices::Choices;
pub use input::{AtEos, Keep, OutputTextOptions, Parameters, Truncation, TruncationSide};
pub use limits::TokenLimits;
pub use limits::too_long;
pub use names::{Dialect, FieldNames};
pub use valid::{TokenizedPrompt, ValidParameters, ValidRequest};

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
        beam::check(&parameters, names)?;
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
}

impl Parameters {
    /// Checks the rules that need neither a model nor a server's settings.
    ///
    /// # Errors
    /// What every server refuses.
    pub fn check_alone(&self, names: FieldNames) -> Result<(), ApiError> {
        self.sampling.check(usize::MAX)?;
        sampling::check_texts(&self.bad_words)?;
        beam::check(self, names)?;
        self.logprob_request
            .check(names.top_logprobs, MAX_TOP_LOGPROBS)
    }
}
