//! Jinja's filters on strings.

#![allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]

use minijinja::value::Value;
use minijinja::{Error, State};

use super::args::{Args, count, needed, text};
use super::ops::{Number, escaped};
use super::printf::printf;
use super::python_types::{Kind, items, kind, len, pairs, py_error, tuple, type_name, undefined};
use super::strings::{self, strip};
use super::strings_parts::lines;
use super::text::{is_space, to_str};

pub(super) fn upper(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("upper", [])?;
    Ok(Value::from(to_str(&value).to_uppercase()))
}

pub(super) fn lower(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("lower", [])?;
    Ok(Value::from(to_str(&value).to_lowercase()))
}

pub(super) fn capitalize(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("capitalize", [])?;
    Ok(Value::from(strings::capitalize(&to_str(&value))))
}

/// Implements `title`: a word begins after whitespace or one of `-({[<`.
pub(super) fn title(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("title", [])?;
    let mut out = String::new();
    let mut first = true;
    for c in to_str(&value).chars() {
        if first {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        first = is_space(c) || "-({[<".contains(c);
    }
    Ok(Value::from(out))
}

pub(super) fn string(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("string", [])?;
    Ok(match value.as_str() {
        Some(_) => value,
        None => Value::from(to_str(&value)),
    })
}

pub(super) fn trim(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [chars] = args.bind("trim", ["chars"])?;
    let text = to_str(&value);
    strip(&text, "strip", chars.as_ref()).map(Value::from)
}

pub(super) fn replace(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [old, new, most] = args.bind("replace", ["old", "new", "count"])?;
    let (old, new) = (needed(old, "old")?, needed(new, "new")?);
    let most = most.filter(|most| !most.is_none());
    let most = count(most.as_ref(), -1)?;
    let replaced = strings::replace(&to_str(&value), &to_str(&old), &to_str(&new), most);
    Ok(Value::from(replaced))
}

pub(super) fn center(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [width] = args.bind("center", ["width"])?;
    let width = count(width.as_ref(), 80)?.min(1 << 20);
    let width = usize::try_from(width).unwrap_or(0);
    let mut out = String::new();
    strings::center(&to_str(&value), ' ', width, &mut out);
    Ok(Value::from(out))
}

pub(super) fn indent(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    if value.is_undefined() {
        return Err(undefined());
    }
    let text = text(&value)?;
    let indention = match &width {
        Some(width) if width.as_str().is_some() => to_str(width),
        width => {
            let width = count(width.as_ref(), 4)?.clamp(0, 1 << 16);
            " ".repeat(usize::try_from(width).unwrap_or(0))
        }
    };
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is(first), is(blank));
    let text = format!("{text}\n");
    let mut out = String::new();
    for (index, line) in lines(&text, false).into_iter().enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let indented = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        out.push_str(if indented { &indention } else { "" });
        out.push_str(line);
    }
    Ok(Value::from(out))
}

pub(super) fn truncate(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill, end, leeway] = args.bind("truncate", names)?;
    let length = count(length.as_ref(), 255)?;
    let leeway = leeway.filter(|leeway| !leeway.is_none());
    let leeway = count(leeway.as_ref(), 5)?;
    let end = end.unwrap_or_else(|| Value::from("..."));
    let end = text(&end)?;
    let ending = i64::try_from(len(&Value::from(end))?).unwrap_or(i64::MAX);
    if length < ending || leeway < 0 {
        let message = format!("expected length >= {ending}, got {length}");
        return Err(py_error("AssertionError", message));
    }
    if i64::try_from(len(&value)?).is_ok_and(|size| size <= length.saturating_add(leeway)) {
        return Ok(value);
    }
    let keep = usize::try_from(length - ending).unwrap_or(0);
    let kept: String = text(&value)?.chars().take(keep).collect();
    let kept = match kill {
        Some(kill) if kill.is_true() => kept.as_str(),
        _ => kept
            .rsplit_once(' ')
            .map_or(kept.as_str(), |(before, _)| before),
    };
    Ok(Value::from([kept, end].concat()))
}

pub(super) fn wordcount(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("wordcount", [])?;
    let text = to_str(&value);
    let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

pub(super) fn escape(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("escape", [])?;
    if value.is_safe() {
        return Ok(value);
    }
    Ok(Value::from_safe_string(escaped(&to_str(&value))))
}

pub(super) fn force_escape(
    _: &mut State<'_, '_>,
    value: Value,
    args: Args,
) -> Result<Value, Error> {
    let [] = args.bind("forceescape", [])?;
    Ok(Value::from_safe_string(escaped(&to_str(&value))))
}

pub(super) fn safe(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("safe", [])?;
    Ok(Value::from_safe_string(to_str(&value)))
}

/// Implements `"%s" | format(value)`.
pub(super) fn format(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let (values, named) = args.into_parts();
    let values = match (values.is_empty(), named.is_empty()) {
        (false, false) => {
            let message = "can't handle positional and keyword arguments at the same time";
            return Err(py_error("FilterArgumentError", message));
        }
        (_, true) => tuple(values),
        _ => Value::from_pairs(named),
    };
    printf(&to_str(&value), &values).map(Value::from)
}

/// Removes tags and comments and collapses each run of whitespace into one space.
pub(super) fn strip_tags(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("striptags", [])?;
    let mut text = to_str(&value);
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut from = 0;
        while let Some(start) = text[from..].find(open).map(|at| from + at) {
            let Some(end) = text[start..].find(close).map(|at| start + at + close.len()) else {
                break;
            };
            text.replace_range(start..end, "");
            from = start;
        }
    }
    let words: Vec<&str> = text.split(is_space).filter(|w| !w.is_empty()).collect();
    Ok(Value::from(unescaped(&words.join(" "))))
}

fn unescaped(text: &str) -> String {
    let named = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&quot;", "\""),
    ];
    let text = named
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    text.replace("&amp;", "&")
}

pub(super) fn urlencode(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("urlencode", [])?;
    let entries = match kind(&value) {
        Kind::Dict => pairs(&value),
        Kind::List | Kind::Tuple | Kind::Iterable => {
            let pairs = items(&value)?.into_iter().map(|pair| {
                let pair = items(&pair)?;
                match <[Value; 2]>::try_from(pair) {
                    Ok([key, value]) => Ok((key, value)),
                    Err(_) => Err(py_error("ValueError", "a pair has two items")),
                }
            });
            pairs.collect::<Result<_, Error>>()?
        }
        _ => return Ok(Value::from(quoted(&to_str(&value), false))),
    };
    let entries = entries.iter().map(|(key, value)| {
        let (key, value) = (to_str(key), to_str(value));
        format!("{}={}", quoted(&key, true), quoted(&value, true))
    });
    Ok(Value::from(entries.collect::<Vec<_>>().join("&")))
}

fn quoted(text: &str, in_query: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub(super) fn xml_attributes(
    _: &mut State<'_, '_>,
    value: Value,
    args: Args,
) -> Result<Value, Error> {
    let [space] = args.bind("xmlattr", ["autospace"])?;
    if kind(&value) != Kind::Dict {
        let name = type_name(&value);
        let message = format!("'{name}' object has no attribute 'items'");
        return Err(py_error("AttributeError", message));
    }
    let mut out = String::new();
    for (key, value) in pairs(&value) {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = to_str(&key);
        if key.contains(|c: char| c.is_ascii_whitespace() || "/>=".contains(c)) {
            let message = format!("Invalid character in attribute name: '{key}'");
            return Err(py_error("ValueError", message));
        }
        let value = escaped(&to_str(&value));
        out.push_str(if out.is_empty() { "" } else { " " });
        out.push_str(&format!("{}=\"{value}\"", escaped(&key)));
    }
    let spaced = space.is_none_or(|space| space.is_true()) && !out.is_empty();
    Ok(Value::from(if spaced { format!(" {out}") } else { out }))
}

pub(super) fn file_size(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let binary = binary.is_some_and(|binary| binary.is_true());
    let parsed = value.as_str().and_then(|text| text.trim().parse().ok());
    let size = parsed.or_else(|| Number::from_value(&value).map(Number::as_float));
    let size: f64 = size.ok_or_else(|| {
        let name = type_name(&value);
        py_error(
            "TypeError",
            format!("float() argument must be a string or a real number, not '{name}'"),
        )
    })?;
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    #[allow(clippy::float_cmp, reason = "one byte is one")]
    if size == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if size < base {
        return Ok(Value::from(format!("{:.0} Bytes", size.trunc() + 0.0)));
    }
    let mut unit = base * base;
    let mut names = ["k", "M", "G", "T", "P", "E", "Z", "Y"].iter().peekable();
    while let Some(name) = names.next() {
        if size < unit || names.peek().is_none() {
            let name = if binary {
                format!("{}iB", name.to_uppercase())
            } else {
                format!("{name}B")
            };
            return Ok(Value::from(format!("{:.1} {name}", base * size / unit)));
        }
        unit *= base;
    }
    Ok(value)
}
