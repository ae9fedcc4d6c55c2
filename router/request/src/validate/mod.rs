//! Validation of requests: all rules, one file per subject. Only this module creates a
//! `ValidRequest`.

use crate::error::ApiError;
use crate::{RequestLimits, logprobs};

pub mod beam;
pub mod choices;
pub mod ends;
pub mod grammar;
pub mod input;
mod limits;
pub mod logits_processors;
mod names;
pub mod sampling;
mod valid;

pub use choices::Choices;
pub use input::{AtEos, Keep, OutputTextOptions, Parameters, Truncation, TruncationSide};
pub use limits::TokenLimits;
pub use limits::too_long;
pub use names::{Dialect, FieldNames};
pub use valid::{ValidParameters, ValidRequest};

impl Parameters {
    /// Checks every rule that needs no token ids. `names` are the client's names of the fields.
    pub fn validate(
        self,
        names: FieldNames,
        config: &RequestLimits,
        limits: TokenLimits,
    ) -> Result<ValidParameters, ApiError> {
        let mut parameters = self;
        parameters.check_sampling()?;
        parameters.logits_processors.check(limits.vocabulary)?;
        logits_processors::check_texts(&parameters.bad_words)?;
        parameters.set_watermark(config.watermark);
        parameters.check_stop_token_ids(limits.vocabulary)?;
        parameters.check_ends(names, config.max_stop_sequences)?;
        parameters.choices.check(config.max_best_of)?;
        beam::check(&parameters, names)?;
        parameters.check_grammar(names, config.structured_output)?;
        limits::check_truncate(parameters.truncate, names, limits)?;
        input::check_salt(parameters.cache_salt.as_deref())?;
        logits_processors::check_ids(
            "logprob_token_ids",
            &parameters.logprob_token_ids,
            logprobs::MAX_LOGPROB_TOKEN_IDS,
            limits.vocabulary,
        )?;
        (parameters.logprob_request).check(names.top_logprobs, config.max_top_tokens)?;
        Ok(ValidParameters {
            parameters,
            names,
            limits,
        })
    }
}
