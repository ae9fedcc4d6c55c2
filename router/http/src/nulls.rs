//! Skips unknown fields that are null.

use std::fmt;

use serde::de::value::UnitDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer};
use serde::de::{MapAccess, Visitor};

/// Reads an object with `visitor`, hiding unknown fields that are null.
pub(super) struct SkipUnknownNulls<V> {
    pub(super) visitor: V,
    /// Names of the fields that `visitor` knows.
    pub(super) fields: &'static [&'static str],
}

/// The remaining fields.
struct Fields<M> {
    map: M,
    known: &'static [&'static str],
    /// Whether the value of the last field, an unknown one, was already read.
    read: bool,
}

/// Reads a field's name.
struct FieldNameSeed(&'static [&'static str]);

/// A field's name.
enum Name {
    Known(&'static str),
    Unknown(String),
}

impl<'de, V: Visitor<'de>> Visitor<'de> for SkipUnknownNulls<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<V::Value, M::Error> {
        self.visitor.visit_map(Fields {
            map,
            known: self.fields,
            read: false,
        })
    }
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Fields<M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, M::Error> {
        self.read = false;
        while let Some(name) = self.map.next_key_seed(FieldNameSeed(self.known))? {
            match name {
                Name::Known(name) => return seed.deserialize(name.into_deserializer()).map(Some),
                Name::Unknown(name) => {
                    if self.map.next_value::<Option<IgnoredAny>>()?.is_some() {
                        self.read = true;
                        return seed.deserialize(name.into_deserializer()).map(Some);
                    }
                }
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, M::Error> {
        if self.read {
            // The visitor ignores the value of an unknown field.
            return seed.deserialize(UnitDeserializer::new());
        }
        self.map.next_value_seed(seed)
    }
}

impl<'de> DeserializeSeed<'de> for FieldNameSeed {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Name, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldNameSeed {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
        let known = self.0.iter().find(|known| **known == name);
        Ok(known.map_or_else(
            || Name::Unknown(name.to_owned()),
            |known| Name::Known(known),
        ))
    }
}
