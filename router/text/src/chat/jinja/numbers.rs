//! Number formatting for `%` and `str.format`.

/// The sign, prefix and digits of a number before padding.
#[derive(Debug, Default)]
pub(super) struct Digits {
    /// Whether the number is negative.
    pub(super) negative: bool,
    /// A prefix such as `0x`.
    pub(super) prefix: &'static str,
    pub(super) digits: String,
}

/// Formats an integer in base 2, 8, 10 or 16, according to the conversion's letter.
pub(super) fn integer(number: i128, conversion: char, alternate: bool) -> Digits {
    let size = number.unsigned_abs();
    let (prefix, digits) = match conversion {
        'b' => ("0b", format!("{size:b}")),
        'o' => ("0o", format!("{size:o}")),
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        _ => ("", size.to_string()),
    };
    Digits {
        negative: number < 0,
        prefix: if alternate { prefix } else { "" },
        digits,
    }
}

/// Formats a float by the conversions `e`, `f` and `g`, in either case.
pub(super) fn float(number: f64, conversion: char, precision: usize, alternate: bool) -> Digits {
    let size = number.abs();
    let digits = if size.is_nan() {
        "nan".to_owned()
    } else if size.is_infinite() {
        "inf".to_owned()
    } else {
        match conversion.to_ascii_lowercase() {
            'e' => exponential(size, precision),
            'f' => format!("{size:.precision$}"),
            _ => general(size, precision, alternate),
        }
    };
    Digits {
        negative: number.is_sign_negative() && !number.is_nan(),
        prefix: "",
        digits: if conversion.is_ascii_uppercase() {
            digits.to_uppercase()
        } else {
            digits
        },
    }
}

fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Formats `precision` significant digits, without trailing zeros unless `alternate`.
fn general(size: f64, precision: usize, alternate: bool) -> String {
    let precision = precision.max(1);
    let rounded = exponential(size, precision - 1);
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let significant = i64::try_from(precision).unwrap_or(i64::MAX);
    let trimmed = |text: &str| {
        if alternate || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= significant {
        let (_, power) = rounded.split_once('e').unwrap_or(("", "+00"));
        return format!("{}e{power}", trimmed(mantissa));
    }
    let places = usize::try_from(significant - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{size:.places$}"))
}
