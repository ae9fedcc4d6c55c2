//! Rules of how tokens are drawn.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::error::ApiError;

use super::Parameters;
use super::adjustment::check_value;

impl Parameters {
    pub(super) fn check_sampling(&self) -> Result<(), ApiError> {
        check_value("temperature", ">= 0 and finite", self.temperature, |t| {
            t >= 0.0 && t.is_finite()
        })?;
        check_value("top_p", "> 0.0 and <= 1.0", self.top_p, |p| {
            p > 0.0 && p <= 1.0
        })
    }

    /// The client's seed, or one made for this request.
    pub(super) fn seed(&self) -> u64 {
        // A fresh hasher has fresh random keys: enough for a seed that nobody must guess.
        self.seed
            .unwrap_or_else(|| RandomState::new().hash_one(0_u64))
    }
}
