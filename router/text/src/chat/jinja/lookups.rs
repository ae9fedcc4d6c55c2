//! Python's comparisons, `in`, slices and attributes.

use std::cmp::Ordering;

use minijinja::Error;
use minijinja::value::Value;

use super::methods;
use super::ops::{Number, NumberPair, number_pair};
use super::python_types::{BoundMethod, Kind, items, kind, py_error, tuple, type_name, undefined};

/// Implements `item in container`.
pub(super) fn contains(item: &Value, container: &Value) -> Result<bool, Error> {
    match kind(container) {
        Kind::Str => {
            let part = item.as_str().ok_or_else(|| {
                let name = type_name(item);
                let message = format!("'in <string>' requires string as left operand, not {name}");
                py_error("TypeError", message)
            })?;
            Ok(container.as_str().is_some_and(|text| text.contains(part)))
        }
        Kind::Dict => {
            hashable(item)?;
            let dict = container.as_object();
            Ok(dict.is_some_and(|dict| dict.get_value(item).is_some()))
        }
        Kind::Undefined => Ok(false),
        Kind::List | Kind::Tuple | Kind::Iterable => Ok(items(container)?.contains(item)),
        _ => {
            let name = type_name(container);
            let message = format!("argument of type '{name}' is not iterable");
            Err(py_error("TypeError", message))
        }
    }
}

/// Fails if `key` is not hashable.
pub(super) fn hashable(key: &Value) -> Result<(), Error> {
    match kind(key) {
        Kind::List | Kind::Dict => {
            let name = type_name(key);
            Err(py_error("TypeError", format!("unhashable type: '{name}'")))
        }
        Kind::Tuple => items(key)?.iter().try_for_each(hashable),
        _ => Ok(()),
    }
}

/// Compares `a` and `b` for the operator `operator`. Returns `None` if one of them is NaN.
pub(super) fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    match number_pair(a, b) {
        Some(NumberPair::Ints(a, b)) => return Ok(Some(a.cmp(&b))),
        Some(NumberPair::Floats(a, b)) => return Ok(a.partial_cmp(&b)),
        None => {}
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    match (kind(a), kind(b)) {
        (Kind::Int, Kind::Int) => Ok(Some(a.cmp(b))),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let (left, right) = (items(a)?, items(b)?);
            for (a, b) in left.iter().zip(&right) {
                if a != b {
                    return order(operator, a, b);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        _ if a.is_undefined() || b.is_undefined() => Err(undefined()),
        _ => {
            let (a, b) = (type_name(a), type_name(b));
            let message =
                format!("'{operator}' not supported between instances of '{a}' and '{b}'");
            Err(py_error("TypeError", message))
        }
    }
}

/// Returns a bound of a slice, or `None` if it is absent.
fn bound(value: &Value) -> Result<Option<i64>, Error> {
    match Number::from_value(value) {
        Some(Number::Int(number)) => {
            let clamped = number.clamp(i64::MIN.into(), i64::MAX.into());
            Ok(i64::try_from(clamped).ok())
        }
        _ if value.is_none() => Ok(None),
        _ => {
            let message = "slice indices must be integers or None";
            Err(py_error("TypeError", message))
        }
    }
}

/// Implements `value[start:stop:step]`.
pub(super) fn slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let kind = kind(value);
    if kind == Kind::Undefined {
        return Err(undefined());
    }
    if !matches!(kind, Kind::Str | Kind::List | Kind::Tuple) {
        let name = type_name(value);
        let message = format!("'{name}' object is not subscriptable");
        return Err(py_error("TypeError", message));
    }
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?);
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(py_error("ValueError", "slice step cannot be zero"));
    }
    Ok(match value.as_str() {
        Some(text) => {
            let text: Vec<char> = text.chars().collect();
            let picked = indices(text.len(), (start, stop), step);
            Value::from(picked.map(|index| text[index]).collect::<String>())
        }
        None => {
            let list = items(value)?;
            let picked = indices(list.len(), (start, stop), step);
            let picked: Vec<Value> = picked.map(|index| list[index].clone()).collect();
            if kind == Kind::Tuple {
                tuple(picked)
            } else {
                Value::from(picked)
            }
        }
    })
}

/// Returns the indices that a slice selects from `len` items.
fn indices(
    len: usize,
    (start, stop): (Option<i64>, Option<i64>),
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (lowest, highest) = if step < 0 { (-1, len - 1) } else { (0, len) };
    let place = |index: i64| {
        let index = if index < 0 {
            index.saturating_add(len)
        } else {
            index
        };
        index.clamp(lowest, highest)
    };
    let start = start.map_or(if step < 0 { highest } else { lowest }, place);
    let stop = stop.map_or(if step < 0 { lowest } else { highest }, place);
    let next = move |index: &i64| index.checked_add(step);
    std::iter::successors(Some(start), next)
        .take_while(move |index| {
            if step < 0 {
                *index > stop
            } else {
                *index < stop
            }
        })
        .filter_map(|index| usize::try_from(index).ok())
}

/// Returns an attribute whose name is also a method of a Python type. If the value's type has that
/// method, the method wins.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if methods::exists(value, name) {
        return Ok(Value::from_object(BoundMethod {
            value: value.clone(),
            method: name.to_owned(),
        }));
    }
    value.get_attr(name)
}

/// Returns the value of a `for` loop, or Python's error if it is not iterable.
pub(super) fn require_iterable(value: Value) -> Result<Value, Error> {
    match kind(&value) {
        Kind::None | Kind::Bool | Kind::Int | Kind::Float | Kind::Other => {
            items(&value).map(Value::from)
        }
        _ => Ok(value),
    }
}
