//! Fields that accept one value or a list.

use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use crate::strict::{StringOrList, StringOrListEntry, check_room};

/// Maximum number of strings or prompts in a list: more than any configuration allows. Token ids
/// are not limited: they take little more memory than their text.
pub(crate) const MOST_PROMPTS: usize = 1024;

/// A prompt of a completion request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WirePrompt {
    /// Text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// An entry of a list of prompts. A number is a token id of a single prompt.
enum Entry {
    Prompt(WirePrompt),
    Id(u32),
}

/// Deserializes a string, a list of strings, or null as an empty list.
pub(super) fn strings<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(match Option::<StringOrList<String>>::deserialize(from)? {
        None => Vec::new(),
        Some(StringOrList::Text(text)) => vec![text],
        Some(StringOrList::List(texts)) => texts,
    })
}

/// Deserializes a text, a list of texts, a list of token ids, or a list of such lists.
pub(super) fn prompts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<WirePrompt>, D::Error> {
    from.deserialize_any(Prompts)
}

impl StringOrListEntry for String {
    const EXPECTED: &'static str = "a string or a list of strings";
    const MOST: usize = MOST_PROMPTS;
}

struct Prompts;

impl<'de> Visitor<'de> for Prompts {
    type Value = Vec<WirePrompt>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of strings, a list of token ids, or a list of such lists")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(vec![WirePrompt::Text(text.to_owned())])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut prompts = Vec::new();
        let mut ids = Vec::new();
        while let Some(entry) = list.next_element()? {
            match entry {
                Entry::Prompt(prompt) => {
                    check_room(prompts.len(), MOST_PROMPTS)?;
                    prompts.push(prompt);
                }
                Entry::Id(id) => ids.push(id),
            }
            if !prompts.is_empty() && !ids.is_empty() {
                let rule = "a list of prompts cannot hold token ids beside prompts";
                return Err(serde::de::Error::custom(rule));
            }
        }
        if !ids.is_empty() {
            prompts.push(WirePrompt::Ids(ids));
        }
        Ok(prompts)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id, or a list of token ids")
    }

    fn visit_str<E>(self, text: &str) -> Result<Entry, E> {
        Ok(Entry::Prompt(WirePrompt::Text(text.to_owned())))
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Entry, E> {
        let range = || E::invalid_value(serde::de::Unexpected::Unsigned(id), &self);
        u32::try_from(id).map(Entry::Id).map_err(|_| range())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entry, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(Entry::Prompt(WirePrompt::Ids(ids)))
    }
}
