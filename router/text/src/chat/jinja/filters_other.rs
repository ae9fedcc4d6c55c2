//! Jinja's filters on numbers and on values of any type.

#![allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]

use minijinja::value::Value;
use minijinja::{Error, State};

use super::args::{Args, count, needed, text};
use super::ops::Number;
use super::python_types::{
    Kind, from_i128, integer, items, kind, pairs, py_error, type_name, undefined,
};
use super::text::{is_space, to_repr, to_str};

pub(super) fn default(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
    let false_too = boolean.is_some_and(|boolean| boolean.is_true());
    Ok(if value.is_undefined() || (false_too && !value.is_true()) {
        default.unwrap_or_else(|| Value::from(""))
    } else {
        value
    })
}

pub(super) fn abs(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("abs", [])?;
    match Number::from_value(&value) {
        Some(Number::Int(number)) => Ok(from_i128(number.saturating_abs())),
        Some(Number::Float(number)) => Ok(Value::from(number.abs())),
        None if value.is_undefined() => Err(undefined()),
        None => {
            let name = type_name(&value);
            Err(py_error(
                "TypeError",
                format!("bad operand type for abs(): '{name}'"),
            ))
        }
    }
}

pub(super) fn int(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    let base = count(base.as_ref(), 10)?;
    let default = default.unwrap_or_else(|| Value::from(0));
    if value.is_undefined() {
        // As in Jinja, an undefined value raises instead of giving `default`.
        return Err(undefined());
    }
    let whole = |number: f64| -> Option<Value> {
        #[allow(clippy::cast_possible_truncation, reason = "checked")]
        let fits = number.abs() < 1e38;
        if fits {
            #[allow(clippy::cast_possible_truncation, reason = "checked")]
            Some(from_i128(number as i128))
        } else if number.is_finite() {
            Some(integer(&format!("{number:.0}")))
        } else {
            None
        }
    };
    let parsed = match (value.as_str(), Number::from_value(&value)) {
        (Some(text), _) => parse_int(text, base).or_else(|| parse_float(text).and_then(whole)),
        (_, Some(Number::Int(number))) => Some(from_i128(number)),
        (_, Some(Number::Float(number))) => whole(number),
        _ if kind(&value) == Kind::Int => Some(value.clone()),
        _ => None,
    };
    Ok(parsed.unwrap_or(default))
}

/// Implements `int(text, base)`; `None` where Python raises.
fn parse_int(text: &str, base: i64) -> Option<Value> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let lower = digits.to_lowercase();
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefix = prefixes
        .iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (base == 0 || base == *of));
    let (digits, base) = match prefix {
        Some((prefix, of)) => {
            let digits = &lower[prefix.len()..];
            (digits.strip_prefix('_').unwrap_or(digits), *of)
        }
        None if base == 0 => (lower.as_str(), 10),
        None => (lower.as_str(), base),
    };
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))?;
    let outer = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    let digits = digits.replace('_', "");
    if outer || digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    let sign = if negative { "-" } else { "" };
    match i128::from_str_radix(&digits, base) {
        Ok(number) => Some(from_i128(if negative { -number } else { number })),
        Err(_) if base == 10 => Some(integer(&format!(
            "{sign}{}",
            digits.trim_start_matches('0')
        ))),
        Err(_) => None,
    }
}

/// Implements `float(text)`; `None` where Python raises.
fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let outer = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    let plain = text.replace('_', "");
    if outer || plain.is_empty() {
        return None;
    }
    plain.parse().ok()
}

pub(super) fn float(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [default] = args.bind("float", ["default"])?;
    if value.is_undefined() {
        return Err(undefined());
    }
    let parsed = match value.as_str() {
        Some(text) => parse_float(text),
        None => Number::from_value(&value).map(Number::as_float),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn round(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = count(precision.as_ref(), 0)?.clamp(-400, 400);
    let precision = i32::try_from(precision).unwrap_or(0);
    let method = method.map_or_else(|| "common".to_owned(), |method| to_str(&method));
    let number = Number::from_value(&value).ok_or_else(|| {
        if value.is_undefined() {
            return undefined();
        }
        let name = type_name(&value);
        py_error(
            "TypeError",
            format!("type {name} doesn't define __round__ method"),
        )
    })?;
    let float = number.as_float();
    let scale = 10_f64.powi(precision);
    let rounded = match (method.as_str(), number) {
        ("common", Number::Int(number)) => return Ok(round_int(number, precision)),
        ("common", Number::Float(number)) => round_float(number, precision),
        ("ceil", _) => ((float * scale).ceil() + 0.0) / scale,
        ("floor", _) => ((float * scale).floor() + 0.0) / scale,
        _ => {
            let message = "method must be common, ceil or floor";
            return Err(py_error("FilterArgumentError", message));
        }
    };
    Ok(Value::from(rounded))
}

/// Implements `round(number, places)`: rounds the exact binary value, halves to the even digit.
fn round_float(number: f64, places: i32) -> f64 {
    if !number.is_finite() {
        return number;
    }
    if let Ok(places) = usize::try_from(places) {
        return format!("{number:.places$}").parse().unwrap_or(number);
    }
    let scale = 10_f64.powi(-places);
    (number / scale).round_ties_even() * scale
}

fn round_int(number: i128, places: i32) -> Value {
    let Some(unit) = u32::try_from(-places).ok().filter(|digits| *digits > 0) else {
        return from_i128(number);
    };
    let Some(unit) = 10_i128.checked_pow(unit) else {
        return Value::from(0);
    };
    let (down, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let up = rest * 2 > unit || (rest * 2 == unit && down % 2 != 0);
    from_i128((down + i128::from(up)) * unit)
}

pub(super) fn attr(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [name] = args.bind("attr", ["name"])?;
    if value.is_undefined() {
        return Err(undefined());
    }
    let name = needed(name, "name")?;
    let name = text(&name)?;
    if super::methods::exists(&value, name) {
        return Ok(Value::from_object(super::python_types::BoundMethod {
            method: name.to_owned(),
            value,
        }));
    }
    // The items of a dict are not attributes.
    match kind(&value) {
        Kind::Other | Kind::List => value.get_attr(name),
        _ => Ok(Value::UNDEFINED),
    }
}

/// Implements `pprint.pformat`: keys are sorted, and a container wider than 80 characters has one
/// item per line.
pub(super) fn pprint(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("pprint", [])?;
    let mut out = String::new();
    pretty(&value, (0, 0), &mut out);
    Ok(Value::from(out))
}

/// Implements `repr` with sorted keys.
fn flat(value: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    let (open, close) = match kind(value) {
        Kind::Dict => {
            for (key, item) in by_key(value) {
                parts.push(format!("{}: {}", flat(&key), flat(&item)));
            }
            ("{", "}")
        }
        Kind::List | Kind::Tuple => {
            parts.extend(items(value).unwrap_or_default().iter().map(flat));
            if kind(value) == Kind::List {
                ("[", "]")
            } else if parts.len() == 1 {
                ("(", ",)")
            } else {
                ("(", ")")
            }
        }
        _ => return to_repr(value),
    };
    format!("{open}{}{close}", parts.join(", "))
}

fn by_key(value: &Value) -> Vec<(Value, Value)> {
    let mut entries = pairs(value);
    entries.sort_by(|(a, _), (b, _)| {
        let order = super::lookups::order("<", a, b).ok().flatten();
        order.unwrap_or_else(|| type_name(a).cmp(type_name(b)))
    });
    entries
}

/// Writes a value that begins at column `indent` and is followed by `after` characters.
fn pretty(value: &Value, (indent, after): (usize, usize), out: &mut String) {
    const WIDTH: usize = 80;
    let line = flat(value);
    let container = matches!(kind(value), Kind::Dict | Kind::List | Kind::Tuple);
    if !container || line.chars().count() + indent + after <= WIDTH {
        out.push_str(&line);
        return;
    }
    let separator = format!(",\n{}", " ".repeat(indent + 1));
    if kind(value) == Kind::Dict {
        out.push('{');
        let entries = by_key(value);
        for (index, (key, item)) in entries.iter().enumerate() {
            out.push_str(if index > 0 { &separator } else { "" });
            let key = flat(key);
            let column = indent + key.chars().count() + 3;
            out.push_str(&key);
            out.push_str(": ");
            let last = index + 1 == entries.len();
            pretty(item, (column, if last { after + 1 } else { 1 }), out);
        }
        out.push('}');
        return;
    }
    let list = items(value).unwrap_or_default();
    out.push(if kind(value) == Kind::List { '[' } else { '(' });
    for (index, item) in list.iter().enumerate() {
        out.push_str(if index > 0 { &separator } else { "" });
        let last = index + 1 == list.len();
        pretty(item, (indent + 1, if last { after + 1 } else { 1 }), out);
    }
    out.push_str(match kind(value) {
        Kind::List => "]",
        _ if list.len() == 1 => ",)",
        _ => ")",
    });
}
