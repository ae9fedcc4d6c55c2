//! Python's `str.format`: `"{} {name!r:>8}".format(...)`.

use minijinja::value::Value;
use minijinja::{Error, State};

use super::args::Args;
use super::numbers::{Digits, float, integer};
use super::ops::Number;
use super::python_types::{Kind, kind, py_error, type_name};
use super::text::{self, to_ascii, to_repr, to_str};

/// The maximum of a width or precision in characters.
const MOST: usize = 1 << 16;

/// The arguments and the state of automatic field numbering.
struct Fields<'a> {
    args: &'a Args,
    next: usize,
    /// Whether a field had an explicit number: later fields then need one, too.
    numbered: bool,
}

/// Implements `format.format(*args)`.
pub(super) fn format(state: &State<'_, '_>, format: &str, args: &Args) -> Result<String, Error> {
    let mut fields = Fields {
        args,
        next: 0,
        numbered: false,
    };
    fields.expand(state, format, 2)
}

impl Fields<'_> {
    /// Expands the fields of `text`. `depth` is the number of levels at which format specifications
    /// may contain fields.
    fn expand(&mut self, state: &State<'_, '_>, text: &str, depth: u8) -> Result<String, Error> {
        if depth == 0 {
            return Err(py_error("ValueError", "Max string recursion exceeded"));
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let mark = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(mark) {
                out.push_str(mark);
                rest = after;
            } else if mark == "}" {
                let message = "Single '}' encountered in format string";
                return Err(py_error("ValueError", message));
            } else {
                let end = end_of_field(rest)?;
                self.field(state, &rest[..end], depth, &mut out)?;
                rest = &rest[end + 1..];
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(
        &mut self,
        state: &State<'_, '_>,
        field: &str,
        depth: u8,
        out: &mut String,
    ) -> Result<(), Error> {
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = match name.split_once('!') {
            Some((name, conversion)) => (name, Some(conversion)),
            None => (name, None),
        };
        let value = self.value(name)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::from(to_str(&value)),
            Some("r") => Value::from(to_repr(&value)),
            Some("a") => Value::from(to_ascii(&value)),
            Some(other) => {
                let message = format!("Unknown conversion specifier '{other}'");
                return Err(py_error("ValueError", message));
            }
        };
        let spec = self.expand(state, spec, depth - 1).or_else(|error| {
            if spec.contains(['{', '}']) {
                Err(error)
            } else {
                Ok(spec.to_owned())
            }
        })?;
        Spec::parse(&spec)?.write(&value, out)
    }

    /// Returns the value of a field such as `0`, `name` or `0.attribute[item]`.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at(end);
        let number = first.parse().ok();
        if (first.is_empty() && self.numbered) || (number.is_some() && self.next > 0) {
            let message = "cannot switch between manual and automatic field numbering";
            return Err(py_error("ValueError", message));
        }
        self.numbered |= number.is_some();
        let mut value = if first.is_empty() {
            self.next += 1;
            self.positional(self.next - 1)?
        } else if let Some(index) = number {
            self.positional(index)?
        } else {
            let missing = || py_error("KeyError", format!("'{first}'"));
            self.args.named(first).ok_or_else(missing)?
        };
        while !path.is_empty() {
            let key;
            if let Some(after) = path.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                key = Value::from(&after[..end]);
                path = &after[end..];
            } else {
                let inner = path.strip_prefix('[').unwrap_or(path);
                let end = inner
                    .find(']')
                    .ok_or_else(|| py_error("ValueError", "Missing ']' in format string"))?;
                let text = &inner[..end];
                key = text
                    .parse::<i64>()
                    .map_or_else(|_| Value::from(text), Value::from);
                path = &inner[end + 1..];
            }
            value = value.get_item(&key)?;
        }
        Ok(value)
    }

    fn positional(&self, index: usize) -> Result<Value, Error> {
        let missing = || {
            let message =
                format!("Replacement index {index} out of range for positional args tuple");
            py_error("IndexError", message)
        };
        self.args.positional(index).cloned().ok_or_else(missing)
    }
}

/// Returns the end of the field at the start of `rest`. Its format specification may contain
/// fields.
fn end_of_field(rest: &str) -> Result<usize, Error> {
    let mut open = 0_usize;
    for (at, c) in rest.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => return Ok(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    Err(py_error("ValueError", "expected '}' before end of string"))
}

/// A format specification: the text after a field's colon.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zeros: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

const ALIGNS: [char; 4] = ['<', '>', '^', '='];

impl Spec {
    fn parse(text: &str) -> Result<Self, Error> {
        let mut spec = Self::default();
        let mut rest = text.chars().peekable();
        let mut ahead = text.chars();
        match (ahead.next(), ahead.next()) {
            (fill, Some(align)) if ALIGNS.contains(&align) => {
                spec.fill = fill;
                spec.align = Some(align);
                rest.nth(1);
            }
            (Some(align), _) if ALIGNS.contains(&align) => {
                spec.align = Some(align);
                rest.next();
            }
            _ => {}
        }
        spec.sign = rest.next_if(|c| ['+', '-', ' '].contains(c));
        rest.next_if_eq(&'z');
        spec.alternate = rest.next_if_eq(&'#').is_some();
        spec.zeros = rest.next_if_eq(&'0').is_some();
        spec.width = number(&mut rest)?.unwrap_or(0);
        spec.grouping = rest.next_if(|c| [',', '_'].contains(c));
        if rest.next_if_eq(&'.').is_some() {
            let missing = || py_error("ValueError", "Format specifier missing precision");
            spec.precision = Some(number(&mut rest)?.ok_or_else(missing)?);
        }
        spec.kind = rest.next();
        if rest.next().is_some() {
            return Err(py_error(
                "ValueError",
                format!("Invalid format specifier '{text}'"),
            ));
        }
        Ok(spec)
    }

    fn write(&self, value: &Value, out: &mut String) -> Result<(), Error> {
        let kind = kind(value);
        match (kind, Number::from_value(value)) {
            (Kind::Bool, _) if self.kind.is_none() => self.write_text(&to_str(value), out),
            (_, Some(number)) if self.kind != Some('s') => return self.write_number(number, out),
            (Kind::Str | Kind::Int, _) if matches!(self.kind, None | Some('s')) => {
                self.write_text(&to_str(value), out);
            }
            (Kind::Str, _) => {
                let code = self.kind.unwrap_or('s');
                let message = format!("Unknown format code '{code}' for object of type 'str'");
                return Err(py_error("ValueError", message));
            }
            _ if self.is_empty() => out.push_str(&to_str(value)),
            _ => {
                let name = type_name(value);
                let message = format!("unsupported format string passed to {name}.__format__");
                return Err(py_error("TypeError", message));
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.width == 0 && self.kind.is_none() && self.align.is_none() && self.precision.is_none()
    }

    fn write_text(&self, text: &str, out: &mut String) {
        let most = self.precision.unwrap_or(usize::MAX);
        let text: String = text.chars().take(most).collect();
        let fill = if self.zeros { '0' } else { ' ' };
        let align = self.align.filter(|align| *align != '=').unwrap_or('<');
        let fill = self.fill.unwrap_or(fill);
        pad(
            &text,
            Padding {
                fill,
                align,
                width: self.width,
            },
            out,
        );
    }

    fn write_number(&self, value: Number, out: &mut String) -> Result<(), Error> {
        let digits = match (value, self.kind) {
            (Number::Int(code), Some('c')) => {
                let c = u32::try_from(code).ok().and_then(char::from_u32);
                let c =
                    c.ok_or_else(|| py_error("OverflowError", "%c arg not in range(0x110000)"))?;
                self.write_text(&c.to_string(), out);
                return Ok(());
            }
            (Number::Int(number), None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X')) => {
                integer(number, self.kind.unwrap_or('d'), self.alternate)
            }
            (number, Some(letter @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%' | 'n'))) => {
                self.real(number.as_float(), letter)
            }
            (Number::Float(number), None) => self.plain(number),
            (number, Some(other)) => {
                let name = if matches!(number, Number::Int(_)) {
                    "int"
                } else {
                    "float"
                };
                let message = format!("Unknown format code '{other}' for object of type '{name}'");
                return Err(py_error("ValueError", message));
            }
        };
        self.write_digits(&digits, out);
        Ok(())
    }

    fn real(&self, number: f64, letter: char) -> Digits {
        let precision = self.precision.unwrap_or(6);
        match letter {
            '%' => {
                let mut digits = float(number * 100.0, 'f', precision, self.alternate);
                digits.digits.push('%');
                digits
            }
            'n' => float(number, 'g', precision, self.alternate),
            letter => float(number, letter, precision, self.alternate),
        }
    }

    /// Formats a float without a presentation type: like `g`, but with a digit after the point.
    fn plain(&self, number: f64) -> Digits {
        let Some(precision) = self.precision else {
            return Digits {
                negative: number.is_sign_negative() && !number.is_nan(),
                prefix: "",
                digits: text::float(number.abs()),
            };
        };
        let mut digits = float(number, 'g', precision, self.alternate);
        if digits.digits.bytes().all(|c| c.is_ascii_digit()) {
            if digits.digits.len() >= precision.max(1) {
                let exact = float(number, 'e', precision.saturating_sub(1), self.alternate).digits;
                let (mantissa, exponent) = exact.split_once('e').unwrap_or((&exact, "+00"));
                let mantissa = match mantissa.contains('.') {
                    true => mantissa.trim_end_matches('0').trim_end_matches('.'),
                    false => mantissa,
                };
                digits.digits = format!("{mantissa}e{exponent}");
            } else {
                digits.digits.push_str(".0");
            }
        }
        digits
    }

    fn write_digits(&self, number: &Digits, out: &mut String) {
        let sign = match (number.negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        };
        let before = format!("{sign}{}", number.prefix);
        let fill = self.fill.unwrap_or(if self.zeros { '0' } else { ' ' });
        let align = self.align.unwrap_or(if self.zeros { '=' } else { '>' });
        let filled = if align == '=' {
            self.width.saturating_sub(before.len())
        } else {
            0
        };
        let zeros = if fill == '0' { filled } else { 0 };
        let digits = self.grouped(&number.digits, zeros);
        if align == '=' {
            out.push_str(&before);
            let padding = Padding {
                fill,
                align: '>',
                width: filled,
            };
            pad(&digits, padding, out);
        } else {
            let padding = Padding {
                fill,
                align,
                width: self.width,
            };
            pad(&(before + &digits), padding, out);
        }
    }

    /// Groups the digits before the point. Zeros that fill the width are grouped as well.
    fn grouped(&self, digits: &str, width: usize) -> String {
        let Some(mark) = self.grouping else {
            return digits.to_owned();
        };
        let end = digits.find(|c: char| !c.is_ascii_hexdigit() || c == 'e');
        let (whole, rest) = digits.split_at(end.unwrap_or(digits.len()));
        let size = if matches!(self.kind, Some('b' | 'o' | 'x' | 'X')) {
            4
        } else {
            3
        };
        let mut whole = whole.to_owned();
        let length = |whole: &str| whole.len() + whole.len().saturating_sub(1) / size + rest.len();
        while length(&whole) < width {
            whole.insert(0, '0');
        }
        let mut out = String::new();
        for (index, c) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index) % size == 0 {
                out.push(mark);
            }
            out.push(c);
        }
        out + rest
    }
}

fn number(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut found = None;
    while let Some(digit) = rest.next_if(char::is_ascii_digit) {
        let digit = usize::try_from(digit.to_digit(10).unwrap_or(0)).unwrap_or(0);
        let sum = found.unwrap_or(0) * 10 + digit;
        if sum > MOST {
            return Err(py_error(
                "ValueError",
                "Too many decimal digits in format string",
            ));
        }
        found = Some(sum);
    }
    Ok(found)
}

/// Padding of a text.
#[derive(Clone, Copy)]
pub(super) struct Padding {
    /// The character that fills.
    pub(super) fill: char,
    /// `<`, `^` or `>`.
    pub(super) align: char,
    /// The least number of characters.
    pub(super) width: usize,
}

/// Appends the text with its padding.
pub(super) fn pad(text: &str, padding: Padding, out: &mut String) {
    let fill = padding.fill;
    let missing = padding.width.saturating_sub(text.chars().count());
    let before = match padding.align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - before));
}
