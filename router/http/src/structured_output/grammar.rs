//! Grammars made of the fields of a request.

use penstock_request::error::{ApiError, Excerpt};
use penstock_request::grammar_spec::{GrammarFormat, OutputConstraint};

use super::{NamedSchema, WireGrammarKind};
use crate::strict::JsonText;

/// Schema of a JSON object with any content.
pub(super) const ANY_OBJECT: &str = r#"{"type":"object"}"#;
/// Characters with a meaning in regular expressions.
const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~/";

/// Returns the grammar of a type and its value.
pub(super) fn typed_grammar(
    name: &'static str,
    kind: WireGrammarKind,
    value: Option<JsonText>,
) -> Result<OutputConstraint, ApiError> {
    let needed = || {
        let rule = format!("`{name}` of type `{}` needs a `value`", kind.name());
        ApiError::validation(name, rule)
    };
    match kind {
        WireGrammarKind::Json | WireGrammarKind::JsonObject => match value {
            Some(value) => json_grammar(name, value),
            None => Ok(any_object_grammar(name)),
        },
        WireGrammarKind::JsonSchema => {
            let value = value.ok_or_else(needed)?;
            let named: NamedSchema = serde_json::from_str(value.as_str()).map_err(|error| {
                let rule = format!("`{name}.value` must be an object with `schema`: {error}");
                ApiError::validation(name, rule)
            })?;
            json_grammar(
                name,
                named
                    .schema
                    .ok_or_else(|| missing("grammar.value.schema"))?,
            )
        }
        WireGrammarKind::Regex => Ok(regex_grammar(
            name,
            string(name, &value.ok_or_else(needed)?)?,
        )),
        WireGrammarKind::Grammar => Ok(ebnf_grammar(
            name,
            string(name, &value.ok_or_else(needed)?)?,
        )),
    }
}

pub(super) fn missing(name: &'static str) -> ApiError {
    ApiError::validation(name, format!("`{name}` is missing"))
}

/// Returns the grammar of the documents of a JSON schema.
pub(crate) fn schema_grammar(
    name: &'static str,
    value: JsonText,
) -> Result<OutputConstraint, ApiError> {
    completed(json_grammar(name, value)?, None)
}

/// Returns the grammar of a schema that is given as JSON, or as a string that contains it.
pub(super) fn json_grammar(
    name: &'static str,
    value: JsonText,
) -> Result<OutputConstraint, ApiError> {
    let text = if value.as_str().starts_with('"') {
        string(name, &value)?
    } else {
        value.into_string()
    };
    Ok(new_grammar(name, GrammarFormat::JsonSchema, text, true))
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

pub(super) fn any_object_grammar(name: &'static str) -> OutputConstraint {
    new_grammar(name, GrammarFormat::JsonSchema, ANY_OBJECT.to_owned(), true)
}

pub(super) fn regex_grammar(name: &'static str, regex: String) -> OutputConstraint {
    new_grammar(name, GrammarFormat::Regex, regex, false)
}

pub(super) fn ebnf_grammar(name: &'static str, grammar: String) -> OutputConstraint {
    new_grammar(name, GrammarFormat::Ebnf, grammar, false)
}

pub(super) fn choice_grammar(
    name: &'static str,
    choice: &[String],
) -> Result<OutputConstraint, ApiError> {
    if choice.is_empty() || choice.iter().any(String::is_empty) {
        let rule = format!("`{name}` must have at least one text, and no empty text");
        return Err(ApiError::validation(name, rule));
    }
    let escaped: Vec<String> = choice.iter().map(|text| escape(text)).collect();
    let regex = format!("({})", escaped.join("|"));
    Ok(new_grammar(name, GrammarFormat::Regex, regex, true))
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

/// Returns the constraint with the client's `complete`, if given, after checking it.
pub(super) fn completed(
    grammar: OutputConstraint,
    complete: Option<bool>,
) -> Result<OutputConstraint, ApiError> {
    let grammar = OutputConstraint {
        complete: complete.unwrap_or(grammar.complete),
        ..grammar
    };
    let name = grammar.field;
    if grammar.text.is_empty() {
        let rule = format!("`{name}` cannot be empty");
        return Err(ApiError::validation(name, rule));
    }
    if grammar.complete && grammar.kind == GrammarFormat::Ebnf {
        let rule = format!(
            "`{name}` cannot be completed within the token limit; only JSON and regular expressions can"
        );
        return Err(ApiError::validation(name, rule));
    }
    Ok(grammar)
}

fn new_grammar(
    field: &'static str,
    kind: GrammarFormat,
    text: String,
    complete: bool,
) -> OutputConstraint {
    OutputConstraint {
        kind,
        field,
        text,
        complete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_becomes_a_regex_of_its_texts() {
        let texts = ["a.b".to_owned(), "c|d".to_owned()];
        let grammar = choice_grammar("guided_choice", &texts).unwrap();
        assert_eq!(
            (grammar.text.as_str(), grammar.complete),
            (r"(a\.b|c\|d)", true)
        );
        assert!(choice_grammar("guided_choice", &[]).is_err());
    }
}
