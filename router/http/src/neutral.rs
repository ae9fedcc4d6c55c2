//! Parameters that clients may send and Penstock does not support yet. They are refused by name
//! unless they have a neutral value, which changes nothing.

use penstock_request::error::ApiError;
use serde_json::{Value, json};

use super::strict::JsonText;

/// A text longer than this many bytes is never neutral.
const LONGEST: usize = 64;

/// The neutral values of a parameter. Null is always one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Neutral {
    /// Only null.
    Null,
    /// One of these strings.
    Text(&'static [&'static str]),
    /// This JSON value.
    Json(&'static str),
}

/// Fields with their neutral values.
pub(super) type Neutrals<const N: usize> = [(&'static str, Neutral); N];

/// Fails with the name of the first field whose value is not neutral; `values` are in the order of
/// `fields`.
pub(super) fn check<const N: usize>(
    fields: &Neutrals<N>,
    values: [&Option<JsonText>; N],
) -> Result<(), ApiError> {
    for ((name, neutral), value) in fields.iter().zip(values) {
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
            (Self::Json(neutral), value) => {
                serde_json::from_str::<Value>(neutral).is_ok_and(|neutral| neutral == *value)
            }
            _ => false,
        }
    }

    /// Returns the JSON schema of the neutral values; the type comes from the field.
    pub(super) fn schema(self) -> Value {
        match self {
            Self::Null => json!({ "enum": [null] }),
            Self::Text(values) => json!({ "enum": values }),
            Self::Json(text) => {
                json!({ "enum": [serde_json::from_str::<Value>(text).unwrap_or_default()] })
            }
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Text(values) => format!("`{}`", values.join("` or `")),
            Self::Json(json) => json.into(),
        }
    }
}
