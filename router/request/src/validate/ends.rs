//! Rules of stop strings and stop tokens.

use crate::error::ApiError;

use super::sampling::{MAX_STOP_TOKEN_IDS, check_ids};
use super::{AtEos, FieldNames, Parameters};

/// Maximum bytes of a stop string. Its automaton uses several times its length for the whole
/// request, also while it waits.
pub const MAX_STOP_BYTES: usize = 4096;

impl Parameters {
    pub(super) fn check_ends(&self, names: FieldNames, max_stop: usize) -> Result<(), ApiError> {
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

    pub(super) fn check_stop_token_ids(&self, vocabulary: usize) -> Result<(), ApiError> {
        check_ids(
            "stop_token_ids",
            &self.stop_token_ids,
            MAX_STOP_TOKEN_IDS,
            vocabulary,
        )
    }

    /// Returns the tokens that end the output, without duplicates.
    pub(super) fn stop_token_ids(&self, eos_ids: &[u32]) -> Vec<u32> {
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
