//! Fields that contain token ids.

use std::fmt;

use penstock_request::error::Excerpt;
use penstock_request::validate::sampling::{
    MAX_BAD_TEXTS, MAX_LOGIT_BIASES, MAX_TOKEN_IDS, MAX_WORD_TOKENS,
};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::strict::{check_room, list, list_or_null};

/// Deserializes a list of token ids, or null.
pub(super) fn ids_or_null<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<u32>>, D::Error> {
    list_or_null::<MAX_TOKEN_IDS, _, _>(from)
}

/// Deserializes a list of lists of token ids, or null as an empty list.
pub(super) fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u32>>, D::Error> {
    let words = list_or_null::<MAX_TOKEN_IDS, Word, _>(from)?.unwrap_or_default();
    Ok(words.into_iter().map(|Word(ids)| ids).collect())
}

/// Deserializes a list of forbidden texts, or null as an empty list.
pub(super) fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(list_or_null::<MAX_BAD_TEXTS, _, _>(from)?.unwrap_or_default())
}

/// Deserializes an object from token ids (strings in JSON) to numbers, or null as an empty list.
pub(super) fn biases<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, f32)>, D::Error> {
    from.deserialize_any(Biases)
}

/// A word of one or more tokens.
struct Word(Vec<u32>);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match list::<MAX_WORD_TOKENS, _, _>(from)? {
            ids if ids.is_empty() => Err(D::Error::custom("a word must have a token")),
            ids => Ok(Self(ids)),
        }
    }
}

struct Biases;

impl<'de> Visitor<'de> for Biases {
    type Value = Vec<(u32, f32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from token ids to numbers")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut biases = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            check_room(biases.len(), MAX_LOGIT_BIASES)?;
            let id = key.parse().map_err(|_| {
                let key = Excerpt::new(&key);
                A::Error::custom(format_args!("`{key}` is not a token id"))
            })?;
            biases.push((id, map.next_value()?));
        }
        Ok(biases)
    }
}
