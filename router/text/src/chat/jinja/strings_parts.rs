//! Methods of `str` that search or split.

use minijinja::Error;
use minijinja::value::Value;

use super::args::{Args, count, needed, text};
use super::python_types::{Kind, items, kind, py_error, tuple, type_name};
use super::text::is_space;

/// Returns `s[start:stop]` and the number of characters before it; `None` if `start` is past
/// `stop`.
fn window<'s>(
    s: &'s str,
    start: Option<&Value>,
    stop: Option<&Value>,
) -> Result<Option<(&'s str, usize)>, Error> {
    let given = |value: Option<&Value>| value.is_some_and(|value| !value.is_none());
    if !given(start) && !given(stop) {
        return Ok(Some((s, 0)));
    }
    let size = i64::try_from(s.chars().count()).unwrap_or(i64::MAX);
    let place = |value: Option<&Value>, default| -> Result<i64, Error> {
        let value = value.filter(|value| !value.is_none());
        let index = count(value, default)?;
        Ok(if index < 0 {
            (index + size).max(0)
        } else {
            index
        })
    };
    let (start, stop) = (place(start, 0)?, place(stop, size)?.min(size));
    if start > stop {
        return Ok(None);
    }
    let byte = |index: i64| {
        let index = usize::try_from(index).unwrap_or(0);
        s.char_indices().nth(index).map_or(s.len(), |(at, _)| at)
    };
    let before = usize::try_from(start).unwrap_or(0);
    Ok(Some((&s[byte(start)..byte(stop)], before)))
}

pub(super) fn find(s: &str, method: &str, args: Args) -> Result<Value, Error> {
    let [sub, start, stop] = args.bind(method, ["sub", "start", "end"])?;
    let sub = needed(sub, "sub")?;
    let sub = text(&sub)?;
    let window = window(s, start.as_ref(), stop.as_ref())?;
    if method == "count" {
        let found = window.map_or(0, |(part, _)| match sub {
            "" => part.chars().count() + 1,
            sub => part.matches(sub).count(),
        });
        return Ok(Value::from(found));
    }
    let found = window.and_then(|(part, before)| {
        let at = if method.starts_with('r') {
            part.rfind(sub)
        } else {
            part.find(sub)
        };
        at.map(|at| before + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(py_error("ValueError", "substring not found")),
    }
}

pub(super) fn edges(s: &str, method: &str, args: Args) -> Result<Value, Error> {
    let [edge, start, stop] = args.bind(method, ["prefix", "start", "end"])?;
    let edge = needed(edge, "prefix")?;
    let edges = match kind(&edge) {
        Kind::Str => vec![edge],
        Kind::Tuple => items(&edge)?,
        _ => {
            let name = type_name(&edge);
            let message = format!("{method} first arg must be str or a tuple of str, not {name}");
            return Err(py_error("TypeError", message));
        }
    };
    let Some((part, _)) = window(s, start.as_ref(), stop.as_ref())? else {
        return Ok(Value::from(false));
    };
    for edge in &edges {
        let edge = text(edge)?;
        let has = if method == "startswith" {
            part.starts_with(edge)
        } else {
            part.ends_with(edge)
        };
        if has {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

pub(super) fn parts(s: &str, method: &str, args: Args) -> Result<Value, Error> {
    match method {
        "splitlines" => {
            let [keep] = args.bind(method, ["keepends"])?;
            let lines = lines(s, keep.is_some_and(|keep| keep.is_true()));
            Ok(Value::from_iter(lines))
        }
        "partition" | "rpartition" => {
            let [sep] = args.bind(method, ["sep"])?;
            let sep = needed(sep, "sep")?;
            let sep = separator(&sep)?;
            let last = method == "rpartition";
            let found = if last {
                s.rsplit_once(sep)
            } else {
                s.split_once(sep)
            };
            let three = match found {
                Some((before, after)) => [before, sep, after],
                None if last => ["", "", s],
                None => [s, "", ""],
            };
            Ok(tuple(three.map(Value::from).to_vec()))
        }
        _ => {
            let [sep, most] = args.bind(method, ["sep", "maxsplit"])?;
            let most = usize::try_from(count(most.as_ref(), -1)?).unwrap_or(usize::MAX);
            let sep = sep.filter(|sep| !sep.is_none());
            let words = match &sep {
                None => words(s, most, method == "rsplit"),
                Some(sep) => {
                    let sep = separator(sep)?;
                    if method == "rsplit" {
                        let mut parts: Vec<_> = s.rsplitn(most.saturating_add(1), sep).collect();
                        parts.reverse();
                        parts
                    } else {
                        s.splitn(most.saturating_add(1), sep).collect()
                    }
                }
            };
            Ok(Value::from_iter(words))
        }
    }
}

fn separator(sep: &Value) -> Result<&str, Error> {
    let sep = text(sep)?;
    if sep.is_empty() {
        return Err(py_error("ValueError", "empty separator"));
    }
    Ok(sep)
}

/// Splits at whitespace, at most `most` times.
fn words(s: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = s.trim_matches(is_space);
    while !rest.is_empty() && words.len() < most {
        let cut = if from_end {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        let Some(at) = cut else {
            break;
        };
        let blank = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (word, other) = if from_end {
            (&rest[at + blank..], rest[..at].trim_end_matches(is_space))
        } else {
            (&rest[..at], rest[at..].trim_start_matches(is_space))
        };
        words.push(word);
        rest = other;
    }
    if !rest.is_empty() {
        let at = rest.as_ptr() as usize - s.as_ptr() as usize;
        // After the last split, the rest keeps its whitespace on the far side.
        words.push(match (words.len() < most, from_end) {
            (true, _) => rest,
            (false, false) => &s[at..],
            (false, true) => &s[..at + rest.len()],
        });
    }
    if from_end {
        words.reverse();
    }
    words
}

/// Implements `splitlines` with all of Python's line boundaries.
pub(super) fn lines(s: &str, keep: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(is_end) {
        let end = rest[at..].chars().next().map_or(1, char::len_utf8);
        let end = if rest[at..].starts_with("\r\n") {
            2
        } else {
            end
        };
        lines.push(&rest[..if keep { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
