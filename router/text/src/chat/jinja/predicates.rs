//! The predicates of `str`, such as `isalpha()`.

use super::text::{is_printable, is_space};

/// Evaluates the predicate `method`; `None` if there is no such method.
pub(super) fn evaluate(s: &str, method: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !s.is_empty() && s.chars().all(is);
    Some(match method {
        "isascii" => s.is_ascii(),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(|c| is_decimal(c) || is_superscript(c)),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isprintable" => s.chars().all(is_printable),
        "islower" => s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase),
        "isupper" => s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase),
        "istitle" => is_title(s),
        "isidentifier" => is_identifier(s),
        _ => return None,
    })
}

/// Whether `c` is a decimal digit. The table has the first code point of each common block of ten
/// digits; rarer Unicode blocks are missing.
fn is_decimal(c: char) -> bool {
    const ZEROS: [u32; 18] = [
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
        0xe50, 0xed0, 0xf20, 0x1040, 0xff10,
    ];
    let code = u32::from(c);
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&code))
}

fn is_superscript(c: char) -> bool {
    matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨')
}

fn is_title(s: &str) -> bool {
    let (mut inside, mut any) = (false, false);
    for c in s.chars() {
        let (upper, lower) = (c.is_uppercase(), c.is_lowercase());
        if (upper && inside) || (lower && !inside) {
            return false;
        }
        inside = upper || lower;
        any |= inside;
    }
    any
}

fn is_identifier(s: &str) -> bool {
    let mut chars = s.chars();
    let first = chars.next();
    first.is_some_and(|c| c == '_' || c.is_alphabetic())
        && chars.all(|c| c == '_' || c.is_alphanumeric())
}
