//! Converts requests of the Python API to requests of the router.

use std::collections::BTreeMap;

use penstock_http::{parse_chat_request, parse_structured_outputs};
use penstock_request::ApiError;
use penstock_request::grammar_spec::OutputConstraint;
use penstock_request::logprobs::LogprobRequest;
use penstock_request::sampling_params::{FLOATS, INTEGERS, SamplingParams as RouterParams};
use penstock_request::types::{BeamParameters, EarlyStopping};
use penstock_request::validate::{AtEos, Choices, FieldNames, OutputTextOptions, Parameters};
use penstock_text::tokenize::SpecialTokens;
use penstock_text::{Charge, GenerateInput, Generator, Prompt};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// `penstock.SamplingParams`.
pub(crate) struct SamplingParams {
    /// The numeric parameters of the router's table.
    numbers: RouterParams,
    fields: SamplingFields,
}

/// The other attributes of `penstock.SamplingParams`.
#[derive(FromPyObject)]
struct SamplingFields {
    max_tokens: Option<u32>,
    min_tokens: u32,
    seed: Option<u64>,
    stop: Vec<String>,
    ignore_eos: bool,
    n: u32,
    best_of: Option<u32>,
    stop_token_ids: Vec<u32>,
    logit_bias: BTreeMap<u32, f32>,
    allowed_token_ids: Option<Vec<u32>>,
    bad_words_ids: Vec<Vec<u32>>,
    bad_words: Vec<String>,
    watermark: bool,
    include_stop_str_in_output: bool,
    skip_special_tokens: bool,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    structured_outputs: Option<StructuredOutputs>,
    use_beam_search: bool,
    beam_width: Option<u32>,
    length_penalty: f32,
    early_stopping: EarlyStoppingArgument,
}

impl<'py> FromPyObject<'_, 'py> for SamplingParams {
    type Error = PyErr;

    fn extract(params: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            numbers: numbers(&params)?,
            fields: params.extract()?,
        })
    }
}

/// Checks a `penstock.SamplingParams` by the router's rules that need no model. Structured outputs
/// are checked when they are used.
#[pyfunction]
pub(crate) fn check_params(params: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut params: SamplingParams = params.extract()?;
    params.fields.structured_outputs = None;
    let parameters = params.parameters()?;
    parameters
        .check_alone(FieldNames::COMPLETIONS)
        .map_err(|error| to_py_error(&error))
}

/// Reads the numeric parameters.
fn numbers(params: &Bound<'_, PyAny>) -> PyResult<RouterParams> {
    let mut numbers = RouterParams::default();
    for param in FLOATS {
        let given = params.getattr(param.name)?;
        let given = given
            .extract()
            .map_err(|_| not_a_number(param.name, "a number", &given))?;
        let assigned = param.assign(&mut numbers, Some(given));
        assigned.map_err(|error| to_py_error(&error))?;
    }
    for param in INTEGERS {
        let given = params.getattr(param.name)?;
        if given.is_instance_of::<PyBool>() {
            return Err(not_a_number(param.name, "an int", &given));
        }
        let given = given
            .extract()
            .map_err(|_| not_a_number(param.name, "an int", &given))?;
        let assigned = param.assign(&mut numbers, given);
        assigned.map_err(|error| to_py_error(&error))?;
    }
    Ok(numbers)
}

fn not_a_number(name: &str, what: &str, given: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("{name} must be {what}, not {given:?}"))
}

/// When a beam search ends, as in transformers.
#[derive(FromPyObject)]
enum EarlyStoppingArgument {
    /// True: as soon as there are enough finished beams. False: when no better one is likely.
    Full(bool),
    /// "never": when no better beam is possible.
    Named(String),
}

/// `penstock.StructuredOutputsParams`.
#[derive(FromPyObject)]
struct StructuredOutputs {
    /// JSON for the router's parser.
    wire: String,
}

/// A prompt.
#[derive(FromPyObject)]
pub(crate) enum PromptArgument {
    /// Text to tokenize.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl SamplingFields {
    /// Returns the parameters of the requested beam search, if any.
    fn beam(&self) -> Option<BeamParameters> {
        self.use_beam_search.then(|| BeamParameters {
            width: self.beam_width.or(self.best_of).unwrap_or(self.n),
            length_penalty: self.length_penalty,
            early_stopping: match &self.early_stopping {
                EarlyStoppingArgument::Full(true) => EarlyStopping::WhenFull,
                EarlyStoppingArgument::Named(name) if name == "never" => EarlyStopping::Never,
                EarlyStoppingArgument::Full(false) | EarlyStoppingArgument::Named(_) => {
                    EarlyStopping::Heuristic
                }
            },
        })
    }

    fn constraint(&self) -> PyResult<Option<OutputConstraint>> {
        let Some(outputs) = &self.structured_outputs else {
            return Ok(None);
        };
        parse_structured_outputs(&outputs.wire).map_err(|error| to_py_error(&error))
    }
}

impl SamplingParams {
    fn parameters(self) -> PyResult<Parameters> {
        let Self { numbers, fields } = self;
        let beam = fields.beam();
        let mut sampling = RouterParams {
            // Beam search ranks at temperature 1 and does not sample.
            temperature: if beam.is_some() && numbers.temperature == 1.0 {
                0.0
            } else {
                numbers.temperature
            },
            ..numbers
        };
        let constraint = fields.constraint()?;
        sampling.logit_bias = fields.logit_bias.into_iter().collect();
        sampling.allowed_token_ids = fields.allowed_token_ids;
        for word in fields.bad_words_ids {
            sampling.forbid(word);
        }
        Ok(Parameters {
            sampling,
            constraint,
            max_new_tokens: fields.max_tokens,
            min_new_tokens: fields.min_tokens,
            seed: fields.seed,
            stop: fields.stop,
            at_eos: if fields.ignore_eos {
                AtEos::Continue
            } else {
                AtEos::Stop
            },
            choices: Choices {
                n: fields.n,
                best_of: fields.best_of.filter(|_| beam.is_none()),
            },
            beam,
            stop_token_ids: fields.stop_token_ids,
            watermark: fields.watermark,
            logprob_request: LogprobRequest {
                tokens: fields.logprobs,
                prompt: fields.prompt_logprobs,
                ..LogprobRequest::default()
            },
            bad_words: fields.bad_words,
            output_text: OutputTextOptions {
                stop_string: fields.include_stop_str_in_output,
                special_tokens: !fields.skip_special_tokens,
            },
            ..Parameters::default()
        })
    }
}

/// Builds a completion request.
pub(crate) fn completion(
    prompt: PromptArgument,
    params: SamplingParams,
) -> PyResult<GenerateInput> {
    let prompt = match prompt {
        PromptArgument::Text(text) => Prompt::Text(text, SpecialTokens::Add),
        PromptArgument::Ids(ids) => Prompt::Ids(ids),
    };
    Ok(GenerateInput {
        prompt,
        parameters: params.parameters()?,
        names: FieldNames::COMPLETIONS,
        charge: Charge::default(),
    })
}

/// Builds a chat request. `body` is a body of `/v1/chat/completions` with only the fields of the
/// conversation and of tools.
pub(crate) fn conversation(
    body: &str,
    params: SamplingParams,
    generator: &Generator,
) -> PyResult<GenerateInput> {
    let parameters = params.parameters()?;
    let read = parse_chat_request(body, parameters, generator);
    let (chat, parameters) = read.map_err(|error| to_py_error(&error))?;
    Ok(GenerateInput {
        prompt: Prompt::Chat(Box::new(chat)),
        parameters,
        names: FieldNames {
            top_logprobs: FieldNames::COMPLETIONS.top_logprobs,
            ..FieldNames::CHAT
        },
        charge: Charge::default(),
    })
}

fn to_py_error(error: &ApiError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
