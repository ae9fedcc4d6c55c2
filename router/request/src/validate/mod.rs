//! Validation of requests: all rules, one file per subject. Only this module creates a
//! `ValidRequest`.

use crate::config::RouterConfig;
use crate::error::ApiError;
use crate::logprobs;

pub(crate) mod beam;
pub(crate) mod choices;
pub(crate) mod ends;
pub(crate) mod grammar;
pub(crate) mod input;
mod limits;
pub(crate) mod logits_processors;
mod names;
pub(crate) mod range;
pub(crate) mod sampling;
mod valid;

pub use choices::Choices;
pub use input::{
    AtEos, GenerateInput, Keep, OutputTextOptions, Parameters, Prompt, Truncation, TruncationSide,
};
pub use limits::TokenLimits;
pub(crate) use limits::too_long;
pub use names::{Dialect, FieldNames};
pub use valid::{ValidParameters, ValidRequest};

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
