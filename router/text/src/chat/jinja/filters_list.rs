//! Jinja's filters on lists and dicts.

#![allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]

use std::cmp::Ordering;

use minijinja::value::Value;
use minijinja::{Error, State};

use super::args::{Args, count, needed};
use super::lookups::order;
use super::ops::add;
use super::python_types::{
    Kind, PyGenerator, dict, items as items_of, kind, len, pair, pairs, py_error, type_name,
};
use super::text::to_str;

/// Implements `environment.getitem(item, part)` along a path such as `a.0.b`.
pub(super) fn get_path(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return if path.is_none() {
            Ok(item.clone())
        } else {
            part(item, path)
        };
    };
    let mut found = item.clone();
    for name in path.split('.') {
        let key = match name.parse::<i64>() {
            Ok(index) if name.bytes().all(|c| c.is_ascii_digit()) => Value::from(index),
            _ => Value::from(name),
        };
        found = part(&found, &key)?;
    }
    Ok(found)
}

fn part(item: &Value, key: &Value) -> Result<Value, Error> {
    if item.is_undefined() {
        return Err(super::python_types::undefined());
    }
    item.get_item(key)
}

/// Returns the key by which lists are sorted: strings are lower-cased unless `case_sensitive`.
fn folded(value: Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    }
}

/// Whether a flag of a filter is true.
fn is(flag: Option<Value>) -> bool {
    flag.is_some_and(|flag| flag.is_true())
}

/// Sorts by the keys. Fails if Python could not compare them.
pub(super) fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    let mut wrong = None;
    keyed.sort_by(|(a, _), (b, _)| {
        if wrong.is_some() {
            return Ordering::Equal;
        }
        let order = order("<", a, b).unwrap_or_else(|error| {
            wrong = Some(error);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if reverse { order.reverse() } else { order }
    });
    match wrong {
        Some(error) => Err(error),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

pub(super) fn sort(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let [reverse, case_sensitive, attribute] = args.bind("sort", names)?;
    let case_sensitive = is(case_sensitive);
    let attribute = attribute.unwrap_or(Value::from(()));
    let paths: Vec<Value> = match attribute.as_str() {
        Some(list) => list.split(',').map(Value::from).collect(),
        None => vec![attribute],
    };
    let keyed = items_of(&value)?.into_iter().map(|item| {
        let keys = paths
            .iter()
            .map(|path| Ok(folded(get_path(&item, path)?, case_sensitive)));
        Ok((Value::from(keys.collect::<Result<Vec<_>, Error>>()?), item))
    });
    sorted(keyed.collect::<Result<_, Error>>()?, is(reverse)).map(Value::from)
}

pub(super) fn dict_sort(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [case_sensitive, by, reverse] =
        args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let case_sensitive = is(case_sensitive);
    let by_value = match by.as_ref().and_then(Value::as_str) {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => {
            let message = "You can only sort by either \"key\" or \"value\"";
            return Err(py_error("FilterArgumentError", message));
        }
    };
    need_dict(&value)?;
    let keyed = pairs(&value).into_iter().map(|(key, item)| {
        let by = if by_value { item.clone() } else { key.clone() };
        (folded(by, case_sensitive), pair((key, item)))
    });
    sorted(keyed.collect(), is(reverse)).map(Value::from)
}

fn need_dict(value: &Value) -> Result<(), Error> {
    if kind(value) == Kind::Dict {
        return Ok(());
    }
    let name = type_name(value);
    Err(py_error(
        "TypeError",
        format!("a mapping is required, not '{name}'"),
    ))
}

pub(super) fn items(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("items", [])?;
    if value.is_undefined() {
        return Ok(PyGenerator::new_value(Vec::new()));
    }
    need_dict(&value)?;
    Ok(PyGenerator::new_value(
        pairs(&value).into_iter().map(pair).collect(),
    ))
}

pub(super) fn unique(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let case_sensitive = is(case_sensitive);
    let attribute = attribute.unwrap_or(Value::from(()));
    let mut seen = Vec::new();
    let mut kept = Vec::new();
    for item in items_of(&value)? {
        let key = folded(get_path(&item, &attribute)?, case_sensitive);
        super::lookups::hashable(&key)?;
        if !seen.contains(&key) {
            seen.push(key);
            kept.push(item);
        }
    }
    Ok(PyGenerator::new_value(kept))
}

pub(super) fn min(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    extreme(&value, args, "min", Ordering::Less)
}

pub(super) fn max(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    extreme(&value, args, "max", Ordering::Greater)
}

fn extreme(value: &Value, args: Args, name: &str, wanted: Ordering) -> Result<Value, Error> {
    let [case_sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let case_sensitive = is(case_sensitive);
    let attribute = attribute.unwrap_or(Value::from(()));
    let mut best: Option<(Value, Value)> = None;
    for item in items_of(value)? {
        let key = folded(get_path(&item, &attribute)?, case_sensitive);
        let better = match &best {
            None => true,
            Some((found, _)) => order("<", &key, found)? == Some(wanted),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

pub(super) fn join(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = separator.map_or(String::new(), |separator| to_str(&separator));
    let mut out = String::new();
    for (index, item) in items_of(&value)?.iter().enumerate() {
        out.push_str(if index > 0 { &separator } else { "" });
        let attribute = attribute.as_ref().filter(|attribute| !attribute.is_none());
        match attribute {
            Some(attribute) => out.push_str(&to_str(&get_path(item, attribute)?)),
            None => super::text::write_str(item, &mut out),
        }
    }
    Ok(Value::from(out))
}

pub(super) fn first(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("first", [])?;
    Ok(items_of(&value)?.into_iter().next().unwrap_or_default())
}

pub(super) fn last(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("last", [])?;
    reversible(&value)?;
    Ok(items_of(&value)?
        .into_iter()
        .next_back()
        .unwrap_or_default())
}

fn reversible(value: &Value) -> Result<(), Error> {
    if value.downcast_object_ref::<PyGenerator>().is_some() {
        return Err(py_error(
            "TypeError",
            "'generator' object is not reversible",
        ));
    }
    Ok(())
}

pub(super) fn reverse(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("reverse", [])?;
    if let Some(text) = value.as_str() {
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut list = items_of(&value)?;
    list.reverse();
    Ok(PyGenerator::new_value(list))
}

pub(super) fn list(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("list", [])?;
    items_of(&value).map(Value::from)
}

pub(super) fn length(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("length", [])?;
    len(&value).map(Value::from)
}

pub(super) fn sum(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let attribute = attribute.unwrap_or(Value::from(()));
    let start = start.unwrap_or_else(|| Value::from(0));
    if start.as_str().is_some() {
        return Err(py_error("TypeError", "sum() can't sum strings"));
    }
    let list = items_of(&value)?;
    list.iter()
        .try_fold(start, |sum, item| add(&sum, &get_path(item, &attribute)?))
}

pub(super) fn batch(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [size, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let size = count(Some(&needed(size, "linecount")?), 0)?;
    let size = usize::try_from(size).unwrap_or(0).max(1);
    let fill = fill.filter(|fill| !fill.is_none());
    let list = items_of(&value)?;
    let batches = list.chunks(size).map(|chunk| {
        let mut chunk = chunk.to_vec();
        if let Some(fill) = &fill {
            chunk.resize(size.min(chunk.len() + (1 << 16)), fill.clone());
        }
        Value::from(chunk)
    });
    Ok(PyGenerator::new_value(batches.collect::<Vec<_>>()))
}

pub(super) fn slice(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [slices, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let slices = count(Some(&needed(slices, "slices")?), 0)?.clamp(0, 1 << 16);
    let slices = usize::try_from(slices).unwrap_or(0);
    let list = items_of(&value)?;
    if slices == 0 {
        return Err(py_error(
            "ZeroDivisionError",
            "integer division or modulo by zero",
        ));
    }
    let fill = fill.filter(|fill| !fill.is_none());
    let (each, extra) = (list.len() / slices, list.len() % slices);
    let mut rest = list.as_slice();
    let parts = (0..slices).map(|index| {
        let (part, after) = rest.split_at(each + usize::from(index < extra));
        rest = after;
        let mut part = part.to_vec();
        part.extend(fill.clone().filter(|_| index >= extra));
        Value::from(part)
    });
    Ok(PyGenerator::new_value(parts.collect()))
}

pub(super) fn group_by(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case_sensitive] = args.bind("groupby", names)?;
    let attribute = needed(attribute, "attribute")?;
    let case_sensitive = is(case_sensitive);
    let key = |item: &Value| -> Result<Value, Error> {
        let found = get_path(item, &attribute)?;
        Ok(match &default {
            Some(default) if found.is_undefined() => default.clone(),
            _ => found,
        })
    };
    let keyed = items_of(&value)?.into_iter();
    let keyed = keyed.map(|item| Ok((folded(key(&item)?, case_sensitive), item)));
    let ordered = sorted(keyed.collect::<Result<_, Error>>()?, false)?;
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for item in ordered {
        let shown = key(&item)?;
        let by = folded(shown.clone(), case_sensitive);
        match groups.last_mut() {
            Some((last, _, group)) if *last == by => group.push(item),
            _ => groups.push((by, shown, vec![item])),
        }
    }
    let groups = groups.into_iter();
    Ok(groups
        .map(|(_, shown, group)| super::python_types::GroupTuple::new_value(shown, group))
        .collect())
}

pub(super) fn map(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let (values, named) = (args.positional(0).cloned(), args.named("attribute"));
    let list = if value.is_true() {
        items_of(&value)?
    } else {
        Vec::new()
    };
    let Some(filter) = values else {
        let attribute = named
            .ok_or_else(|| py_error("FilterArgumentError", "map requires a filter argument"))?;
        let default = args.named("default").filter(|default| !default.is_none());
        let [_, _] = args.bind("map", ["attribute", "default"])?;
        let mapped = list.iter().map(|item| {
            let found = get_path(item, &attribute)?;
            Ok(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            })
        });
        return Ok(PyGenerator::new_value(
            mapped.collect::<Result<_, Error>>()?,
        ));
    };
    let mut rest = args;
    rest.take_first();
    let name = super::args::text(&filter)?.to_owned();
    let mapped = list
        .into_iter()
        .map(|item| state.apply_filter(&name, &rest.prepended_with(item)));
    Ok(PyGenerator::new_value(
        mapped.collect::<Result<_, Error>>()?,
    ))
}

pub(super) fn select(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    select_items(state, &value, (None, args), true)
}

pub(super) fn reject(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    select_items(state, &value, (None, args), false)
}

pub(super) fn select_attr(
    state: &mut State<'_, '_>,
    value: Value,
    mut args: Args,
) -> Result<Value, Error> {
    let attribute = args.take_first();
    select_items(state, &value, (Some(attribute), args), true)
}

pub(super) fn reject_attr(
    state: &mut State<'_, '_>,
    value: Value,
    mut args: Args,
) -> Result<Value, Error> {
    let attribute = args.take_first();
    select_items(state, &value, (Some(attribute), args), false)
}

/// Returns the items for which the test gives `wanted`. Without a test, the item's truth counts.
fn select_items(
    state: &mut State<'_, '_>,
    value: &Value,
    (attribute, mut args): (Option<Value>, Args),
    wanted: bool,
) -> Result<Value, Error> {
    let test = args.take_first();
    let mut kept = Vec::new();
    if !value.is_true() {
        return Ok(PyGenerator::new_value(kept));
    }
    for item in items_of(value)? {
        let tested = match &attribute {
            Some(attribute) => get_path(&item, attribute)?,
            None => item.clone(),
        };
        let holds = match test.as_str() {
            Some(name) => state.perform_test(name, &args.prepended_with(tested))?,
            None => tested.is_true(),
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Ok(PyGenerator::new_value(kept))
}

pub(super) fn random(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("random", [])?;
    let list = items_of(&value)?;
    let now = jiff::Timestamp::now().as_nanosecond().unsigned_abs();
    let index = usize::try_from(now % (list.len().max(1) as u128)).unwrap_or(0);
    Ok(list.get(index).cloned().unwrap_or_default())
}

/// Implements `dict(mapping or pairs, **items)`.
pub(super) fn new_dict(mut args: Args) -> Result<Value, Error> {
    let first = args.take_first();
    let mut entries = match kind(&first) {
        Kind::Undefined => Vec::new(),
        Kind::Dict => pairs(&first),
        _ => {
            let pairs = items_of(&first)?.into_iter().map(|pair| {
                <[Value; 2]>::try_from(items_of(&pair)?)
                    .map(|[key, value]| (key, value))
                    .map_err(|_| py_error("ValueError", "a pair has two items"))
            });
            pairs.collect::<Result<_, Error>>()?
        }
    };
    let (_, named) = args.into_parts();
    entries.extend(
        named
            .into_iter()
            .map(|(name, value)| (Value::from(name), value)),
    );
    Ok(dict(entries))
}
