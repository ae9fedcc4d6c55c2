//! Python's JSON reader and writer.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};
use serde_json::value::RawValue;

use super::args::{Args, count};
use super::filters_list::sorted;
use super::python_types::{Kind, dict, integer, items, kind, pair, pairs, py_error, type_name};
use super::text;

/// Implements `json.dumps(value, ...)` with `ensure_ascii` off: Python's spacing, no HTML escapes.
#[allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn to_json(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", names)?;
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
        Some(indent) => {
            let width = count(Some(&indent), 0)?.clamp(0, 1 << 10);
            Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
        }
    };
    let (item, key) = match separators.filter(|separators| !separators.is_none()) {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(separators) => match items(&separators)?.as_slice() {
            [item, key] => (item.to_string(), key.to_string()),
            _ => return Err(py_error("ValueError", "separators are a pair")),
        },
    };
    let writer = Writer {
        ascii: is(ascii),
        sort: is(sort),
        indent,
        item,
        key,
    };
    let mut out = String::new();
    writer.value(&value, 0, &mut out)?;
    Ok(Value::from(out))
}

struct Writer {
    ascii: bool,
    sort: bool,
    /// The text of one indentation level.
    indent: Option<String>,
    /// The separator between items.
    item: String,
    /// The separator after a key.
    key: String,
}

impl Writer {
    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match kind(value) {
            Kind::None => out.push_str("null"),
            Kind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            Kind::Int => out.push_str(&value.to_string()),
            Kind::Float => out.push_str(&float(value)),
            Kind::Str => self.string(value.as_str().unwrap_or_default(), out),
            Kind::List if type_name(value) == "list" => self.list(value, depth, out)?,
            Kind::Tuple => self.list(value, depth, out)?,
            Kind::Dict => self.dict(value, depth, out)?,
            _ => {
                let name = type_name(value);
                let message = format!("Object of type {name} is not JSON serializable");
                return Err(py_error("TypeError", message));
            }
        }
        Ok(())
    }

    fn list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let list = items(value)?;
        out.push('[');
        for (index, item) in list.iter().enumerate() {
            self.separate(index, depth + 1, out);
            self.value(item, depth + 1, out)?;
        }
        if !list.is_empty() {
            self.line(depth, out);
        }
        out.push(']');
        Ok(())
    }

    fn dict(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut entries = pairs(value);
        if self.sort {
            entries = sorted_by_key(entries)?;
        }
        out.push('{');
        for (index, (key, item)) in entries.iter().enumerate() {
            self.separate(index, depth + 1, out);
            let name = match kind(key) {
                Kind::Str => key.to_string(),
                Kind::Float => float(key),
                Kind::None => "null".to_owned(),
                Kind::Bool => key.to_string().to_lowercase(),
                Kind::Int => key.to_string(),
                _ => {
                    let name = type_name(key);
                    let message = format!("keys must be str, int, float, bool or None, not {name}");
                    return Err(py_error("TypeError", message));
                }
            };
            self.string(&name, out);
            out.push_str(&self.key);
            self.value(item, depth + 1, out)?;
        }
        if !entries.is_empty() {
            self.line(depth, out);
        }
        out.push('}');
        Ok(())
    }

    fn separate(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(&self.item);
        }
        self.line(depth, out);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c if self.ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Sorts the entries by key. Fails if Python could not compare the keys.
fn sorted_by_key(entries: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Error> {
    let keyed = entries.into_iter();
    let keyed = keyed.map(|(key, value)| (key.clone(), pair((key, value))));
    let ordered = sorted(keyed.collect(), false)?;
    let entries = ordered.iter().map(|entry| {
        let part = |index: usize| entry.get_item_by_index(index);
        Ok((part(0)?, part(1)?))
    });
    entries.collect()
}

fn float(value: &Value) -> String {
    let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned()
    } else {
        text::float(number)
    }
}

/// Implements `json.loads(text)`. Integers of any size are exact.
///
/// # Errors
/// If `text` is not valid JSON.
pub(crate) fn from_json(text: &str) -> Result<Value, serde_json::Error> {
    to_value(serde_json::from_str(text)?)
}

/// Converts a parsed value. The recursion is bounded because the JSON parser limits the depth.
pub(crate) fn to_value(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let text = raw.get();
    Ok(match text.as_bytes().first() {
        Some(b'[') => {
            let list: Vec<&RawValue> = serde_json::from_str(text)?;
            Value::from(
                list.into_iter()
                    .map(to_value)
                    .collect::<Result<Vec<_>, _>>()?,
            )
        }
        Some(b'{') => {
            let Entries(entries) = serde_json::from_str(text)?;
            let entries = entries.into_iter();
            let entries = entries.map(|(key, raw)| Ok((Value::from(key), to_value(raw)?)));
            dict(entries.collect::<Result<_, serde_json::Error>>()?)
        }
        Some(b'"') => Value::from(serde_json::from_str::<String>(text)?),
        Some(b't') => Value::from(true),
        Some(b'f') => Value::from(false),
        Some(b'n') => Value::from(()),
        _ if text.contains(['.', 'e', 'E']) => Value::from(text.parse().unwrap_or(f64::INFINITY)),
        _ => integer(text),
    })
}

/// An object's entries in the order of the text.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Entries<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> serde::de::Visitor<'de> for Visitor<'a> {
            type Value = Entries<'a>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        from.deserialize_map(Visitor(std::marker::PhantomData))
    }
}
