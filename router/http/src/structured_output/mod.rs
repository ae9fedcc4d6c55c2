//! The fields of structured output on all routes, and the one grammar that they define.

mod grammar;

use penstock_request::error::ApiError;
use penstock_request::grammar_spec::OutputConstraint;
use serde::Deserialize;
use utoipa::ToSchema;

pub(super) use self::grammar::schema_grammar;
use self::grammar::{
    any_object_grammar, choice_grammar, completed, ebnf_grammar, json_grammar, missing,
    regex_grammar, typed_grammar,
};
use super::strict::{self, JsonText, from_object};

from_object!(Grammar, ResponseFormat, NamedSchema, StructuredOutputs);

/// Maximum number of choices.
pub(super) const MOST_CHOICES: usize = 4096;
/// A grammar, in the format of the native routes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct Grammar {
    /// `json_object` is an alias of `json`.
    #[schema(inline)]
    r#type: WireGrammarKind,
    /// A JSON schema, `{"name":…,"schema":…}`, a regular expression, or a grammar (Lark, EBNF).
    #[schema(value_type = Option<Object>)]
    value: Option<JsonText>,
    /// Whether the output is completed within the token limit. Default: true for JSON, otherwise
    /// false.
    complete: Option<bool>,
}

/// A response format, as on OpenAI's routes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct ResponseFormat {
    /// Name of this field on the route, for errors.
    #[serde(skip, default = "response_format")]
    name: &'static str,
    /// `text` is unconstrained; `json`, `regex` and `grammar` are TGI's.
    #[schema(inline)]
    r#type: ResponseFormatKind,
    /// The schema of type `json_schema`.
    json_schema: Option<NamedSchema>,
    /// The JSON schema by itself, for `json_object` or `json_schema`, as in llama.cpp.
    #[schema(value_type = Option<Object>)]
    schema: Option<JsonText>,
    /// Same as `value` of the native `grammar`, as in TGI.
    #[schema(value_type = Option<Object>)]
    value: Option<JsonText>,
}

/// The type of a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireGrammarKind {
    Json,
    JsonObject,
    JsonSchema,
    Regex,
    Grammar,
}

/// The type of a response format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseFormatKind {
    Text,
    JsonObject,
    JsonSchema,
    Json,
    Regex,
    Grammar,
}

/// A JSON schema with a name.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct NamedSchema {
    /// The JSON schema.
    #[schema(value_type = Option<Object>)]
    schema: Option<JsonText>,
    /// Has no effect on the output.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Has no effect on the output.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Has no effect: schemas are always enforced strictly.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// The constraint of an output, in the format of recent vLLM clients.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    default,
    expecting = "a JSON object"
)]
pub(crate) struct StructuredOutputs {
    /// A JSON schema.
    #[schema(value_type = Option<Object>)]
    json: Option<JsonText>,
    /// A regular expression.
    regex: Option<String>,
    /// The texts that are allowed.
    #[serde(deserialize_with = "choices")]
    choice: Option<Vec<String>>,
    /// A grammar (Lark, EBNF).
    grammar: Option<String>,
    /// Any JSON object.
    json_object: Option<bool>,
}

/// The fields of OpenAI's routes that define a grammar.
#[derive(Clone, Debug, Default)]
pub(crate) struct StructuredOutputFields {
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) guided_json: Option<JsonText>,
    pub(crate) guided_regex: Option<String>,
    pub(crate) guided_choice: Option<Vec<String>>,
    pub(crate) guided_grammar: Option<String>,
    pub(crate) regex: Option<String>,
    pub(crate) ebnf: Option<String>,
    pub(crate) json_schema: Option<JsonText>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    pub(crate) guided_complete: Option<bool>,
}

/// The grammar found so far; a second one is an error.
#[derive(Debug, Default)]
struct SingleGrammar(Option<OutputConstraint>);

pub(crate) fn choices<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<String>>, D::Error> {
    strict::list_or_null::<MOST_CHOICES, _, _>(from)
}

/// Returns the field's name on the chat and completions routes.
fn response_format() -> &'static str {
    "response_format"
}

impl Grammar {
    /// Returns the grammar; errors name the field `grammar`.
    pub(crate) fn into_grammar(self) -> Result<OutputConstraint, ApiError> {
        let grammar = typed_grammar("grammar", self.r#type, self.value)?;
        completed(grammar, self.complete)
    }
}

impl StructuredOutputFields {
    /// Returns the grammar that these fields define, if any. Several grammars are an error.
    pub(crate) fn into_grammar(self) -> Result<Option<OutputConstraint>, ApiError> {
        let mut found = SingleGrammar::default();
        if let Some(format) = self.response_format
            && let Some(grammar) = format.into_grammar()?
        {
            found.put(grammar)?;
        }
        let schemas = [
            ("guided_json", self.guided_json),
            ("json_schema", self.json_schema),
        ];
        for (name, json) in schemas {
            if let Some(json) = json {
                found.put(json_grammar(name, json)?)?;
            }
        }
        for (name, regex) in [("guided_regex", self.guided_regex), ("regex", self.regex)] {
            if let Some(regex) = regex {
                found.put(regex_grammar(name, regex))?;
            }
        }
        if let Some(choice) = self.guided_choice {
            found.put(choice_grammar("guided_choice", &choice)?)?;
        }
        for (name, grammar) in [("guided_grammar", self.guided_grammar), ("ebnf", self.ebnf)] {
            if let Some(grammar) = grammar {
                found.put(ebnf_grammar(name, grammar))?;
            }
        }
        if let Some(outputs) = self.structured_outputs {
            outputs.put(&mut found)?;
        }
        let complete = self.guided_complete;
        (found.0)
            .map(|grammar| completed(grammar, complete))
            .transpose()
    }
}

/// Parses `{"complete": .., "outputs": ..}`, with `outputs` as in `structured_outputs`. The Python
/// package sends this.
///
/// # Errors
/// Invalid JSON or fields, and every rule that applies to requests.
pub fn parse_structured_outputs(json: &str) -> Result<Option<OutputConstraint>, ApiError> {
    #[derive(Deserialize)]
    struct PythonBody {
        complete: Option<bool>,
        outputs: StructuredOutputs,
    }
    let body: PythonBody = serde_json::from_str(json).map_err(|error| {
        let rule = format!("`structured_outputs`: {error}");
        ApiError::validation("structured_outputs", rule)
    })?;
    let fields = StructuredOutputFields {
        structured_outputs: Some(body.outputs),
        guided_complete: body.complete,
        ..StructuredOutputFields::default()
    };
    fields.into_grammar()
}

impl ResponseFormat {
    /// Returns the format of any JSON object; `name` is the field's name on the route.
    pub(crate) fn any_object(name: &'static str) -> Self {
        Self {
            name,
            r#type: ResponseFormatKind::JsonObject,
            json_schema: None,
            schema: None,
            value: None,
        }
    }

    /// Returns the format of documents of a schema; `name` is the field's name on the route.
    pub(crate) fn from_schema(name: &'static str, schema: JsonText) -> Self {
        let schema = NamedSchema {
            schema: Some(schema),
            ..NamedSchema::default()
        };
        Self {
            name,
            r#type: ResponseFormatKind::JsonSchema,
            json_schema: Some(schema),
            schema: None,
            value: None,
        }
    }

    fn into_grammar(self) -> Result<Option<OutputConstraint>, ApiError> {
        let Self {
            name,
            r#type,
            json_schema,
            schema,
            value,
        } = self;
        if let Some(schema) = schema {
            let schemas = matches!(
                r#type,
                ResponseFormatKind::JsonObject | ResponseFormatKind::JsonSchema
            );
            if schemas && json_schema.is_none() && value.is_none() {
                return json_grammar(name, schema).map(Some);
            }
            let rule = "`response_format.schema` is only for the types `json_object` and \
                        `json_schema`, without `json_schema` and `value`";
            return Err(ApiError::validation(name, rule));
        }
        match (r#type.grammar(), json_schema, value) {
            (None, None, None) => Ok(None),
            (Some(WireGrammarKind::JsonSchema), Some(NamedSchema { schema, .. }), None) => {
                let schema = schema.ok_or_else(|| missing("response_format.json_schema.schema"))?;
                json_grammar(name, schema).map(Some)
            }
            (Some(WireGrammarKind::JsonSchema), None, None) => {
                Err(missing("response_format.json_schema"))
            }
            (Some(kind), None, value) => typed_grammar(name, kind, value).map(Some),
            (_, Some(_), _) => {
                let rule = "`response_format.json_schema` is only for the type `json_schema`, \
                            without `value`";
                Err(ApiError::validation(name, rule))
            }
            (None, None, Some(_)) => {
                let rule = "`response_format.value` is not for the type `text`";
                Err(ApiError::validation(name, rule))
            }
        }
    }
}

impl ResponseFormatKind {
    /// Returns the type of grammar; `None` for unconstrained text.
    fn grammar(self) -> Option<WireGrammarKind> {
        Some(match self {
            Self::Text => return None,
            Self::JsonObject => WireGrammarKind::JsonObject,
            Self::JsonSchema => WireGrammarKind::JsonSchema,
            Self::Json => WireGrammarKind::Json,
            Self::Regex => WireGrammarKind::Regex,
            Self::Grammar => WireGrammarKind::Grammar,
        })
    }
}

impl WireGrammarKind {
    fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::JsonObject => "json_object",
            Self::JsonSchema => "json_schema",
            Self::Regex => "regex",
            Self::Grammar => "grammar",
        }
    }
}

impl StructuredOutputs {
    fn put(self, found: &mut SingleGrammar) -> Result<(), ApiError> {
        const NAME: &str = "structured_outputs";
        if let Some(json) = self.json {
            found.put(json_grammar(NAME, json)?)?;
        }
        if let Some(regex) = self.regex {
            found.put(regex_grammar(NAME, regex))?;
        }
        if let Some(choice) = self.choice {
            found.put(choice_grammar(NAME, &choice)?)?;
        }
        if let Some(grammar) = self.grammar {
            found.put(ebnf_grammar(NAME, grammar))?;
        }
        if self.json_object == Some(true) {
            found.put(any_object_grammar(NAME))?;
        }
        Ok(())
    }
}

impl SingleGrammar {
    fn put(&mut self, grammar: OutputConstraint) -> Result<(), ApiError> {
        let name = grammar.field;
        match self.0.replace(grammar) {
            None => Ok(()),
            Some(other) => {
                let other = other.field;
                let rule = format!("only one grammar is allowed; `{other}` sets one as well");
                Err(ApiError::validation(name, rule))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::grammar::ANY_OBJECT;
    use super::*;

    fn fields(json: &str) -> StructuredOutputFields {
        StructuredOutputFields {
            response_format: Some(serde_json::from_str(json).unwrap()),
            ..StructuredOutputFields::default()
        }
    }

    #[test]
    fn every_dialect_yields_the_same_grammar() {
        let schema = r#"{"type":"object","properties":{"b":{},"a":{}}}"#;
        let native: Grammar =
            serde_json::from_str(&format!(r#"{{"type":"json","value":{schema}}}"#)).unwrap();
        let wanted = native.into_grammar().unwrap();
        assert_eq!((wanted.text.as_str(), wanted.complete), (schema, true));
        let named = format!(r#"{{"name":"x","schema":{schema}}}"#);
        for format in [
            format!(r#"{{"type":"json_schema","json_schema":{named}}}"#),
            format!(r#"{{"type":"json_schema","value":{named}}}"#),
            format!(r#"{{"type":"json","value":{schema}}}"#),
            format!(r#"{{"type":"json","value":{}}}"#, serde_json::json!(schema)),
        ] {
            let found = fields(&format).into_grammar().unwrap().unwrap();
            assert_eq!(found.field, "response_format");
            assert_eq!(
                (found.kind, found.text, found.complete),
                (wanted.kind, wanted.text.clone(), wanted.complete),
                "{format}"
            );
        }
        let text = fields(r#"{"type":"text"}"#).into_grammar().unwrap();
        assert_eq!(text, None);
        let any = fields(r#"{"type":"json_object"}"#)
            .into_grammar()
            .unwrap()
            .unwrap();
        assert_eq!(any.text, ANY_OBJECT);
    }

    #[test]
    fn an_invalid_grammar_is_refused_by_field_name() {
        for (format, word) in [
            (r#"{"type":"regex"}"#, "needs a `value`"),
            (
                r#"{"type":"json_schema"}"#,
                "`response_format.json_schema` is missing",
            ),
            (
                r#"{"type":"json_schema","json_schema":{}}"#,
                "schema` is missing",
            ),
            (
                r#"{"type":"regex","value":7}"#,
                "must be a string. Given: 7",
            ),
        ] {
            let error = fields(format).into_grammar().unwrap_err();
            assert!(error.message.contains(word), "{format}: {}", error.message);
        }
        let twice = StructuredOutputFields {
            guided_regex: Some("a".into()),
            ..fields(r#"{"type":"json_object"}"#)
        };
        assert!(
            twice
                .into_grammar()
                .unwrap_err()
                .message
                .contains("only one")
        );
    }
}
