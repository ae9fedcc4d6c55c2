//! How many answers are made of a prompt.

use super::range::Range;
use crate::error::ApiError;

/// How many answers to make of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Answers that are told.
    pub n: u32,
    /// Answers that are made, of which the `n` best are told; `None` = as many as are told. The
    /// best have the highest mean log-probability of their tokens.
    pub best_of: Option<u32>,
}

/// How many answers to a prompt there may be, `most` by configuration.
pub(crate) const fn range(most: u32) -> Range<u32> {
    Range::above(0, most)
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            n: 1,
            best_of: None,
        }
    }
}

impl Choices {
    /// Answers that are made.
    pub fn made(self) -> u32 {
        self.best_of.unwrap_or(self.n)
    }

    /// Whether all answers must be complete before one can be told.
    pub fn rank(self) -> bool {
        self.made() > self.n
    }

    pub(super) fn check(self, most: u32) -> Result<(), ApiError> {
        range(most).check("n", self.n)?;
        if most == 1 && self.made() > 1 {
            // TGI's words where only one answer may be made.
            let made = self.made();
            let rule = format!(
                "`best_of` != 1 is not allowed for this endpoint: it must be > 0 and <= 1. Given: {made}"
            );
            return Err(ApiError::validation("best_of", rule));
        }
        range(most).check("best_of", self.made())?;
        if self.made() < self.n {
            let (n, made) = (self.n, self.made());
            let rule = format!("`best_of` must be >= `n` ({n}). Given: {made}");
            return Err(ApiError::validation("best_of", rule));
        }
        Ok(())
    }
}
