//! Ranges of numeric fields. Rules check them, error messages print them, and the OpenAPI
//! description lists them.

use std::fmt;

use serde_json::Value;

use crate::error::ApiError;

/// The numbers from `least` to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<T> {
    /// Smallest number, or the bound below all.
    pub least: T,
    /// Largest number, or the bound above all.
    pub most: T,
    /// Which bounds belong to the range.
    pub ends: Ends,
}

/// Which bounds belong to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Both bounds.
    Both,
    /// The upper bound.
    Most,
    /// None.
    Neither,
}

/// A number that can bound a range.
pub trait Number: Copy + PartialOrd + fmt::Debug + Default {
    /// The largest number of the type.
    const LARGEST: Self;

    /// Returns the JSON value: a float like 1e-6 as its shortest decimal.
    fn json(self) -> Value {
        serde_json::from_str(&format!("{self:?}")).unwrap_or_default()
    }
}

impl Number for f32 {
    const LARGEST: Self = Self::MAX;
}
impl Number for i32 {
    const LARGEST: Self = Self::MAX;
}
impl Number for i64 {
    const LARGEST: Self = Self::MAX;
}
impl Number for u32 {
    const LARGEST: Self = Self::MAX;
}
impl Number for u64 {
    const LARGEST: Self = Self::MAX;
}
impl Number for usize {
    const LARGEST: Self = Self::MAX;
}

impl<T: Number> Range<T> {
    /// Creates a range that includes both bounds.
    pub const fn new(least: T, most: T) -> Self {
        Self::with(least, most, Ends::Both)
    }

    /// Creates a range that excludes `least`.
    pub const fn above(least: T, most: T) -> Self {
        Self::with(least, most, Ends::Most)
    }

    /// Creates a range that excludes both bounds.
    pub const fn between(least: T, most: T) -> Self {
        Self::with(least, most, Ends::Neither)
    }

    const fn with(least: T, most: T, ends: Ends) -> Self {
        Self { least, most, ends }
    }

    /// Whether the range contains a number.
    pub fn has(self, value: T) -> bool {
        let Self { least, most, ends } = self;
        match ends {
            Ends::Both => value >= least && value <= most,
            Ends::Most => value > least && value <= most,
            Ends::Neither => value > least && value < most,
        }
    }

    /// Fails if the range does not contain the value; `name` is the field's.
    pub fn check(self, name: &'static str, value: T) -> Result<(), ApiError> {
        if self.has(value) {
            return Ok(());
        }
        let message = format!("{}. Given: {value:?}", self.rule(name, value));
        Err(ApiError::validation(name, message))
    }

    /// Like `check`, with TGI's message, which does not include the value.
    pub(crate) fn check_native(self, name: &'static str, value: T) -> Result<(), ApiError> {
        if self.has(value) {
            return Ok(());
        }
        Err(ApiError::validation(name, self.rule(name, value)))
    }

    /// Returns the rule that a value breaks.
    fn rule(self, name: &'static str, value: T) -> String {
        let zero = T::default();
        let any_positive = self.ends == Ends::Most && self.most == T::LARGEST;
        if value <= zero && (self.least > zero || any_positive) {
            return format!("`{name}` must be strictly positive");
        }
        format!("`{name}` must be {self}")
    }
}

impl<T: Number> fmt::Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most, ends } = self;
        let (from, to) = match ends {
            Ends::Both => (">=", "<="),
            Ends::Most => (">", "<="),
            Ends::Neither => (">", "<"),
        };
        write!(f, "{from} {least:?} and {to} {most:?}")
    }
}
