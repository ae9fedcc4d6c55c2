//! The methods of `str`.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

use super::args::{Args, count, needed, text};
use super::format::{Padding, format, pad};
use super::predicates;
use super::python_types::{dict, integer, items, py_error, type_name};
use super::strings_parts::{edges, find, parts};
use super::text::is_space;

pub(super) const METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

pub(super) fn call(
    state: &mut State<'_, '_>,
    s: &str,
    method: &str,
    args: Args,
) -> Result<Value, Error> {
    match method {
        "format" => format(state, s, &args).map(Value::from),
        "format_map" => {
            let [mapping] = args.bind(method, ["mapping"])?;
            let mapping = needed(mapping, "mapping")?;
            let named = super::python_types::pairs(&mapping).into_iter();
            let named = named.map(|(key, value)| (key.to_string(), value));
            let named: minijinja::value::Kwargs = named.collect();
            format(state, s, &Args::new(&[named.into()])).map(Value::from)
        }
        "count" | "find" | "index" | "rfind" | "rindex" => find(s, method, args),
        "startswith" | "endswith" => edges(s, method, args),
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => parts(s, method, args),
        "center" | "ljust" | "rjust" | "zfill" => padded(s, method, args),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(method, ["chars"])?;
            strip(s, method, chars.as_ref()).map(Value::from)
        }
        "join" => {
            let [iterable] = args.bind(method, ["iterable"])?;
            join(s, &needed(iterable, "iterable")?).map(Value::from)
        }
        "replace" | "removeprefix" | "removesuffix" | "translate" | "maketrans" | "expandtabs" => {
            changed(s, method, args)
        }
        "encode" => Ok(Value::from_bytes(s.as_bytes().to_vec())),
        _ => {
            let [] = args.bind(method, [])?;
            plain(s, method)
        }
    }
}

/// Implements the methods without arguments.
fn plain(s: &str, method: &str) -> Result<Value, Error> {
    Ok(match method {
        "upper" => Value::from(s.to_uppercase()),
        "lower" => Value::from(s.to_lowercase()),
        "casefold" => Value::from(s.replace(['ß', 'ẞ'], "ss").to_lowercase()),
        "capitalize" => Value::from(capitalize(s)),
        "title" => Value::from(title(s)),
        "swapcase" => Value::from(swapcase(s)),
        _ => match predicates::evaluate(s, method) {
            Some(holds) => Value::from(holds),
            None => return Err(Error::from(ErrorKind::UnknownMethod)),
        },
    })
}

/// Implements `strip`, `lstrip` and `rstrip`.
pub(super) fn strip<'s>(s: &'s str, method: &str, chars: Option<&Value>) -> Result<&'s str, Error> {
    let chars = chars.filter(|chars| !chars.is_none());
    let chars: Option<Vec<char>> = match chars {
        Some(chars) => Some(text(chars)?.chars().collect()),
        None => None,
    };
    let goes = |c: char| {
        chars
            .as_ref()
            .map_or_else(|| is_space(c), |chars| chars.contains(&c))
    };
    Ok(match method {
        "lstrip" => s.trim_start_matches(goes),
        "rstrip" => s.trim_end_matches(goes),
        _ => s.trim_matches(goes),
    })
}

pub(super) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let first = chars.next().map(titlecase).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

/// Returns the title case. Rust has no such conversion; only pairs such as `ǆ` have a title case of
/// their own.
fn titlecase(c: char) -> String {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".to_owned(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".to_owned(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".to_owned(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".to_owned(),
        'ß' => "Ss".to_owned(),
        c => c.to_uppercase().collect(),
    }
}

fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        let cased = c.is_lowercase() || c.is_uppercase();
        match (cased, inside) {
            (true, false) => out.push_str(&titlecase(c)),
            (true, true) => out.extend(c.to_lowercase()),
            (false, _) => out.push(c),
        }
        inside = cased;
    }
    out
}

fn swapcase(s: &str) -> String {
    let swapped = s.chars().map(|c| -> String {
        if c.is_uppercase() {
            c.to_lowercase().collect()
        } else {
            c.to_uppercase().collect()
        }
    });
    swapped.collect()
}

fn padded(s: &str, method: &str, args: Args) -> Result<Value, Error> {
    const MOST: i64 = 1 << 20;
    let [width, fill] = args.bind(method, ["width", "fillchar"])?;
    let width = count(needed(width, "width").as_ref().ok(), 0)?.min(MOST);
    let width = usize::try_from(width).unwrap_or(0);
    let fill = match &fill {
        None => ' ',
        Some(fill) => {
            let mut chars = text(fill)?.chars();
            let one = chars.next().filter(|_| chars.as_str().is_empty());
            one.ok_or_else(|| {
                py_error(
                    "TypeError",
                    "The fill character must be exactly one character long",
                )
            })?
        }
    };
    let mut out = String::new();
    match method {
        "zfill" => {
            let signed = s.strip_prefix(['+', '-']);
            let (sign, digits) = s.split_at(s.len() - signed.map_or(s.len(), str::len));
            out.push_str(sign);
            let padding = Padding {
                fill: '0',
                align: '>',
                width: width.saturating_sub(sign.len()),
            };
            pad(digits, padding, &mut out);
        }
        "ljust" | "rjust" => {
            let align = if method == "ljust" { '<' } else { '>' };
            pad(s, Padding { fill, align, width }, &mut out);
        }
        _ => center(s, fill, width, &mut out),
    }
    Ok(Value::from(out))
}

/// Implements `center`: the odd space goes before the text if the width is odd.
pub(super) fn center(s: &str, fill: char, width: usize, out: &mut String) {
    let missing = width.saturating_sub(s.chars().count());
    let before = missing / 2 + (missing & width & 1);
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(s);
    out.extend(std::iter::repeat_n(fill, missing - before));
}

fn join(s: &str, iterable: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for (index, item) in items(iterable)?.iter().enumerate() {
        let part = item.as_str().ok_or_else(|| {
            let name = type_name(item);
            let message = format!("sequence item {index}: expected str instance, {name} found");
            py_error("TypeError", message)
        })?;
        out.push_str(if index > 0 { s } else { "" });
        out.push_str(part);
    }
    Ok(out)
}

fn changed(s: &str, method: &str, args: Args) -> Result<Value, Error> {
    let [first, second, third] = match method {
        "replace" => args.bind(method, ["old", "new", "count"])?,
        "expandtabs" => args.bind(method, ["tabsize", "", ""])?,
        _ => args.bind(method, ["a", "b", "c"])?,
    };
    if method == "expandtabs" {
        let size = usize::try_from(count(first.as_ref(), 8)?).unwrap_or(0);
        return Ok(Value::from(expandtabs(s, size.min(1 << 10))));
    }
    let first = needed(first, "old")?;
    Ok(match method {
        "replace" => {
            let new = needed(second, "new")?;
            let most = count(third.as_ref(), -1)?;
            Value::from(replace(s, text(&first)?, text(&new)?, most))
        }
        "removeprefix" => Value::from(s.strip_prefix(text(&first)?).unwrap_or(s)),
        "removesuffix" => Value::from(s.strip_suffix(text(&first)?).unwrap_or(s)),
        "maketrans" => {
            let (from, to) = (text(&first)?.to_owned(), needed(second, "y")?);
            let to = text(&to)?.chars().map(|c| Value::from(u32::from(c)));
            dict(
                from.chars()
                    .map(|c| Value::from(u32::from(c)))
                    .zip(to)
                    .collect(),
            )
        }
        _ => Value::from(translate(s, &first)),
    })
}

/// Implements `replace`; a negative `most` means no limit.
pub(super) fn replace(s: &str, old: &str, new: &str, most: i64) -> String {
    match usize::try_from(most) {
        Ok(most) => s.replacen(old, new, most),
        Err(_) => s.replace(old, new),
    }
}

fn translate(s: &str, table: &Value) -> String {
    let mut out = String::new();
    for c in s.chars() {
        let found = table.as_object();
        let found = found.and_then(|table| table.get_value(&integer(&u32::from(c).to_string())));
        match found {
            None => out.push(c),
            Some(to) => match to.as_i64().and_then(|code| u32::try_from(code).ok()) {
                Some(code) => out.extend(char::from_u32(code)),
                None => out.push_str(to.as_str().unwrap_or_default()),
            },
        }
    }
    out
}

fn expandtabs(s: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' if size > 0 => {
                let blanks = size - column % size;
                out.extend(std::iter::repeat_n(' ', blanks));
                column += blanks;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}
