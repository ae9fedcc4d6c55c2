//! Converts requests of the Python API to requests of the router.

use std::collections::BTreeMap;

use penstock_http::{parse_chat_request, parse_structured_outputs};
use penstock_request::ApiError;
use penstock_request::logits_processors::{LogitsProcessors, Penalties};
use penstock_request::logprobs::LogprobRequest;
use penstock_request::types::{BeamParameters, EarlyStopping};
use penstock_request::validate::{AtEos, Choices, FieldNames, OutputTextOptions, Parameters};
use penstock_text::tokenize::SpecialTokens;
use penstock_text::{Charge, GenerateInput, Generator, Prompt};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// `penstock.SamplingParams`, extracted attribute by attribute.
#[derive(FromPyObject)]
pub(crate) struct SamplingParams {
    max_tokens: Option<u32>,
    min_tokens: u32,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    seed: Option<u64>,
    stop: Vec<String>,
    ignore_eos: bool,
    n: u32,
    best_of: Option<u32>,
    stop_token_ids: Vec<u32>,
    min_p: f32,
    typical_p: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
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

impl SamplingParams {
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
            top_logprobs: 0,
        })
    }

    fn parameters(self) -> PyResult<Parameters> {
        let beam = self.beam();
        let grammar = match &self.structured_outputs {
            Some(outputs) => {
                parse_structured_outputs(&outputs.wire).map_err(|error| to_py_error(&error))?
            }
            None => None,
        };
        let mut parameters = Parameters {
            max_new_tokens: self.max_tokens,
            min_new_tokens: self.min_tokens,
            // Beam search ranks at temperature 1 and does not sample.
            temperature: if beam.is_some() && self.temperature == 1.0 {
                0.0
            } else {
                self.temperature
            },
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
            stop: self.stop,
            at_eos: if self.ignore_eos {
                AtEos::Continue
            } else {
                AtEos::Stop
            },
            choices: Choices {
                n: self.n,
                best_of: self.best_of.filter(|_| beam.is_none()),
            },
            beam,
            stop_token_ids: self.stop_token_ids,
            watermark: self.watermark,
            logits_processors: LogitsProcessors {
                min_p: self.min_p,
                typical_p: self.typical_p,
                penalties: Penalties {
                    repetition: self.repetition_penalty,
                    frequency: self.frequency_penalty,
                    presence: self.presence_penalty,
                },
                logit_bias: self.logit_bias.into_iter().collect(),
                allowed: self.allowed_token_ids,
                ..LogitsProcessors::default()
            },
            logprob_request: LogprobRequest {
                tokens: self.logprobs,
                prompt: self.prompt_logprobs,
                ..LogprobRequest::default()
            },
            grammar,
            bad_words: self.bad_words,
            output_text: OutputTextOptions {
                stop_string: self.include_stop_str_in_output,
                special_tokens: !self.skip_special_tokens,
            },
            ..Parameters::default()
        };
        for word in self.bad_words_ids {
            parameters.logits_processors.forbid(word);
        }
        Ok(parameters)
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
        prompt: Prompt::Chat(chat),
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
