//! The strings that a client attaches to a request.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use penstock_request::error::Excerpt;

/// Maximum number of pairs, as in OpenAI's API.
pub(crate) const MOST_PAIRS: usize = 16;
/// Maximum characters of a name.
pub(crate) const LONGEST_NAME: usize = 64;
/// Maximum characters of a value.
pub(crate) const LONGEST_VALUE: usize = 512;

/// Strings by name, in the client's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata(Map<String, Value>);

impl Metadata {
    /// Returns the metadata as JSON.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Pairs)
    }
}

struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Metadata, A::Error> {
        let mut read = Map::new();
        while let Some((name, value)) = pairs.next_entry::<String, String>()? {
            check("a name", &name, LONGEST_NAME)?;
            check("a value", &value, LONGEST_VALUE)?;
            read.insert(name, value.into());
            if read.len() > MOST_PAIRS {
                return Err(A::Error::custom(format_args!(
                    "the object must have at most {MOST_PAIRS} pairs"
                )));
            }
        }
        Ok(Metadata(read))
    }
}

fn check<E: Error>(what: &str, text: &str, longest: usize) -> Result<(), E> {
    if text.chars().nth(longest).is_none() {
        return Ok(());
    }
    Err(E::custom(format_args!(
        "{what} must have at most {longest} characters. Given: `{}`",
        Excerpt::new(text)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pairs_are_bounded_as_openai_has_it() {
        let read = |value: Value| serde_json::from_value::<Metadata>(value);
        let pairs = |count: usize| -> Value {
            (0..count)
                .map(|n| (n.to_string(), json!("x")))
                .collect::<Map<_, _>>()
                .into()
        };
        assert_eq!(read(pairs(16)).unwrap().to_json(), pairs(16).to_string());
        assert!(read(pairs(17)).unwrap_err().to_string().contains("16"));
        let long = |name: usize, value: usize| json!({ "é".repeat(name): "é".repeat(value) });
        assert!(read(long(64, 512)).is_ok());
        assert!(read(long(65, 1)).unwrap_err().to_string().contains("64"));
        assert!(read(long(1, 513)).unwrap_err().to_string().contains("512"));
        assert!(read(json!({"a": 1})).is_err());
    }
}
