//! Parameters that clients may send and Penstock does not offer yet: refused by name, unless they
//! have the value that changes nothing.

use serde_json::Value;

use super::strict::JsonText;
use crate::error::ApiError;

/// A longer value is none that changes nothing.
const LONGEST: usize = 64;

/// The value of a parameter that changes nothing. Null always does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Neutral {
    /// Only null.
    Null,
    /// One of these strings.
    Text(&'static [&'static str]),
    /// An empty list or object.
    Empty,
    /// This JSON.
    Json(&'static str),
}

/// Fails with the name of the first field whose value would change something.
pub(super) fn check(fields: &[(&'static str, &Option<JsonText>, Neutral)]) -> Result<(), ApiError> {
    for (name, value, neutral) in fields {
        if value.as_ref().is_some_and(|text| !neutral.allows(text)) {
            return Err(ApiError::unsupported(name, &neutral.describe()));
        }
    }
    Ok(())
}

impl Neutral {
    fn allows(self, text: &JsonText) -> bool {
        let Some(value) = text.value(LONGEST) else {
            return false;
        };
        match (self, &value) {
            (_, Value::Null) => true,
            (Self::Text(neutral), Value::String(s)) => neutral.contains(&s.as_str()),
            (Self::Empty, Value::Array(items)) => items.is_empty(),
            (Self::Empty, Value::Object(map)) => map.is_empty(),
            (Self::Json(neutral), value) => {
                serde_json::from_str::<Value>(neutral).is_ok_and(|neutral| neutral == *value)
            }
            _ => false,
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Text(values) => format!("`{}`", values.join("` or `")),
            Self::Empty => "an empty value".into(),
            Self::Json(json) => json.into(),
        }
    }
}
