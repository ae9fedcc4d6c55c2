//! Jinja's tests, such as `is iterable`.

use std::cmp::Ordering;

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use super::args::{Args, needed, text};
use super::lookups::{contains, order};
use super::ops::Number;
use super::predicates::evaluate;
use super::python_types::{BoundMethod, Kind, kind, type_name};
use super::text::to_str;

type JinjaTest = fn(&Value, Args) -> Result<bool, Error>;

const JINJA_TESTS: [(&str, JinjaTest); 39] = [
    ("boolean", |v, a| none(v, a, |v| kind(v) == Kind::Bool)),
    ("callable", |v, a| none(v, a, is_callable)),
    ("defined", |v, a| none(v, a, |v| !v.is_undefined())),
    ("undefined", |v, a| none(v, a, Value::is_undefined)),
    ("none", |v, a| none(v, a, Value::is_none)),
    ("escaped", |v, a| none(v, a, Value::is_safe)),
    ("integer", |v, a| none(v, a, |v| kind(v) == Kind::Int)),
    ("float", |v, a| none(v, a, |v| kind(v) == Kind::Float)),
    ("number", |v, a| {
        none(v, a, |v| {
            matches!(kind(v), Kind::Bool | Kind::Int | Kind::Float)
        })
    }),
    ("string", |v, a| none(v, a, |v| kind(v) == Kind::Str)),
    ("mapping", |v, a| none(v, a, |v| kind(v) == Kind::Dict)),
    ("iterable", |v, a| none(v, a, is_iterable)),
    ("sequence", |v, a| none(v, a, is_sequence)),
    ("true", |v, a| {
        none(v, a, |v| kind(v) == Kind::Bool && v.is_true())
    }),
    ("false", |v, a| {
        none(v, a, |v| kind(v) == Kind::Bool && !v.is_true())
    }),
    ("lower", |v, a| {
        none(v, a, |v| evaluate(&to_str(v), "islower") == Some(true))
    }),
    ("upper", |v, a| {
        none(v, a, |v| evaluate(&to_str(v), "isupper") == Some(true))
    }),
    ("odd", |v, a| {
        remainder(v, a, |rest| rest.rem_euclid(2) == 1)
    }),
    ("even", |v, a| {
        remainder(v, a, |rest| rest.rem_euclid(2) == 0)
    }),
    ("divisibleby", divisible_by),
    ("sameas", |v, a| one(v, a, same_as)),
    ("in", |v, a| one(v, a, contains)),
    ("eq", |v, a| one(v, a, |v, o| Ok(v == o))),
    ("equalto", |v, a| one(v, a, |v, o| Ok(v == o))),
    ("==", |v, a| one(v, a, |v, o| Ok(v == o))),
    ("ne", |v, a| one(v, a, |v, o| Ok(v != o))),
    ("!=", |v, a| one(v, a, |v, o| Ok(v != o))),
    ("lt", |v, a| {
        one(v, a, |v, o| {
            Ok(order("<", v, o)?.is_some_and(Ordering::is_lt))
        })
    }),
    ("lessthan", |v, a| {
        one(v, a, |v, o| {
            Ok(order("<", v, o)?.is_some_and(Ordering::is_lt))
        })
    }),
    ("<", |v, a| {
        one(v, a, |v, o| {
            Ok(order("<", v, o)?.is_some_and(Ordering::is_lt))
        })
    }),
    ("le", |v, a| {
        one(v, a, |v, o| {
            Ok(order("<=", v, o)?.is_some_and(Ordering::is_le))
        })
    }),
    ("<=", |v, a| {
        one(v, a, |v, o| {
            Ok(order("<=", v, o)?.is_some_and(Ordering::is_le))
        })
    }),
    ("gt", |v, a| {
        one(v, a, |v, o| {
            Ok(order(">", v, o)?.is_some_and(Ordering::is_gt))
        })
    }),
    ("greaterthan", |v, a| {
        one(v, a, |v, o| {
            Ok(order(">", v, o)?.is_some_and(Ordering::is_gt))
        })
    }),
    (">", |v, a| {
        one(v, a, |v, o| {
            Ok(order(">", v, o)?.is_some_and(Ordering::is_gt))
        })
    }),
    ("ge", |v, a| {
        one(v, a, |v, o| {
            Ok(order(">=", v, o)?.is_some_and(Ordering::is_ge))
        })
    }),
    (">=", |v, a| {
        one(v, a, |v, o| {
            Ok(order(">=", v, o)?.is_some_and(Ordering::is_ge))
        })
    }),
    ("filter", |v, a| {
        none(v, a, |v| {
            text(v).is_ok_and(|name| super::FILTERS.iter().any(|(n, _)| *n == name))
        })
    }),
    ("test", |v, a| {
        none(v, a, |v| {
            text(v).is_ok_and(|name| JINJA_TESTS.iter().any(|(n, _)| *n == name))
        })
    }),
];

/// minijinja's tests that Jinja does not have.
const NON_JINJA_TESTS: [&str; 5] = ["safe", "int", "startingwith", "endingwith", "tojson"];

pub(super) fn install(environment: &mut Environment<'static>) {
    for name in NON_JINJA_TESTS {
        environment.remove_test(name);
    }
    for (name, check) in JINJA_TESTS {
        let checked = move |_: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let mut args = Args::new(&args.into_values());
            let value = args.take_first();
            check(&value, args)
        };
        environment.add_test(name, checked);
    }
}

fn none(value: &Value, args: Args, is: fn(&Value) -> bool) -> Result<bool, Error> {
    let [] = args.bind("test", [])?;
    Ok(is(value))
}

fn one(
    value: &Value,
    args: Args,
    is: fn(&Value, &Value) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let [other] = args.bind("test", ["other"])?;
    is(value, &needed(other, "other")?)
}

fn remainder(value: &Value, args: Args, is: fn(i128) -> bool) -> Result<bool, Error> {
    let [] = args.bind("test", [])?;
    divided(value, &Value::from(2)).map(|rest| rest.is_some_and(is))
}

fn divisible_by(value: &Value, args: Args) -> Result<bool, Error> {
    let [number] = args.bind("divisibleby", ["num"])?;
    divided(value, &needed(number, "num")?).map(|rest| rest == Some(0))
}

/// Returns `value % number`, or `None` if it is not an integer.
fn divided(value: &Value, number: &Value) -> Result<Option<i128>, Error> {
    let rest = super::ops::modulo(value, number)?;
    Ok(match Number::from_value(&rest) {
        Some(Number::Int(rest)) => Some(rest),
        #[allow(clippy::cast_possible_truncation, reason = "a small whole number")]
        Some(Number::Float(rest)) if rest.fract() == 0.0 => Some(rest as i128),
        _ => None,
    })
}

fn is_callable(value: &Value) -> bool {
    let object = value.as_object();
    let own = ["::Macro", "::BoxedFunction"];
    value.downcast_object_ref::<BoundMethod>().is_some()
        || object.is_some_and(|object| own.iter().any(|own| object.type_name().ends_with(own)))
        || value.is_undefined()
}

fn is_iterable(value: &Value) -> bool {
    use Kind::{Bytes, Dict, Iterable, List, Str, Tuple, Undefined};
    matches!(
        kind(value),
        Str | Bytes | List | Tuple | Dict | Iterable | Undefined
    ) || value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with("::Loop"))
}

/// Whether the value has a length and items.
fn is_sequence(value: &Value) -> bool {
    use Kind::{Bytes, Dict, List, Str, Tuple, Undefined};
    matches!(kind(value), Str | Bytes | List | Tuple | Dict | Undefined)
}

/// Approximates `a is b`: equal values of one type count as identical.
fn same_as(a: &Value, b: &Value) -> Result<bool, Error> {
    Ok(type_name(a) == type_name(b) && a == b)
}
