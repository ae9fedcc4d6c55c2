//! Python's operators, as the filters that the rewritten source uses.

use std::cmp::Ordering;

use minijinja::value::Value;
use minijinja::{Environment, Error};

use super::lookups::{attribute, contains, hashable, order, require_iterable, slice};
use super::printf::printf;
use super::python_types::{
    Kind, from_i128, integer, items, kind, py_error, tuple, type_name, undefined,
};
use super::text::{to_str, write_str};

/// The maximum size of a repeated sequence in bytes or items.
const MOST: usize = 100_000_000;

/// A number. Booleans are numbers, too.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn from_value(value: &Value) -> Option<Self> {
        match kind(value) {
            Kind::Bool => Some(Self::Int(i128::from(value.is_true()))),
            Kind::Int => i128::try_from(value.clone()).ok().map(Self::Int),
            Kind::Float => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "Python rounds too")]
    pub(super) fn as_float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

/// Two numbers, both floats if one of them is.
pub(super) enum NumberPair {
    Ints(i128, i128),
    Floats(f64, f64),
}

pub(super) fn number_pair(a: &Value, b: &Value) -> Option<NumberPair> {
    Some(match (Number::from_value(a)?, Number::from_value(b)?) {
        (Number::Int(a), Number::Int(b)) => NumberPair::Ints(a, b),
        (a, b) => NumberPair::Floats(a.as_float(), b.as_float()),
    })
}

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter("py_add", add);
    environment.add_filter("py_sub", sub);
    environment.add_filter("py_mul", mul);
    environment.add_filter("py_div", div);
    environment.add_filter("py_floordiv", floor_div);
    environment.add_filter("py_mod", modulo);
    environment.add_filter("py_pow", pow);
    environment.add_filter("py_concat", concat);
    environment.add_filter("py_neg", neg);
    environment.add_filter("py_pos", pos);
    environment.add_filter("py_int", integer);
    environment.add_filter("py_in", contains);
    environment.add_filter("py_key", |key: Value| hashable(&key).map(|()| key));
    environment.add_filter("py_lt", |a: Value, b: Value| {
        Ok::<_, Error>(order("<", &a, &b)? == Some(Ordering::Less))
    });
    environment.add_filter("py_gt", |a: Value, b: Value| {
        Ok::<_, Error>(order(">", &a, &b)? == Some(Ordering::Greater))
    });
    environment.add_filter("py_le", |a: Value, b: Value| {
        Ok::<_, Error>(order("<=", &a, &b)?.is_some_and(Ordering::is_le))
    });
    environment.add_filter("py_ge", |a: Value, b: Value| {
        Ok::<_, Error>(order(">=", &a, &b)?.is_some_and(Ordering::is_ge))
    });
    environment.add_filter("py_slice", slice);
    environment.add_filter("py_attr", attribute);
    environment.add_filter("py_iter", require_iterable);
}

/// Returns the error of an operator for unsupported operand types.
fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    if a.is_undefined() || b.is_undefined() {
        return undefined();
    }
    let (a, b) = (type_name(a), type_name(b));
    let message = format!("unsupported operand type(s) for {operator}: '{a}' and '{b}'");
    py_error("TypeError", message)
}

fn too_large() -> Error {
    py_error("OverflowError", "the result has more than 128 bits")
}

fn whole(result: Option<i128>) -> Result<Value, Error> {
    result.map(from_i128).ok_or_else(too_large)
}

pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match number_pair(a, b) {
        Some(NumberPair::Ints(a, b)) => return whole(a.checked_add(b)),
        Some(NumberPair::Floats(a, b)) => return Ok(Value::from(a + b)),
        None => {}
    }
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return Ok(match (a.is_safe(), b.is_safe()) {
            (false, false) => Value::from([left, right].concat()),
            (true, true) => Value::from_safe_string([left, right].concat()),
            (true, false) => Value::from_safe_string([left, &escaped(right)].concat()),
            (false, true) => Value::from_safe_string([&escaped(left), right].concat()),
        });
    }
    match (kind(a), kind(b)) {
        (Kind::List, Kind::List) if type_name(a) == "list" && type_name(b) == "list" => {
            Ok(Value::from([items(a)?, items(b)?].concat()))
        }
        (Kind::Tuple, Kind::Tuple) => Ok(tuple([items(a)?, items(b)?].concat())),
        _ => Err(unsupported("+", a, b)),
    }
}

/// Escapes text for HTML as markupsafe does.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn sub(a: &Value, b: &Value) -> Result<Value, Error> {
    match number_pair(a, b) {
        Some(NumberPair::Ints(a, b)) => whole(a.checked_sub(b)),
        Some(NumberPair::Floats(a, b)) => Ok(Value::from(a - b)),
        None => Err(unsupported("-", a, b)),
    }
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    match number_pair(a, b) {
        Some(NumberPair::Ints(a, b)) => return whole(a.checked_mul(b)),
        Some(NumberPair::Floats(a, b)) => return Ok(Value::from(a * b)),
        None => {}
    }
    let (sequence, times) = match (Number::from_value(a), Number::from_value(b)) {
        (None, Some(Number::Int(times))) => (a, times),
        (Some(Number::Int(times)), None) => (b, times),
        _ => return Err(unsupported("*", a, b)),
    };
    if i64::try_from(times).is_err() {
        let message = "cannot fit 'int' into an index-sized integer";
        return Err(py_error("OverflowError", message));
    }
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let fits = |len: usize| len.checked_mul(times).is_some_and(|len| len <= MOST);
    let large = || py_error("OverflowError", "the repeated sequence is too large");
    match (kind(sequence), sequence.as_str()) {
        (_, Some(text)) if fits(text.len()) => Ok(Value::from(text.repeat(times))),
        (_, Some(_)) => Err(large()),
        (Kind::List | Kind::Tuple, _) => {
            let list = items(sequence)?;
            if !fits(list.len()) {
                return Err(large());
            }
            let repeated: Vec<Value> = std::iter::repeat_n(list, times).flatten().collect();
            Ok(match kind(sequence) {
                Kind::Tuple => tuple(repeated),
                _ => Value::from(repeated),
            })
        }
        _ => Err(unsupported("*", a, b)),
    }
}

fn by_zero() -> Error {
    py_error("ZeroDivisionError", "division by zero")
}

fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    let (Some(x), Some(y)) = (Number::from_value(a), Number::from_value(b)) else {
        return Err(unsupported("/", a, b));
    };
    let y = y.as_float();
    if y == 0.0 {
        return Err(by_zero());
    }
    Ok(Value::from(x.as_float() / y))
}

fn floor_div(a: &Value, b: &Value) -> Result<Value, Error> {
    match number_pair(a, b) {
        Some(NumberPair::Ints(_, 0)) => Err(by_zero()),
        Some(NumberPair::Floats(_, 0.0)) => Err(by_zero()),
        Some(NumberPair::Ints(a, b)) => whole(a.checked_div_euclid(b).map(|quotient| {
            // Euclidean division rounds towards minus infinity for positive divisors only.
            let exact = quotient * b == a;
            if b < 0 && !exact {
                quotient - 1
            } else {
                quotient
            }
        })),
        Some(NumberPair::Floats(a, b)) => Ok(Value::from(float_div_mod(a, b).0)),
        None => Err(unsupported("//", a, b)),
    }
}

/// Implements `divmod(a, b)` for floats.
fn float_div_mod(a: f64, b: f64) -> (f64, f64) {
    let mut remainder = a % b;
    let mut quotient = (a - remainder) / b;
    if remainder == 0.0 {
        remainder = 0.0_f64.copysign(b);
    } else if (remainder < 0.0) != (b < 0.0) {
        remainder += b;
        quotient -= 1.0;
    }
    let floored = if quotient == 0.0 {
        0.0_f64.copysign(a / b)
    } else if quotient - quotient.floor() > 0.5 {
        quotient.floor() + 1.0
    } else {
        quotient.floor()
    };
    (floored, remainder)
}

pub(super) fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        return printf(format, b).map(Value::from);
    }
    match number_pair(a, b) {
        Some(NumberPair::Ints(_, 0)) => Err(by_zero()),
        Some(NumberPair::Floats(_, 0.0)) => Err(by_zero()),
        Some(NumberPair::Ints(_, -1)) => Ok(Value::from(0)),
        Some(NumberPair::Ints(a, b)) => {
            let remainder = a % b;
            let other_side = remainder != 0 && (remainder < 0) != (b < 0);
            Ok(from_i128(if other_side {
                remainder + b
            } else {
                remainder
            }))
        }
        Some(NumberPair::Floats(a, b)) => Ok(Value::from(float_div_mod(a, b).1)),
        None => Err(unsupported("%", a, b)),
    }
}

fn pow(a: &Value, b: &Value) -> Result<Value, Error> {
    let Some(numbers) = number_pair(a, b) else {
        return Err(unsupported("** or pow()", a, b));
    };
    let (x, y) = match numbers {
        NumberPair::Ints(a, b) if b >= 0 => {
            let power = u32::try_from(b).ok().and_then(|b| a.checked_pow(b));
            return whole(power.or(if matches!(a, 0 | 1) { Some(a) } else { None }));
        }
        #[allow(clippy::cast_precision_loss, reason = "Python rounds too")]
        NumberPair::Ints(a, b) => (a as f64, b as f64),
        NumberPair::Floats(a, b) => (a, b),
    };
    if x == 0.0 && y < 0.0 {
        let message = "0.0 cannot be raised to a negative power";
        return Err(py_error("ZeroDivisionError", message));
    }
    let power = x.powf(y);
    if power.is_nan() && !x.is_nan() && !y.is_nan() {
        return Err(py_error("TypeError", "the result is a complex number"));
    }
    if power.is_infinite() && x.is_finite() && y.is_finite() {
        return Err(py_error("OverflowError", "the result is too large"));
    }
    Ok(Value::from(power))
}

fn concat(a: &Value, b: &Value) -> Value {
    let mut text = to_str(a);
    write_str(b, &mut text);
    Value::from(text)
}

fn neg(value: &Value) -> Result<Value, Error> {
    match Number::from_value(value) {
        Some(Number::Int(number)) => whole(number.checked_neg()),
        Some(Number::Float(number)) => Ok(Value::from(-number)),
        None => Err(bad_unary("-", value)),
    }
}

fn pos(value: &Value) -> Result<Value, Error> {
    match Number::from_value(value) {
        Some(Number::Int(number)) => Ok(from_i128(number)),
        Some(Number::Float(number)) => Ok(Value::from(number)),
        None => Err(bad_unary("+", value)),
    }
}

fn bad_unary(operator: &str, value: &Value) -> Error {
    if value.is_undefined() {
        return undefined();
    }
    let name = type_name(value);
    py_error(
        "TypeError",
        format!("bad operand type for unary {operator}: '{name}'"),
    )
}
