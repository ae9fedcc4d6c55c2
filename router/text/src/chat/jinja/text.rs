//! Python's `str()` and `repr()`.

use minijinja::value::Value;

use super::python_types::{DictView, Kind, Range, kind, pairs};

/// Implements `str(value)`.
pub(super) fn to_str(value: &Value) -> String {
    let mut out = String::new();
    write_str(value, &mut out);
    out
}

/// Implements `repr(value)`.
pub(super) fn to_repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, &mut out);
    out
}

pub(super) fn write_str(value: &Value, out: &mut String) {
    match value.as_str() {
        Some(text) if kind(value) == Kind::Str => out.push_str(text),
        _ if value.is_undefined() => {}
        _ => write_repr(value, out),
    }
}

fn write_repr(value: &Value, out: &mut String) {
    match kind(value) {
        Kind::Undefined => out.push_str("Undefined"),
        Kind::Str => quote(value.as_str().unwrap_or_default(), out),
        Kind::Float => out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN))),
        Kind::Bytes => write_bytes(value.as_bytes().unwrap_or_default(), out),
        Kind::Tuple | Kind::List | Kind::Iterable => write_sequence(value, out),
        Kind::Dict => {
            out.push('{');
            for (index, (key, item)) in pairs(value).iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(key, out);
                out.push_str(": ");
                write_repr(item, out);
            }
            out.push('}');
        }
        Kind::None | Kind::Bool | Kind::Int | Kind::Other => out.push_str(&value.to_string()),
    }
}

fn write_sequence(value: &Value, out: &mut String) {
    if let Some(range) = value.downcast_object_ref::<Range>() {
        out.push_str(&range.text());
        return;
    }
    let view = value.downcast_object_ref::<DictView>();
    let (open, close) = match kind(value) {
        Kind::Tuple => ("(", ")"),
        Kind::Iterable if view.is_none() => {
            out.push_str(&value.to_string());
            return;
        }
        Kind::Iterable => ("([", "])"),
        _ => ("[", "]"),
    };
    out.push_str(view.map_or("", DictView::name));
    out.push_str(open);
    let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
    for (index, item) in items.iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        write_repr(item, out);
    }
    out.push_str(if open == "(" && items.len() == 1 {
        ","
    } else {
        ""
    });
    out.push_str(close);
}

/// Appends a string's `repr`: in single quotes, unless it contains them and no double quotes.
pub(super) fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => escape(c, out),
        }
    }
    out.push(mark);
}

/// Implements `ascii(value)`: `repr` with non-ASCII characters escaped.
pub(super) fn to_ascii(value: &Value) -> String {
    let mut out = String::new();
    for c in to_repr(value).chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            escape(c, &mut out);
        }
    }
    out
}

fn escape(c: char, out: &mut String) {
    let code = u32::from(c);
    out.push_str(&match code {
        0..0x100 => format!("\\x{code:02x}"),
        0x100..0x1_0000 => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    });
}

/// Whether Python counts `c` as whitespace: Unicode's, and four separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether `repr` prints the character as it is. Unlike Rust's `escape_debug`, Python prints
/// combining marks.
pub(super) fn is_printable(c: char) -> bool {
    c == ' '
        || (!c.is_control()
            && !c.is_whitespace()
            && (c.is_alphanumeric()
                || !c.escape_debug().to_string().starts_with("\\u{")
                || is_mark(c)))
}

/// Whether `c` is a combining mark, which Rust escapes on its own.
fn is_mark(c: char) -> bool {
    let joined = format!("a{c}").escape_debug().to_string();
    !joined.contains("\\u{")
}

fn write_bytes(bytes: &[u8], out: &mut String) {
    let mark = if bytes.contains(&b'\'') && !bytes.contains(&b'"') {
        '"'
    } else {
        '\''
    };
    out.extend(['b', mark]);
    for &byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            byte if char::from(byte) == mark => out.extend(['\\', mark]),
            b' '..=b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push(mark);
}

/// Returns a float's `repr`: the shortest digits that round-trip, with an exponent below 1e-4 and
/// from 1e16.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
