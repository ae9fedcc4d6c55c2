//! Guides, made of what requests spell out.

use super::{GrammarKind, NamedSchema};
use crate::engine::types::{Guide, GuideKind};
use crate::error::{ApiError, Excerpt};
use crate::http::strict::JsonText;

/// Of a document that may hold anything.
pub(super) const ANY_OBJECT: &str = r#"{"type":"object"}"#;
/// Characters that mean something in a regular expression.
const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~/";

/// A guide of a type.
pub(super) fn typed(
    name: &'static str,
    kind: GrammarKind,
    value: Option<JsonText>,
) -> Result<Box<Guide>, ApiError> {
    let needed = || {
        let rule = format!("`{name}` of type `{}` needs a `value`", kind.name());
        ApiError::validation(name, rule)
    };
    match kind {
        GrammarKind::Json | GrammarKind::JsonObject => match value {
            Some(value) => json_guide(name, value),
            None => Ok(any_object(name)),
        },
        GrammarKind::JsonSchema => {
            let value = value.ok_or_else(needed)?;
            let named: NamedSchema = serde_json::from_str(value.as_str()).map_err(|error| {
                let rule = format!("`{name}.value` must be an object with `schema`: {error}");
                ApiError::validation(name, rule)
            })?;
            json_guide(
                name,
                named
                    .schema
                    .ok_or_else(|| missing("grammar.value.schema"))?,
            )
        }
        GrammarKind::Regex => Ok(regex_guide(name, string(name, &value.ok_or_else(needed)?)?)),
        GrammarKind::Grammar => Ok(grammar_guide(
            name,
            string(name, &value.ok_or_else(needed)?)?,
        )),
    }
}

pub(super) fn missing(name: &'static str) -> ApiError {
    ApiError::validation(name, format!("`{name}` is missing"))
}

/// The guide to documents of a schema.
pub(in crate::http) fn schema_guide(
    name: &'static str,
    value: JsonText,
) -> Result<Box<Guide>, ApiError> {
    let guide = json_guide(name, value)?;
    check(&guide)?;
    Ok(guide)
}

/// A schema given as JSON, or as a string that holds it.
pub(super) fn json_guide(name: &'static str, value: JsonText) -> Result<Box<Guide>, ApiError> {
    let text = if value.as_str().starts_with('"') {
        string(name, &value)?
    } else {
        value.into_string()
    };
    Ok(guide(name, GuideKind::JsonSchema, text, true))
}

fn string(name: &'static str, value: &JsonText) -> Result<String, ApiError> {
    serde_json::from_str(value.as_str()).map_err(|_| {
        let rule = format!(
            "the value of `{name}` must be a string. Given: {}",
            Excerpt::new(value.as_str())
        );
        ApiError::validation(name, rule)
    })
}

pub(super) fn any_object(name: &'static str) -> Box<Guide> {
    guide(name, GuideKind::JsonSchema, ANY_OBJECT.to_owned(), true)
}

pub(super) fn regex_guide(name: &'static str, regex: String) -> Box<Guide> {
    guide(name, GuideKind::Regex, regex, false)
}

pub(super) fn grammar_guide(name: &'static str, grammar: String) -> Box<Guide> {
    guide(name, GuideKind::Grammar, grammar, false)
}

pub(super) fn choice_guide(name: &'static str, choice: &[String]) -> Result<Box<Guide>, ApiError> {
    if choice.is_empty() || choice.iter().any(String::is_empty) {
        let rule = format!("`{name}` must have a text to choose, and no empty one");
        return Err(ApiError::validation(name, rule));
    }
    let escaped: Vec<String> = choice.iter().map(|text| escape(text)).collect();
    let regex = format!("({})", escaped.join("|"));
    Ok(guide(name, GuideKind::Regex, regex, true))
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if SPECIAL.contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

pub(super) fn check(guide: &Guide) -> Result<(), ApiError> {
    let name = guide.field;
    if guide.text.is_empty() {
        let rule = format!("`{name}` cannot be empty");
        return Err(ApiError::validation(name, rule));
    }
    if guide.complete && guide.kind == GuideKind::Grammar {
        let rule =
            format!("`{name}` cannot be completed in time; only JSON and regular expressions can");
        return Err(ApiError::validation(name, rule));
    }
    Ok(())
}

fn guide(field: &'static str, kind: GuideKind, text: String, complete: bool) -> Box<Guide> {
    Box::new(Guide {
        kind,
        field,
        text,
        complete,
        end_token_ids: Vec::new(),
        thoughts: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_an_expression_of_its_texts() {
        let texts = ["a.b".to_owned(), "c|d".to_owned()];
        let guide = choice_guide("guided_choice", &texts).unwrap();
        assert_eq!(
            (guide.text.as_str(), guide.complete),
            (r"(a\.b|c\|d)", true)
        );
        assert!(choice_guide("guided_choice", &[]).is_err());
    }
}
