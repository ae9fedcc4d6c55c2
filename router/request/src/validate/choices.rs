//! Number of choices per prompt.

use crate::error::ApiError;
use crate::range::Range;

/// Number of choices to generate from one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Choices that are returned.
    pub n: u32,
    /// Choices that are generated; the best `n` are returned. `None` = `n`. The best have the
    /// highest mean logprob of their tokens.
    pub best_of: Option<u32>,
}

/// Returns the allowed numbers of choices; `most` comes from the configuration.
pub const fn range(most: u32) -> Range<u32> {
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
    /// Returns the number of choices that are generated.
    pub fn made(self) -> u32 {
        self.best_of.unwrap_or(self.n)
    }

    /// Whether all choices must be complete before one can be returned.
    pub fn rank(self) -> bool {
        self.made() > self.n
    }

    pub(super) fn check(self, most: u32) -> Result<(), ApiError> {
        range(most).check("n", self.n)?;
        if most == 1 && self.made() > 1 {
            // TGI's message where only one choice is allowed.
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
