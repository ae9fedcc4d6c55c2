//! The tokens of a tag.

use std::borrow::Cow;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'s> {
    Name(&'s str),
    /// The value of a string literal.
    Text(String),
    /// Decimal digits.
    Integer(String),
    Float(Cow<'s, str>),
    /// An operator or a bracket.
    Sign(&'static str),
}

/// Operators and brackets, longer ones first.
const SIGNS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// Tokenizes the tag that begins at `from`. Returns the tokens and the position of the end mark
/// (with its `-` or `+`). The error describes the invalid token.
pub(super) fn tokenize<'s>(
    source: &'s str,
    from: usize,
    end: &str,
) -> Result<(Vec<Token<'s>>, usize), String> {
    let mut found = Vec::new();
    let mut at = from;
    let mut open = 0_usize;
    loop {
        let rest = &source[at..];
        let blank = rest.len() - rest.trim_start().len();
        at += blank;
        let rest = &source[at..];
        if open == 0 && ends(rest, end) {
            return Ok((found, at));
        }
        let Some(first) = rest.chars().next() else {
            return Err(format!("the tag is not closed: `{end}` is missing"));
        };
        let (token, length) = match first {
            '"' | '\'' => string(rest)?,
            '0'..='9' => number(rest)?,
            c if c == '_' || c.is_alphabetic() => {
                let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
                let name = &rest[..end.unwrap_or(rest.len())];
                (Token::Name(name), name.len())
            }
            other => {
                let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
                let sign = sign.ok_or_else(|| format!("unexpected character `{other}`"))?;
                (Token::Sign(sign), sign.len())
            }
        };
        if let Token::Sign(sign) = token {
            match sign {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => {
                    open = open
                        .checked_sub(1)
                        .ok_or_else(|| format!("unexpected `{sign}`"))?;
                }
                _ => {}
            }
        }
        found.push(token);
        at += length;
    }
}

fn ends(rest: &str, end: &str) -> bool {
    let unmarked = match end {
        "%}" => rest.strip_prefix(['-', '+']),
        _ => rest.strip_prefix('-'),
    };
    rest.starts_with(end) || unmarked.is_some_and(|rest| rest.starts_with(end))
}

fn number(rest: &str) -> Result<(Token<'_>, usize), String> {
    let lower = rest.as_bytes().get(1).map(u8::to_ascii_lowercase);
    let base = match lower {
        Some(b'x') => 16,
        Some(b'o') => 8,
        Some(b'b') => 2,
        _ => 10,
    };
    let digits = |text: &str, base: u32| {
        let end = text.find(|c: char| c != '_' && !c.is_digit(base));
        end.unwrap_or(text.len())
    };
    if base != 10 && rest.starts_with('0') {
        let length = 2 + digits(&rest[2..], base);
        let plain = rest[2..length].replace('_', "");
        let value = i128::from_str_radix(&plain, base).map_err(|error| error.to_string())?;
        return Ok((Token::Integer(value.to_string()), length));
    }
    let mut length = digits(rest, 10);
    let mut is_float = false;
    let fraction = rest[length..].strip_prefix('.');
    if fraction.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit())) {
        is_float = true;
        length += 1 + digits(&rest[length + 1..], 10);
    }
    if let Some(after) = rest[length..].strip_prefix(['e', 'E']) {
        let signed = after.strip_prefix(['-', '+']).unwrap_or(after);
        if signed.starts_with(|c: char| c.is_ascii_digit()) {
            is_float = true;
            length = rest.len() - signed.len() + digits(signed, 10);
        }
    }
    let text = &rest[..length];
    let plain = if text.contains('_') {
        Cow::Owned(text.replace('_', ""))
    } else {
        Cow::Borrowed(text)
    };
    Ok((
        if is_float {
            Token::Float(plain)
        } else {
            Token::Integer(plain.into_owned())
        },
        length,
    ))
}

fn string(rest: &str) -> Result<(Token<'_>, usize), String> {
    let mark = rest.chars().next().unwrap_or('"');
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == mark => {
                let text = unescaped(&rest[1..at])?;
                return Ok((Token::Text(text), at + 1));
            }
            _ => {}
        }
    }
    Err("a string is not closed".to_owned())
}

/// Resolves a Python string literal's escapes.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut high: Option<u32> = None;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let Some(c) = after.chars().next() else {
            rest = &rest[at..];
            break;
        };
        let (code, length) = match c {
            'x' => (hex(after, 2)?, 3),
            'u' => (hex(after, 4)?, 5),
            'U' => (hex(after, 8)?, 9),
            '0'..='7' => {
                let end = after
                    .find(|c: char| !('0'..='7').contains(&c))
                    .unwrap_or(after.len());
                let digits = &after[..end.min(3)];
                (u32::from_str_radix(digits, 8).unwrap_or(0), digits.len())
            }
            _ => {
                plain_escape(c, &mut out);
                rest = &after[c.len_utf8()..];
                continue;
            }
        };
        rest = &after[length..];
        match (high.take(), code) {
            (None, 0xD800..0xDC00) => high = Some(code),
            (Some(high), 0xDC00..0xE000) => {
                let pair = 0x1_0000 + ((high - 0xD800) << 10) + (code - 0xDC00);
                out.extend(char::from_u32(pair));
            }
            _ => out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn plain_escape(c: char, out: &mut String) {
    match c {
        '\n' => {}
        '\\' | '\'' | '"' => out.push(c),
        'a' => out.push('\u{7}'),
        'b' => out.push('\u{8}'),
        'f' => out.push('\u{c}'),
        'n' => out.push('\n'),
        'r' => out.push('\r'),
        't' => out.push('\t'),
        'v' => out.push('\u{b}'),
        other => out.extend(['\\', other]),
    }
}

fn hex(after: &str, digits: usize) -> Result<u32, String> {
    let digits = after.get(1..=digits);
    let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    code.ok_or_else(|| "a string has an incomplete escape sequence".to_owned())
}
