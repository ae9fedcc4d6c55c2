//! Bounds of fields in the description, from the constants that validation uses.

use std::ops::RangeInclusive;

use penstock_request::deadline::MAX_TIMEOUT_SECONDS;
use penstock_request::grammar_spec::GrammarFormat;
use penstock_request::logprobs;
use penstock_request::range::{Ends, Number, Range};
use penstock_request::sampling_params::{FLOATS, INTEGERS, NumericParam};
use penstock_request::validate::MAX_SALT_BYTES;
use penstock_request::validate::sampling::{LENGTH_PENALTY, MAX_BEAM_CANDIDATES};
use penstock_request::validate::{Choices, MAX_STOP_BYTES, sampling as lists};
use penstock_text::chat::MOST_TEMPLATE;
use penstock_text::tool_parsers::{LONGEST_TOOL_NAME, MOST_TOOLS, TOOL_NAME_SYMBOLS};
use serde_json::{Map, Value, json};

use crate::config::RouterConfig;
use crate::neutral::Neutral;
use crate::openai::wire::responses::MOST_INCLUDED;
use crate::{anthropic, native, openai, structured_output, tokens};

/// Schemas, one of their fields, and its bounds.
pub(super) type Bound = (&'static [&'static str], &'static str, Value);

const OPENAI: &[&str] = &["ChatRequest", "CompletionRequest", "ResponsesRequest"];
const SEVERAL: &[&str] = &["ChatRequest", "CompletionRequest"];
const CHAT: &[&str] = &["ChatRequest"];
const COMPLETION: &[&str] = &["CompletionRequest"];
const NATIVE: &[&str] = &["GenerateParameters"];
const MESSAGES: &[&str] = &["MessagesRequest"];
const RESPONSES: &[&str] = &["ResponsesRequest"];
const SEARCHED: &[&str] = &[
    "ChatRequest",
    "CompletionRequest",
    "ResponsesRequest",
    "GenerateParameters",
];

/// Returns the bounds of all fields.
pub(super) fn all(config: &RouterConfig) -> Vec<Bound> {
    let mut bounds = counts(config);
    bounds.extend(numbers());
    bounds.extend([timeout(OPENAI), timeout(NATIVE), timeout(MESSAGES)]);
    bounds.extend(token_ids());
    bounds.extend(lists());
    bounds.extend(texts(config));
    bounds.extend(words());
    #[cfg(feature = "kserve")]
    bounds.extend(super::kserve::bounds());
    bounds.extend(unused(CHAT, &openai::wire::chat::NEUTRAL));
    bounds.extend(unused(OPENAI, &openai::wire::NEUTRAL));
    bounds.extend(unused(RESPONSES, &openai::wire::responses::NEUTRAL));
    bounds.extend(unused(NATIVE, &native::NEUTRAL));
    bounds.extend(unused(&["TokenizeRequest"], &tokens::wire::NEUTRAL));
    bounds.extend(unused(MESSAGES, &anthropic::wire::NEUTRAL));
    bounds.extend(unused(MESSAGES, &anthropic::wire::NEUTRAL_THREAD));
    bounds
}

/// Returns the bounds of a request's timeout in seconds.
fn timeout(schemas: &'static [&'static str]) -> Bound {
    let range = json!({ "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_SECONDS });
    (schemas, "timeout", range)
}

/// Returns the bounds of unsupported fields: only their neutral values are allowed.
fn unused<'a>(
    schemas: &'static [&'static str],
    fields: &'a [(&'static str, Neutral)],
) -> impl Iterator<Item = Bound> + 'a {
    let said =
        move |(field, neutral): &(&'static str, Neutral)| (schemas, *field, neutral.schema());
    fields.iter().map(said)
}

/// Returns the bounds of counts.
fn counts(config: &RouterConfig) -> Vec<Bound> {
    let choices = range(Choices::range(config.text.limits.max_best_of));
    let top_logprobs = range(logprobs::range(config.text.limits.max_top_tokens));
    let positive = json!({ "minimum": 1 });
    vec![
        (SEVERAL, "n", choices.clone()),
        (RESPONSES, "n", range(Range::new(1, 1))),
        (COMPLETION, "best_of", choices.clone()),
        (NATIVE, "best_of", choices),
        (
            &["ChatRequest", "ResponsesRequest"],
            "top_logprobs",
            top_logprobs.clone(),
        ),
        (COMPLETION, "logprobs", top_logprobs.clone()),
        (
            SEVERAL,
            "prompt_logprobs",
            json!({ "minimum": -1, "maximum": config.text.limits.max_top_tokens }),
        ),
        (NATIVE, "top_n_tokens", top_logprobs),
        (
            &["ChatRequest", "ResponsesRequest"],
            "max_tokens",
            positive.clone(),
        ),
        (RESPONSES, "max_output_tokens", positive.clone()),
        (CHAT, "max_completion_tokens", positive.clone()),
        (MESSAGES, "max_tokens", positive.clone()),
        (NATIVE, "max_new_tokens", positive.clone()),
        (NATIVE, "truncate", positive),
        (
            SEARCHED,
            "beam_width",
            range(Range::new(1, MAX_BEAM_CANDIDATES)),
        ),
    ]
}

/// Returns the bounds of the numeric sampling parameters, on every route that has them.
fn numbers() -> Vec<Bound> {
    let floats = FLOATS.iter().flat_map(|param| bounds_of(param));
    let integers = INTEGERS.iter().flat_map(|param| bounds_of(param));
    let length_penalty = (SEARCHED, "length_penalty", range(LENGTH_PENALTY));
    floats.chain(integers).chain([length_penalty]).collect()
}

fn bounds_of<T: Number>(param: &NumericParam<T>) -> impl Iterator<Item = Bound> {
    let here = range(param.range);
    let anthropic = param
        .anthropic
        .then(|| (MESSAGES, param.name, here.clone()));
    let native = (param.native).map(|native| (NATIVE, param.name, range(native)));
    [(OPENAI, param.name, here)]
        .into_iter()
        .chain(anthropic)
        .chain(native)
}

fn token_ids() -> Vec<Bound> {
    let bias = json!({
        "maxProperties": lists::MAX_LOGIT_BIASES,
        "propertyNames": { "pattern": "^[0-9]+$" },
        "additionalProperties": range(lists::BIASES),
    });
    let word = json!({ "items": items(1..=lists::MAX_WORD_TOKENS) });
    let words = with(items(0..=lists::MAX_TOKEN_IDS), word);
    let ids = json!({ "minItems": 1 });
    vec![
        (OPENAI, "logit_bias", bias),
        (OPENAI, "allowed_token_ids", items(1..=lists::MAX_TOKEN_IDS)),
        (OPENAI, "bad_words_ids", words),
        (
            OPENAI,
            "logprob_token_ids",
            items(0..=logprobs::MAX_LOGPROB_TOKEN_IDS),
        ),
        (
            OPENAI,
            "stop_token_ids",
            items(0..=lists::MAX_STOP_TOKEN_IDS),
        ),
        (&["KserveGenerateRequest"], "input_ids", ids),
    ]
}

fn lists() -> Vec<Bound> {
    use openai::wire::chat as wire;
    let choice = items(1..=structured_output::MOST_CHOICES);
    let choice = with(choice, json!({ "items": { "minLength": 1 } }));
    let turns = items(1..=anthropic::wire::MOST_MESSAGES);
    vec![
        (OPENAI, "guided_choice", choice.clone()),
        (&["StructuredOutputs"], "choice", choice),
        (
            &["ChatRequest", "TokenizeRequest"],
            "messages",
            items(1..=wire::MOST_MESSAGES),
        ),
        (
            &["DetokenizeRequest"],
            "tokens",
            items(0..=tokens::wire::MOST_IDS),
        ),
        (&["Message"], "tool_calls", items(0..=wire::MOST_CALLS)),
        (MESSAGES, "messages", turns),
        (
            &[
                "ChatRequest",
                "ResponsesRequest",
                "MessagesRequest",
                "TokenizeRequest",
            ],
            "tools",
            items(0..=MOST_TOOLS),
        ),
        (CHAT, "functions", items(0..=MOST_TOOLS)),
        (
            &["AllowedTools", "AllowedFunctions"],
            "tools",
            items(1..=MOST_TOOLS),
        ),
        (RESPONSES, "include", items(0..=MOST_INCLUDED)),
    ]
}

/// Returns the bounds of a list with a length in `count`.
pub(super) fn items(count: RangeInclusive<usize>) -> Value {
    least(
        "minItems",
        *count.start(),
        json!({ "maxItems": count.end() }),
    )
}

/// Validation counts bytes: texts other than ASCII may have fewer characters than the bound.
fn texts(config: &RouterConfig) -> Vec<Bound> {
    let some = json!({ "minLength": 1 });
    let regex = text(1..=GrammarFormat::Regex.max_bytes());
    let grammar = text(1..=GrammarFormat::Ebnf.max_bytes());
    let bad = with(text(1..=lists::MAX_TEXT_BYTES), json!({ "pattern": "\\S" }));
    let bad = json!({ "items": bad });
    let name = with(
        text(1..=LONGEST_TOOL_NAME),
        json!({ "pattern": format!("^[a-zA-Z0-9{TOOL_NAME_SYMBOLS}]+$") }),
    );
    vec![
        (NATIVE, "stop", stops(config)),
        (MESSAGES, "stop_sequences", stops(config)),
        (
            OPENAI,
            "bad_words",
            with(items(0..=lists::MAX_BAD_TEXTS), bad),
        ),
        (
            &["ChatRequest", "TokenizeRequest"],
            "chat_template",
            text(0..=MOST_TEMPLATE),
        ),
        (OPENAI, "cache_salt", text(1..=MAX_SALT_BYTES)),
        (OPENAI, "guided_regex", regex.clone()),
        (OPENAI, "guided_grammar", grammar.clone()),
        (OPENAI, "regex", regex.clone()),
        (OPENAI, "ebnf", grammar.clone()),
        (&["StructuredOutputs"], "regex", regex),
        (&["StructuredOutputs"], "grammar", grammar),
        (
            &["GenerateRequest", "TokenizeRequest"],
            "inputs",
            some.clone(),
        ),
        (&["Message"], "role", some),
        (&["Function", "FunctionTool", "AnthropicTool"], "name", name),
        (RESPONSES, "metadata", metadata()),
    ]
}

/// Returns the bounds of a map from strings to strings.
fn metadata() -> Value {
    use openai::wire::metadata as wire;
    json!({
        "maxProperties": wire::MOST_PAIRS,
        "propertyNames": { "maxLength": wire::LONGEST_NAME },
        "additionalProperties": { "maxLength": wire::LONGEST_VALUE },
    })
}

/// Returns the bounds of a list of stop strings.
pub(super) fn stops(config: &RouterConfig) -> Value {
    let each = json!({ "items": text(1..=MAX_STOP_BYTES) });
    with(items(0..=config.text.limits.max_stop_sequences), each)
}

/// Returns the bounds of fields with a fixed set of values.
fn words() -> Vec<Bound> {
    let one_of = |words: &[&str]| json!({ "enum": words });
    let function = one_of(&[openai::wire::tools::FUNCTION]);
    let own = json!({ "propertyNames": { "not": one_of(&openai::OWN_VARIABLES) } });
    let object = json!({ "properties": { "type": one_of(&["object"]) } });
    vec![
        (
            &[
                "Tool",
                "FunctionTool",
                "FunctionName",
                "MessageCall",
                "NamedToolChoice",
            ],
            "type",
            function,
        ),
        (
            &["AllowedToolChoice", "AllowedFunctions"],
            "type",
            one_of(&[openai::wire::tools::ALLOWED]),
        ),
        (
            &["AnthropicTool"],
            "type",
            one_of(&[anthropic::wire::CUSTOM]),
        ),
        (
            &["ChatRequest", "ResponsesRequest"],
            "chat_template_kwargs",
            own,
        ),
        (&["Function", "FunctionTool"], "parameters", object.clone()),
        (&["AnthropicTool"], "input_schema", object),
    ]
}

/// Returns the bounds of a text with a length in `length`.
pub(super) fn text(length: RangeInclusive<usize>) -> Value {
    let most = json!({ "maxLength": length.end() });
    least("minLength", *length.start(), most)
}

/// Adds a lower bound if it is more than 0.
fn least(word: &str, least: usize, mut said: Value) -> Value {
    if least > 0 {
        said[word] = least.into();
    }
    said
}

fn range<T: Number>(range: Range<T>) -> Value {
    let (least, most) = match range.ends {
        Ends::Both => ("minimum", "maximum"),
        Ends::Most => ("exclusiveMinimum", "maximum"),
        Ends::Neither => ("exclusiveMinimum", "exclusiveMaximum"),
    };
    json!({ least: range.least.json(), most: range.most.json() })
}

fn with(mut said: Value, more: Value) -> Value {
    merge(&mut said, more);
    said
}

/// Merges more keywords into a schema. An enum gets `null` if the type allows it.
pub(super) fn merge(schema: &mut Value, more: Value) {
    let Value::Object(more) = more else {
        *schema = more;
        return;
    };
    for (word, value) in more {
        if word == "exclusiveMinimum" {
            schema
                .as_object_mut()
                .map(|schema| schema.remove("minimum"));
        }
        if word == "enum" {
            schema[word] = with_null(value, &schema["type"]);
        } else {
            merge(&mut schema[word], value);
        }
    }
}

fn with_null(mut values: Value, kind: &Value) -> Value {
    let nullable = kind
        .as_array()
        .is_some_and(|kinds| kinds.contains(&json!("null")));
    if let Some(values) = values.as_array_mut()
        && nullable
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    values
}

/// Adds the limits of integer types to a field, and to the items of lists, where no rule is
/// stricter.
pub(super) fn bound_whole_numbers(schema: &mut Value) {
    if schema["items"].is_object() {
        bound_whole_numbers(&mut schema["items"]);
    }
    let holds = match schema["format"].as_str() {
        Some("uint32") => range(Range::new(0, u32::MAX)),
        Some("int32") => range(Range::new(i32::MIN, i32::MAX)),
        Some("uint64") => range(Range::new(0, u64::MAX)),
        Some("int64") => range(Range::new(i64::MIN, i64::MAX)),
        _ => return,
    };
    let ruled = |end: &str| {
        let other = match end {
            "minimum" => "exclusiveMinimum",
            _ => "exclusiveMaximum",
        };
        [end, other]
            .into_iter()
            .any(|word| schema.get(word).is_some())
    };
    let unruled: Map<String, Value> = (holds.as_object().into_iter().flatten())
        .filter(|(end, _)| !ruled(end))
        .map(|(end, value)| (end.clone(), value.clone()))
        .collect();
    merge(schema, unruled.into());
}
