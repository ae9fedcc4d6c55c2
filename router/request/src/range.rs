//! Ranges of numeric fields. Rules check them, error messages print them, and the OpenAPI
//! description lists them.

use std::fmt;

use serde_json::Value;

use crate::error::ApiError;

/// The numbers from `least` to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<T> {
    /// Lower bound.
    pub least: T,
    /// Upper bound.
    pub most: T,
    /// Which bounds belong to the range.
    pub ends: Ends,
}

/// Which bounds belong to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Both.
    Both,
    /// The upper bound only.
    Most,
    /// None.
    Neither,
}

/// A number that can bound a range.
pub trait Number: Copy + PartialOrd + fmt::Debug {
    /// Returns the JSON value: a float like 1e-6 as its shortest decimal.
    fn json(self) -> Value {
        serde_json::from_str(&format!("{self:?}")).unwrap_or_default()
    }
}

impl Number for f32 {}
impl Number for i32 {}
impl Number for i64 {}
impl Number for u32 {}
impl Number for u64 {}
impl Number for usize {}

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
        let message = format!("`{name}` must be {self}. Given: {value:?}");
        Err(ApiError::validation(name, message))
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
