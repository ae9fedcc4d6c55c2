//! JSON deserialization that is stricter than serde's: objects cannot be given as lists, lists have
//! a maximum length, and values that are only passed on take no more memory than their text.

use std::fmt::{self, Write as _};
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

use super::nulls::SkipUnknownNulls;

/// Deserializes objects only; serde would also accept a list of an object's fields in order.
/// Unknown fields may be null: clients send all the fields they know, and null requests nothing.
pub(super) struct ObjectOnly<D>(pub(super) D);

/// Implements `Deserialize` for types that derive it with `remote = "Self"`, from objects only.
macro_rules! from_object {
    ($($name:ty),+) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <$name>::deserialize($crate::strict::ObjectOnly(from))
            }
        }
    )+};
}
pub(super) use from_object;

/// Any JSON value, as compact text: a tree could take forty times as much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonText(String);

/// A value with the JSON text that it was read from, which the response echoes.
#[derive(Clone, Debug)]
pub(crate) struct WithSource<T> {
    /// The text, compact.
    pub(crate) text: JsonText,
    /// The parsed value.
    pub(crate) value: T,
}

/// A string, or a list of entries.
#[derive(Debug)]
pub(super) enum StringOrList<T> {
    /// A string.
    Text(String),
    /// At most `T::MOST` entries.
    List(Vec<T>),
}

/// An entry of a list that may replace a string.
pub(super) trait StringOrListEntry {
    /// The expected type, for errors.
    const EXPECTED: &'static str;
    /// Maximum length of a list.
    const MOST: usize;
}

/// Deserializes a list of at most `MOST` entries.
pub(super) fn list<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    from.deserialize_seq(List::<MOST, T>(Vec::new()))
}

/// Deserializes null or a list of at most `MOST` entries.
pub(super) fn list_or_null<'de, const MOST: usize, T, D>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Bounded<const MOST: usize, T>(Vec<T>);
    impl<'de, const MOST: usize, T: Deserialize<'de>> Deserialize<'de> for Bounded<MOST, T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            list::<MOST, T, D>(from).map(Self)
        }
    }
    Ok(Option::<Bounded<MOST, T>>::deserialize(from)?.map(|list| list.0))
}

/// Deserializes a part of a body that was kept as text. The error gives the path inside it, without
/// line and column, which would not match the client's body.
pub(super) fn read_text<'de, T: Deserialize<'de>, E: Error>(text: &'de str) -> Result<T, E> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        let words = message
            .rsplit_once(" at line ")
            .map_or(message.as_str(), |(words, _)| words);
        match path.as_str() {
            "." | "?" => E::custom(words),
            path => E::custom(format_args!("`{path}`: {words}")),
        }
    })
}

/// Fails if a list of `length` entries is full.
pub(super) fn check_room<E: Error>(length: usize, most: usize) -> Result<(), E> {
    if length < most {
        return Ok(());
    }
    Err(E::custom(format_args!(
        "the list must have at most {most} entries"
    )))
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectOnly<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(SkipUnknownNulls { visitor, fields })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct List<const MOST: usize, T>(Vec<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for List<MOST, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut entries: A) -> Result<Vec<T>, A::Error> {
        gather(&mut self.0, MOST, &mut entries)?;
        Ok(self.0)
    }
}

/// Appends the remaining entries; fails if `list` would exceed `most`.
fn gather<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    list: &mut Vec<T>,
    most: usize,
    entries: &mut A,
) -> Result<(), A::Error> {
    while let Some(entry) = entries.next_element()? {
        check_room(list.len(), most)?;
        list.push(entry);
    }
    Ok(())
}

impl<'de, T: StringOrListEntry + Deserialize<'de>> Deserialize<'de> for StringOrList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(StringOrListVisitor(PhantomData))
    }
}

struct StringOrListVisitor<T>(PhantomData<T>);

impl<'de, T: StringOrListEntry + Deserialize<'de>> Visitor<'de> for StringOrListVisitor<T> {
    type Value = StringOrList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(StringOrList::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        gather(&mut list, T::MOST, &mut entries)?;
        Ok(StringOrList::List(list))
    }
}

impl JsonText {
    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text without copying it.
    pub(crate) fn into_string(self) -> String {
        self.0
    }

    /// Parses the value, if its text is no longer than `most` bytes.
    pub(crate) fn value(&self, most: usize) -> Option<Value> {
        let short = Some(self.as_str()).filter(|text| text.len() <= most);
        short.and_then(|text| serde_json::from_str(text).ok())
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut text = String::new();
        Writer(&mut text).deserialize(from)?;
        text.shrink_to_fit();
        Ok(Self(text))
    }
}

impl<'de, T: for<'text> Deserialize<'text>> Deserialize<'de> for WithSource<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = JsonText::deserialize(from)?;
        let value = read_text(text.as_str())?;
        Ok(Self { text, value })
    }
}

/// Appends the JSON text of the value that it deserializes.
struct Writer<'a>(&'a mut String);

impl Writer<'_> {
    fn put<E: Error>(self, value: impl fmt::Display) -> Result<(), E> {
        write!(self.0, "{value}").map_err(E::custom)
    }

    fn separate(&mut self, first: &mut bool) {
        if !std::mem::take(first) {
            self.0.push(',');
        }
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.put("null")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.put(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.put(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.put(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut first = true;
        self.0.push('[');
        loop {
            let start = self.0.len();
            self.separate(&mut first);
            if list.next_element_seed(Writer(self.0))?.is_none() {
                self.0.truncate(start);
                self.0.push(']');
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut first = true;
        self.0.push('{');
        while let Some(key) = map.next_key::<String>()? {
            self.separate(&mut first);
            Writer(self.0).visit_str(&key)?;
            self.0.push(':');
            map.next_value_seed(Writer(self.0))?;
        }
        self.0.push('}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_its_meaning_as_text() {
        for text in [
            r#"{"a":[1,-2,2.5,1e300,true,null,{}],"b\"\n":"é\u0001","c":[],"d":{"e":[[]]}}"#,
            "18446744073709551615",
            "\"x\"",
        ] {
            let kept: JsonText = serde_json::from_str(text).unwrap();
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(kept.as_str(), value.to_string());
        }
        let spaced: JsonText = serde_json::from_str(" [ 1 , { \"a\" : 2 } ] ").unwrap();
        assert_eq!(spaced.as_str(), r#"[1,{"a":2}]"#);
        assert_eq!((spaced.value(10), spaced.value(20).is_some()), (None, true));
        assert!(serde_json::from_str::<JsonText>(&"[".repeat(1000)).is_err());
    }

    #[test]
    fn lists_end_at_their_bound() {
        let read = |text: &str| list::<2, u32, _>(&mut serde_json::Deserializer::from_str(text));
        assert_eq!(read("[1,2]").unwrap(), [1, 2]);
        let error = read("[1,2,3]").unwrap_err().to_string();
        assert!(error.contains("at most 2 entries"), "{error}");
        let null = list_or_null::<2, u32, _>(&mut serde_json::Deserializer::from_str("null"));
        assert_eq!(null.unwrap(), None);
    }
}
