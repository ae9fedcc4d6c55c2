//! A request of any of the three interfaces (tensors, JSON fields, gRPC), and how it becomes a
//! generation.

use std::time::Duration;

use penstock_request::error::{ApiError, Excerpt};
use penstock_request::sampling_params::numeric_names;
use penstock_request::validate::{Dialect, FieldNames};
use penstock_text::Charge;
use penstock_text::generation::Generation;
use penstock_text::{GenerateInput, Prompt};
use serde_json::{Map, Value, json};

use super::output::Output;
use crate::openai::wire::Common;
use crate::openai::wire::completions::CompletionRequest;
use crate::openai::wire::one_or_many::WirePrompt;
use crate::{App, json};

/// Default of `max_tokens`: that of vLLM and its Triton backend.
const MAX_TOKENS: u32 = 16;
/// Maximum bytes of JSON of sampling parameters.
const LONGEST: usize = 64 << 10;

/// Inputs by name. Those of numeric sampling parameters are in the table of those.
const INPUTS: [(&str, Input); 16] = [
    ("text_input", Input::Text),
    ("stream", Input::Stream),
    ("sampling_parameters", Input::Sampling),
    ("exclude_input_in_output", Input::Exclude),
    (
        "return_finish_reason",
        Input::ReturnOutput(Output::FinishReason),
    ),
    (
        "return_cumulative_logprob",
        Input::ReturnOutput(Output::CumulativeLogprob),
    ),
    (
        "return_num_input_tokens",
        Input::ReturnOutput(Output::NumInputTokens),
    ),
    (
        "return_num_output_tokens",
        Input::ReturnOutput(Output::NumOutputTokens),
    ),
    ("return_logprobs", Input::OnlyFalse),
    // Names of TurboMind.
    ("input_ids", Input::Ids),
    ("input_lengths", Input::Length),
    ("request_output_len", Input::Parameter("max_tokens")),
    ("random_seed", Input::Seed),
    ("is_return_log_probs", Input::OnlyFalse),
    ("min_length", Input::Parameter("min_tokens")),
    ("beam_width", Input::Parameter("beam_width")),
];

/// Parameters that may be strings, as vLLM's Triton backend accepts them, beside the numeric
/// sampling parameters.
const NUMBERS: [&str; 9] = [
    "max_tokens",
    "min_tokens",
    "seed",
    "n",
    "best_of",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "spaces_between_special_tokens",
];

/// Fields of a completion that are not sampling parameters.
const NOT_SAMPLING: [&str; 11] = [
    "prompt",
    "model",
    "stream_options",
    "echo",
    "suffix",
    "logprob_token_ids",
    "logprobs",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "user",
];

/// How an input is handled.
#[derive(Clone, Copy)]
enum Input {
    Text,
    Ids,
    Length,
    Stream,
    Sampling,
    Exclude,
    ReturnOutput(Output),
    OnlyFalse,
    Parameter(&'static str),
    Seed,
}

/// Returns all inputs by name.
fn inputs() -> impl Iterator<Item = (&'static str, Input)> {
    let numeric = numeric_names().filter_map(|(parameter, input)| {
        let input = input?;
        Some((input, Input::Parameter(parameter)))
    });
    INPUTS.into_iter().chain(numeric)
}

/// Returns the names of all inputs.
pub(crate) fn input_names() -> Vec<&'static str> {
    inputs().map(|(name, _)| name).collect()
}

/// Whether a parameter may be a string.
fn may_be_string(parameter: &str) -> bool {
    NUMBERS.contains(&parameter) || numeric_names().any(|(name, _)| name == parameter)
}

/// Whether the response is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Whole,
    Stream,
}

/// The inputs of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GenerationRequest {
    /// Names of the inputs that are set.
    given: Vec<&'static str>,
    text: Option<String>,
    ids: Option<Vec<u32>>,
    length: Option<u64>,
    /// Name of the input that set `max_tokens`, for errors.
    bound: Option<&'static str>,
    sampling: Map<String, Value>,
    exclude: Option<bool>,
    stream: Option<bool>,
    outputs: Vec<Output>,
}

/// A running request, and the options of its response.
pub(super) struct RunningGeneration {
    pub(super) generation: Generation,
    /// Prefix of the text: the prompt, or empty.
    pub(super) prefix: String,
    pub(super) outputs: Vec<Output>,
    /// Charge for the memory of the prefix.
    _charge: Option<Charge>,
}

impl GenerationRequest {
    /// Returns whether an input is a list; all others have one element.
    pub(super) fn is_list(name: &str) -> bool {
        name == "input_ids"
    }

    /// Sets an input.
    pub(super) fn set(&mut self, name: &str, value: Value) -> Result<(), ApiError> {
        let Some((name, input)) = inputs().find(|(known, _)| *known == name) else {
            let (name, known) = (Excerpt::new(name), input_names().join("`, `"));
            let message = format!("`inputs`: unknown input `{name}`, expected one of `{known}`");
            return Err(ApiError::validation("inputs", message));
        };
        if self.given.contains(&name) {
            let message = format!("`inputs`: `{name}` is given twice");
            return Err(ApiError::validation("inputs", message));
        }
        self.given.push(name);
        match input {
            Input::Text => self.text = Some(text(name, value)?),
            Input::Ids => {
                let ids = serde_json::from_value(value);
                self.ids = Some(ids.map_err(|_| must_be(name, "a list of token ids"))?);
            }
            Input::Length => {
                let length = value.as_u64();
                self.length = Some(length.ok_or_else(|| must_be(name, "a number"))?);
            }
            Input::Stream => self.stream = Some(boolean(name, &value)?),
            Input::Exclude => self.exclude = Some(boolean(name, &value)?),
            Input::Sampling => {
                let text = text(name, value)?;
                if text.len() > LONGEST {
                    return Err(must_be(name, &format!("at most {LONGEST} bytes")));
                }
                if !text.is_empty() {
                    let object = serde_json::from_str(&text);
                    let object = object.map_err(|_| must_be(name, "a JSON object"))?;
                    self.sample(object)?;
                }
            }
            Input::ReturnOutput(output) => {
                if boolean(name, &value)? {
                    self.add_output(output);
                }
            }
            Input::OnlyFalse => {
                if boolean(name, &value)? {
                    return Err(ApiError::unsupported(name, "false"));
                }
            }
            Input::Parameter(parameter) => {
                if parameter == "max_tokens" {
                    self.bound = Some(name);
                }
                self.sampling.insert(parameter.to_owned(), value);
            }
            Input::Seed => {
                let seed = value.as_i64().or(value.as_u64().map(u64::cast_signed));
                let seed = seed.ok_or_else(|| must_be(name, "a number"))?;
                self.sampling.insert("seed".into(), seed.into());
            }
        }
        Ok(())
    }

    /// Sets a request's parameters: sampling parameters and Triton's own.
    pub(super) fn parameters(&mut self, parameters: Map<String, Value>) -> Result<(), ApiError> {
        let mut sampling = Map::new();
        for (name, value) in parameters {
            match name.as_str() {
                "stream" => self.stream = Some(boolean("stream", &value)?),
                "exclude_input_in_output" => {
                    self.exclude = Some(boolean("exclude_input_in_output", &value)?);
                }
                "timeout" => self.set_timeout(&value)?,
                // Triton's options about the transfer, not the output.
                "binary_data_output" | "triton_enable_empty_final_response" => {}
                _ => drop(sampling.insert(name, value)),
            }
        }
        self.sample(sampling)
    }

    /// Sets Triton's timeout, in microseconds; 0 = none.
    fn set_timeout(&mut self, value: &Value) -> Result<(), ApiError> {
        let micros = value.as_u64();
        let micros = micros.ok_or_else(|| must_be("timeout", "a number of microseconds"))?;
        if micros > 0 {
            let seconds = Duration::from_micros(micros).as_secs_f64();
            self.sampling.insert("timeout".to_owned(), seconds.into());
        }
        Ok(())
    }

    /// Adds an output that the client requests.
    pub(super) fn add_requested_output(&mut self, name: &str) -> Result<(), ApiError> {
        let output = Output::parse(name).ok_or_else(|| {
            let known = Output::ALL.map(Output::name).join("`, `");
            let name = Excerpt::new(name);
            let message = format!("`outputs`: unknown output `{name}`, expected one of `{known}`");
            ApiError::validation("outputs", message)
        })?;
        self.add_output(output);
        Ok(())
    }

    /// Returns the delivery, for interfaces that support both.
    pub(super) fn delivery(&self) -> Delivery {
        match self.stream {
            Some(true) => Delivery::Stream,
            _ => Delivery::Whole,
        }
    }

    /// Fails if the request needs the other delivery; `instead` names its route.
    pub(super) fn check_stream(&self, here: Delivery, instead: &str) -> Result<(), ApiError> {
        let streams = here == Delivery::Stream;
        match self.stream {
            Some(requested) if requested != streams => {
                let rule = format!("`stream` must be {streams} here; use {instead}");
                Err(ApiError::validation("stream", rule))
            }
            _ => Ok(()),
        }
    }

    /// Starts the generation.
    pub(super) async fn begin(
        self,
        app: &App,
        delivery: Delivery,
        charge: Charge,
    ) -> Result<RunningGeneration, ApiError> {
        let prefix = self.prefix(delivery)?;
        let (outputs, bound) = (self.outputs(), self.bound);
        let held = (!prefix.is_empty()).then(|| charge.clone());
        let mut body: CompletionRequest = json::parse(&self.completion()?)?;
        body.check()?;
        let Common { parameters, .. } =
            body.common(body.max_tokens, &app.generator.model_text().defaults)?;
        let special = body.special_tokens();
        let (prompt, name) = match body.prompt.pop() {
            Some(WirePrompt::Text(text)) => (Prompt::Text(text, special), "text_input"),
            Some(WirePrompt::Ids(ids)) => (Prompt::Ids(ids), "input_ids"),
            None => (Prompt::Ids(Vec::new()), "input_ids"),
        };
        let input = GenerateInput {
            prompt,
            parameters,
            names: FieldNames {
                prompt: name,
                dialect: Dialect::Native,
                ..FieldNames::COMPLETIONS.with_bound(bound)
            },
            charge,
        };
        let generation = app.generator.generate(input).await?;
        Ok(RunningGeneration {
            generation,
            _charge: held,
            prefix,
            outputs,
        })
    }

    /// Returns the prefix of the text. As in vLLM's Triton backend, it is the prompt unless the
    /// response is streamed.
    fn prefix(&self, delivery: Delivery) -> Result<String, ApiError> {
        match (self.exclude, delivery) {
            (Some(false), Delivery::Stream) => {
                let rule = "`exclude_input_in_output` must be true when `stream` is";
                Err(ApiError::validation("exclude_input_in_output", rule))
            }
            (Some(true), _) | (None, Delivery::Stream) => Ok(String::new()),
            _ => Ok(self.text.clone().unwrap_or_default()),
        }
    }

    fn outputs(&self) -> Vec<Output> {
        let mut outputs = self.outputs.clone();
        if self.ids.is_some() && outputs.is_empty() {
            outputs.extend([Output::Ids, Output::SequenceLength]);
        }
        let first = [Output::Ids, Output::Text];
        if !outputs.iter().any(|output| first.contains(output)) {
            outputs.insert(0, Output::Text);
        }
        outputs
    }

    /// Returns the body of an equivalent completion, so that its rules and errors apply.
    fn completion(self) -> Result<Vec<u8>, ApiError> {
        let prompt = match (self.text, self.ids) {
            (Some(_), Some(_)) => {
                let rule = "`text_input` and `input_ids` cannot both be given";
                return Err(ApiError::validation("input_ids", rule));
            }
            (Some(text), None) => Value::from(text),
            (None, Some(ids)) => {
                let given = ids.len() as u64;
                if self.length.is_some_and(|length| length != given) {
                    let rule = format!("`input_lengths` must be {given}, as `input_ids` has it");
                    return Err(ApiError::validation("input_lengths", rule));
                }
                Value::from(ids)
            }
            (None, None) => {
                let rule = "`text_input` is missing: it or `input_ids` must be among the inputs";
                return Err(ApiError::validation("text_input", rule));
            }
        };
        let mut body = self.sampling;
        for name in ["n", "best_of", "beam_width"] {
            if let Some(count) = body.get(name).filter(|count| **count != json!(1)) {
                let count = count.to_string();
                let given = Excerpt::new(&count);
                let rule = format!("`{name}` must be 1: a response has one output. Given: {given}");
                return Err(ApiError::validation(name, rule));
            }
        }
        // The value is 1 here, which is the default; but a completion without beam search refuses
        // the field.
        body.remove("beam_width");
        body.entry("max_tokens").or_insert(MAX_TOKENS.into());
        body.insert("prompt".into(), prompt);
        serde_json::to_vec(&body).map_err(|_| ApiError::validation("text_input", "unreadable"))
    }

    fn sample(&mut self, parameters: Map<String, Value>) -> Result<(), ApiError> {
        // Null means the default.
        for (name, value) in parameters.into_iter().filter(|(_, value)| !value.is_null()) {
            if let Some(name) = NOT_SAMPLING.iter().find(|other| **other == name) {
                let rule = format!("`{name}` is not a sampling parameter");
                return Err(ApiError::validation(name, rule));
            }
            let value = match &value {
                Value::String(text) if may_be_string(&name) => {
                    serde_json::from_str(text).unwrap_or(value)
                }
                _ => value,
            };
            if name == "stream" {
                self.stream = Some(boolean("stream", &value)?);
            } else {
                self.sampling.insert(name, value);
            }
        }
        Ok(())
    }

    fn add_output(&mut self, output: Output) {
        if !self.outputs.contains(&output) {
            self.outputs.push(output);
        }
    }
}

fn must_be(name: &'static str, what: &str) -> ApiError {
    ApiError::validation(name, format!("`{name}` must be {what}"))
}

fn text(name: &'static str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(must_be(name, "a string")),
    }
}

fn boolean(name: &'static str, value: &Value) -> Result<bool, ApiError> {
    value.as_bool().ok_or_else(|| must_be(name, "a boolean"))
}
