//! Rules of sampling parameters.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::error::ApiError;

use super::Parameters;
use crate::range::Range;

/// Allowed temperatures.
pub const TEMPERATURE: Range<f32> = Range::new(0.0, f32::MAX);
/// Allowed values of `top_p`.
pub const TOP_P: Range<f32> = Range::above(0.0, 1.0);

impl Parameters {
    pub(super) fn check_sampling(&self) -> Result<(), ApiError> {
        TEMPERATURE.check("temperature", self.temperature)?;
        TOP_P.check("top_p", self.top_p)
    }

    /// Returns the client's seed, or a new one for this request.
    pub(super) fn seed(&self) -> u64 {
        // A fresh hasher has fresh random keys: good enough for a seed, which need not be secret.
        self.seed
            .unwrap_or_else(|| RandomState::new().hash_one(0_u64))
    }
}
