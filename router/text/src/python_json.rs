//! JSON as Python writes and reads it: numbers may be `NaN` and `Infinity`, which JSON does not have.
//! transformers saves such limits (`"time_step_limit": [0.0, Infinity]`).

use serde_json::Value;

/// Parses a text. Numbers that are not finite become null.
///
/// # Errors
/// If the text is not JSON for any other reason.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&finite(text)))
}

/// Returns the text with null in place of numbers that are not finite.
fn finite(text: &str) -> String {
    let mut found = String::with_capacity(text.len());
    // Every other part between quotes is a string. Quotes behind a backslash end none.
    let mut quoted = false;
    for part in text.split_inclusive('"') {
        if quoted {
            found.push_str(part);
        } else {
            found.push_str(
                &part
                    .replace("-Infinity", "null")
                    .replace("Infinity", "null")
                    .replace("NaN", "null"),
            );
        }
        quoted = match quoted {
            true => escapes(part),
            false => part.ends_with('"'),
        };
    }
    found
}

/// Returns whether the quote that ends `part` of a string belongs to the string.
fn escapes(part: &str) -> bool {
    let before = part.strip_suffix('"').unwrap_or(part);
    let backslashes = before.len() - before.trim_end_matches('\\').len();
    backslashes % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_are_not_finite_become_null() {
        let text =
            r#"{"a": [0.0, Infinity, -Infinity], "NaN": NaN, "b\"": "Infinity\\", "c": "\" NaN"}"#;
        let expected =
            json!({"a": [0.0, null, null], "NaN": null, "b\"": "Infinity\\", "c": "\" NaN"});
        assert_eq!(parse(text).unwrap(), expected);
        assert!(parse("{Infinity}").is_err());
        assert!(parse("").is_err());
    }
}
