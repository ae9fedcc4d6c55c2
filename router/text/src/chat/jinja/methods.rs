//! Methods of Python's types. As in Jinja's sandbox, methods that modify a list or a dict are
//! refused.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

use super::args::{Args, count, needed};
use super::lookups::hashable;
use super::python_types::{
    DictPart, DictView, Kind, dict, items, kind, pairs, py_error, type_name, undefined,
};
use super::strings;

const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const FLOAT: [&str; 2] = ["is_integer", "conjugate"];
const INT: [&str; 4] = ["bit_length", "bit_count", "is_integer", "conjugate"];
/// The methods that the sandbox refuses.
const CHANGES_LIST: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];
const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// Whether the value's type has this method.
pub(super) fn exists(value: &Value, name: &str) -> bool {
    match kind(value) {
        Kind::Str => strings::METHODS.contains(&name),
        Kind::List => LIST.contains(&name) || CHANGES_LIST.contains(&name),
        Kind::Tuple => TUPLE.contains(&name),
        Kind::Dict => DICT.contains(&name) || CHANGES_DICT.contains(&name),
        Kind::Int => INT.contains(&name),
        Kind::Float => FLOAT.contains(&name),
        _ => false,
    }
}

/// Whether any supported type has this method.
pub(super) fn is_known(name: &str) -> bool {
    strings::METHODS.contains(&name)
        || [
            LIST.as_slice(),
            &DICT,
            &INT,
            &FLOAT,
            &CHANGES_LIST,
            &CHANGES_DICT,
        ]
        .iter()
        .any(|names| names.contains(&name))
}

/// Calls a Python method that minijinja does not implement.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(undefined());
    }
    if !exists(value, method) {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    let args = Args::new(args);
    match kind(value) {
        Kind::Str => strings::call(state, value.as_str().unwrap_or_default(), method, args),
        Kind::List if CHANGES_LIST.contains(&method) => Err(change(value, method)),
        Kind::Dict if CHANGES_DICT.contains(&method) => Err(change(value, method)),
        Kind::List | Kind::Tuple => list(value, method, args),
        Kind::Dict => map(value, method, args),
        _ => number(value, method, args),
    }
}

fn change(value: &Value, method: &str) -> Error {
    let name = type_name(value);
    let message = format!(
        "access to attribute '{method}' of '{name}' object is not allowed: it would change it"
    );
    py_error("SecurityError", message)
}

fn list(value: &Value, method: &str, args: Args) -> Result<Value, Error> {
    let list = items(value)?;
    match method {
        "copy" => {
            let [] = args.bind(method, [])?;
            Ok(Value::from(list))
        }
        "count" => {
            let [item] = args.bind(method, ["value"])?;
            let item = needed(item, "value")?;
            Ok(Value::from(list.iter().filter(|i| **i == item).count()))
        }
        _ => {
            let [item, start, stop] = args.bind(method, ["value", "start", "stop"])?;
            let item = needed(item, "value")?;
            let size = i64::try_from(list.len()).unwrap_or(i64::MAX);
            let place = |index: i64| {
                if index < 0 {
                    (index + size).max(0)
                } else {
                    index
                }
            };
            let start = place(count(start.as_ref(), 0)?);
            let stop = place(count(stop.as_ref(), size)?);
            let found = (0_i64..)
                .zip(&list)
                .find(|(index, found)| (start..stop).contains(index) && **found == item);
            let missing = || py_error("ValueError", "the value is not in the list");
            found
                .map(|(index, _)| Value::from(index))
                .ok_or_else(missing)
        }
    }
}

fn map(value: &Value, method: &str, args: Args) -> Result<Value, Error> {
    match method {
        "get" => {
            let [key, default] = args.bind(method, ["key", "default"])?;
            let key = needed(key, "key")?;
            hashable(&key)?;
            let found = value.as_object().and_then(|dict| dict.get_value(&key));
            Ok(found.or(default).unwrap_or(Value::from(())))
        }
        "fromkeys" => {
            let [keys, item] = args.bind(method, ["iterable", "value"])?;
            let item = item.unwrap_or(Value::from(()));
            let keys = items(&needed(keys, "iterable")?)?;
            Ok(dict(
                keys.into_iter().map(|key| (key, item.clone())).collect(),
            ))
        }
        _ => {
            let [] = args.bind(method, [])?;
            Ok(match method {
                "items" => DictView::new_value(value, DictPart::Items),
                "keys" => DictView::new_value(value, DictPart::Keys),
                "values" => DictView::new_value(value, DictPart::Values),
                _ => dict(pairs(value)),
            })
        }
    }
}

fn number(value: &Value, method: &str, args: Args) -> Result<Value, Error> {
    let [] = args.bind(method, [])?;
    let size = i128::try_from(value.clone()).map_or(0, i128::unsigned_abs);
    Ok(match method {
        "bit_length" => Value::from(128 - size.leading_zeros()),
        "bit_count" => Value::from(size.count_ones()),
        "is_integer" => {
            let float = f64::try_from(value.clone()).ok();
            Value::from(value.is_integer() || float.is_some_and(|float| float.fract() == 0.0))
        }
        _ => value.clone(),
    })
}
