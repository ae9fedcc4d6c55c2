//! JSON as Python writes it: templates and their models expect its spacing.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, State};

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Python's spacing, nothing escaped for HTML.
#[allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn to_json(
    _state: &State<'_, '_>,
    value: Value,
    indent: Option<usize>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = indent.or(options.get::<Option<usize>>("indent")?);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    // The default already: characters outside ASCII stay as they are.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let value = serde_json::to_value(&value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    let mut out = String::new();
    let writer = PythonJson { indent, sort };
    writer.value(&value, 0, &mut out);
    Ok(Value::from_safe_string(out))
}

/// Writes JSON with Python's separators.
struct PythonJson {
    indent: Option<usize>,
    sort: bool,
}

impl PythonJson {
    fn value(&self, value: &serde_json::Value, depth: usize, out: &mut String) {
        match value {
            serde_json::Value::Array(items) if !items.is_empty() => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.separate(i, depth + 1, out);
                    self.value(item, depth + 1, out);
                }
                self.line(depth, out);
                out.push(']');
            }
            serde_json::Value::Object(map) if !map.is_empty() => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                out.push('{');
                for (i, (key, item)) in entries.into_iter().enumerate() {
                    self.separate(i, depth + 1, out);
                    out.push_str(&serde_json::Value::from(key.as_str()).to_string());
                    out.push_str(": ");
                    self.value(item, depth + 1, out);
                }
                self.line(depth, out);
                out.push('}');
            }
            plain => out.push_str(&plain.to_string()),
        }
    }

    fn separate(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(if self.indent.is_some() { "," } else { ", " });
        }
        self.line(depth, out);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}
