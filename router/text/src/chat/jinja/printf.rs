//! Python's `%` formatting: `format % values`.

use minijinja::Error;
use minijinja::value::Value;

use super::numbers::{Digits, float, integer};
use super::ops::Number;
use super::python_types::{Kind, items, kind, py_error, type_name};
use super::text::{to_ascii, to_repr, to_str};

/// The maximum of a width or precision in characters.
const MOST: usize = 1 << 16;

/// One conversion, such as `%-5d`.
#[derive(Debug, Default)]
struct Conversion {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    letter: char,
}

/// The values for the conversions, by position or by name.
struct FormatValues {
    list: std::vec::IntoIter<Value>,
    mapping: Option<Value>,
    /// Whether every value must be used.
    strict: bool,
}

impl FormatValues {
    fn from_value(value: &Value) -> Result<Self, Error> {
        let kind = kind(value);
        let list = if kind == Kind::Tuple {
            items(value)?
        } else {
            vec![value.clone()]
        };
        let mapping =
            matches!(kind, Kind::Dict | Kind::List | Kind::Undefined).then(|| value.clone());
        Ok(Self {
            list: list.into_iter(),
            strict: mapping.is_none(),
            mapping,
        })
    }

    fn next(&mut self) -> Result<Value, Error> {
        let missing = || py_error("TypeError", "not enough arguments for format string");
        self.list.next().ok_or_else(missing)
    }

    fn named(&self, name: &str) -> Result<Value, Error> {
        let dict = self.mapping.as_ref().and_then(Value::as_object);
        let dict = dict.ok_or_else(|| py_error("TypeError", "format requires a mapping"))?;
        dict.get_value(&Value::from(name))
            .ok_or_else(|| py_error("KeyError", format!("'{name}'")))
    }
}

pub(super) fn printf(format: &str, values: &Value) -> Result<String, Error> {
    let mut values = FormatValues::from_value(values)?;
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (conversion, name) = parse(&mut rest, &mut values)?;
        if conversion.letter == '%' {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) => {
                values.list = Vec::new().into_iter();
                values.named(&name)?
            }
            None => values.next()?,
        };
        conversion.write(&value, &mut out)?;
    }
    out.push_str(rest);
    if values.strict && values.list.len() > 0 {
        let message = "not all arguments converted during string formatting";
        return Err(py_error("TypeError", message));
    }
    Ok(out)
}

/// Parses a conversion after its `%`, including the name in parentheses.
fn parse(
    rest: &mut &str,
    values: &mut FormatValues,
) -> Result<(Conversion, Option<String>), Error> {
    let incomplete = || py_error("ValueError", "incomplete format");
    let mut name = None;
    if let Some(after) = rest.strip_prefix('(') {
        let end = after.find(')').ok_or_else(incomplete)?;
        name = Some(after[..end].to_owned());
        *rest = &after[end + 1..];
    }
    let mut found = Conversion::default();
    loop {
        match rest.chars().next() {
            Some('-') => found.left = true,
            Some('0') => found.zeros = true,
            Some('+') => found.plus = true,
            Some(' ') => found.space = true,
            Some('#') => found.alternate = true,
            _ => break,
        }
        *rest = &rest[1..];
    }
    if let Some(width) = size(rest, values)? {
        found.left |= width < 0;
        found.width = bounded(width.unsigned_abs())?;
    }
    if let Some(after) = rest.strip_prefix('.') {
        *rest = after;
        let precision = size(rest, values)?.unwrap_or(0).max(0);
        found.precision = Some(bounded(precision.unsigned_abs())?);
    }
    *rest = rest.trim_start_matches(['h', 'l', 'L']);
    found.letter = rest.chars().next().ok_or_else(incomplete)?;
    *rest = &rest[found.letter.len_utf8()..];
    Ok((found, name))
}

/// Parses a width or precision: digits, or `*` for the next value.
fn size(rest: &mut &str, values: &mut FormatValues) -> Result<Option<i64>, Error> {
    if let Some(after) = rest.strip_prefix('*') {
        *rest = after;
        let value = values.next()?;
        let wanted = || py_error("TypeError", "* wants int");
        return value.as_i64().map(Some).ok_or_else(wanted);
    }
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let (digits, after) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = after;
    if digits.is_empty() {
        return Ok(None);
    }
    let large = |_| py_error("ValueError", "width or precision too big");
    digits.parse().map(Some).map_err(large)
}

fn bounded(size: u64) -> Result<usize, Error> {
    let size = usize::try_from(size).ok().filter(|size| *size <= MOST);
    size.ok_or_else(|| py_error("ValueError", "width or precision too big"))
}

impl Conversion {
    fn write(&self, value: &Value, out: &mut String) -> Result<(), Error> {
        let text = match self.letter {
            's' => to_str(value),
            'r' => to_repr(value),
            'a' => to_ascii(value),
            'c' => character(value)?,
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' => return self.write_integer(value, out),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = Number::from_value(value).ok_or_else(|| {
                    let name = type_name(value);
                    py_error("TypeError", format!("must be real number, not {name}"))
                })?;
                let precision = self.precision.unwrap_or(6);
                let digits = float(number.as_float(), self.letter, precision, self.alternate);
                self.pad(&digits, out);
                return Ok(());
            }
            other => {
                let message = format!("unsupported format character '{other}'");
                return Err(py_error("ValueError", message));
            }
        };
        let text: String = match self.precision.filter(|_| self.letter != 'c') {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        };
        let blanks = self.width.saturating_sub(text.chars().count());
        let (before, after) = if self.left { (0, blanks) } else { (blanks, 0) };
        out.extend(std::iter::repeat_n(' ', before));
        out.push_str(&text);
        out.extend(std::iter::repeat_n(' ', after));
        Ok(())
    }

    fn write_integer(&self, value: &Value, out: &mut String) -> Result<(), Error> {
        let decimal = matches!(self.letter, 'd' | 'i' | 'u');
        #[allow(clippy::cast_possible_truncation, reason = "saturates past 128 bits")]
        let number = match Number::from_value(value) {
            Some(Number::Int(number)) => number,
            Some(Number::Float(number)) if decimal && number.is_finite() => number.trunc() as i128,
            _ if decimal && kind(value) == Kind::Int => {
                let text = value.to_string();
                let digits = text.trim_start_matches('-').to_owned();
                let negative = text.starts_with('-');
                let prefix = "";
                let number = Digits {
                    negative,
                    prefix,
                    digits,
                };
                self.pad(&number, out);
                return Ok(());
            }
            _ => {
                let (letter, name) = (self.letter, type_name(value));
                let what = if decimal {
                    "a real number"
                } else {
                    "an integer"
                };
                let message = format!("%{letter} format: {what} is required, not {name}");
                return Err(py_error("TypeError", message));
            }
        };
        let mut digits = integer(number, self.letter, self.alternate);
        if let Some(least) = self.precision {
            let zeros = least.saturating_sub(digits.digits.len());
            digits.digits.insert_str(0, &"0".repeat(zeros));
        }
        self.pad(&digits, out);
        Ok(())
    }

    fn pad(&self, number: &Digits, out: &mut String) {
        let sign = match number.negative {
            true => "-",
            false if self.plus => "+",
            false if self.space => " ",
            false => "",
        };
        let used = sign.len() + number.prefix.len() + number.digits.len();
        let missing = self.width.saturating_sub(used);
        let zeros = if self.zeros && !self.left { missing } else { 0 };
        let blanks = missing - zeros;
        let (before, after) = if self.left { (0, blanks) } else { (blanks, 0) };
        out.extend(std::iter::repeat_n(' ', before));
        out.push_str(sign);
        out.push_str(number.prefix);
        out.extend(std::iter::repeat_n('0', zeros));
        out.push_str(&number.digits);
        out.extend(std::iter::repeat_n(' ', after));
    }
}

fn character(value: &Value) -> Result<String, Error> {
    let code = value.as_i64().filter(|_| value.is_integer());
    let code = code.and_then(|code| u32::try_from(code).ok());
    let one = value.as_str().filter(|text| text.chars().count() == 1);
    let text = one.map(str::to_owned);
    text.or_else(|| code.and_then(char::from_u32).map(String::from))
        .ok_or_else(|| py_error("TypeError", "%c requires an int or a unicode character"))
}
