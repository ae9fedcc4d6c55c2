//! Converts native requests, with TGI's rules where they are stricter than Penstock's.

use penstock_request::error::ApiError;
use penstock_request::logprobs::LogprobRequest;
use penstock_request::sampling_params::{
    FREQUENCY_PENALTY, REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_K, TOP_P, TYPICAL_P,
};
use penstock_request::validate::{Choices, FieldNames, Parameters, Truncation};
use penstock_text::Charge;
use penstock_text::tokenize::SpecialTokens;
use penstock_text::{GenerateInput, Prompt};

use super::wire::{GenerateParameters, GenerateRequest};
use crate::beam::BeamFields;
use crate::neutral::{self, Neutral, Neutrals};
use crate::structured_output::Grammar;

/// Parameters that are not supported.
pub(crate) const NEUTRAL: Neutrals<1> = [("adapter_id", Neutral::Null)];

/// Options that affect only the format of the response.
#[derive(Clone, Debug)]
pub(super) struct ResponseOptions {
    /// Whether the response has details.
    pub(super) details: bool,
    /// Prefix of the generated text: the prompt, or empty.
    pub(super) prefix: String,
    /// Charge for the memory of the prefix.
    _charge: Option<Charge>,
}

/// Splits a body into the engine's input and the options of the response.
pub(super) fn parse_request(
    request: GenerateRequest,
    charge: Charge,
) -> Result<(GenerateInput, ResponseOptions), ApiError> {
    let GenerateRequest {
        inputs, parameters, ..
    } = request;
    // As in TGI: without any parameters, the output is sampled.
    let mut wire = parameters.unwrap_or_else(|| GenerateParameters {
        do_sample: Some(true),
        ..Default::default()
    });
    check_neutral(&wire)?;
    let prefix = if wire.return_full_text == Some(true) {
        inputs.clone()
    } else {
        String::new()
    };
    let constraint = wire.grammar.take().map(Grammar::into_grammar).transpose()?;
    let options = ResponseOptions {
        details: wire.details == Some(true) || wire.decoder_input_details == Some(true),
        _charge: (!prefix.is_empty()).then(|| charge.clone()),
        prefix,
    };
    let seeded = wire.seed.is_some();
    let beam = BeamFields {
        enabled: wire.use_beam_search,
        width: wire.beam_width,
        length_penalty: wire.length_penalty,
        early_stopping: wire.early_stopping,
    };
    let mut parameters = Parameters {
        constraint,
        ..to_parameters(wire)?
    };
    parameters.beam = beam.beam(parameters.choices.made())?;
    if parameters.beam.is_some() {
        parameters.choices.best_of = None;
    }
    check_best_of(&parameters, seeded)?;
    let input = GenerateInput {
        prompt: Prompt::Text(inputs, SpecialTokens::Add),
        parameters,
        names: FieldNames::NATIVE,
        charge,
    };
    Ok((input, options))
}

fn to_parameters(wire: GenerateParameters) -> Result<Parameters, ApiError> {
    Ok(Parameters {
        sampling: sampling(&wire)?,
        choices: Choices {
            n: 1,
            best_of: wire.best_of,
        },
        max_new_tokens: wire.max_new_tokens,
        seed: wire.seed,
        stop: wire.stop.unwrap_or_default(),
        truncate: wire.truncate.map(Truncation::to_last),
        watermark: wire.watermark.unwrap_or(false),
        timeout: wire.timeout,
        logprob_request: LogprobRequest {
            tokens: wire.top_n_tokens.filter(|&count| count > 0),
            echo: false,
            prompt: (wire.decoder_input_details == Some(true)).then_some(0),
            ids: false,
            ..LogprobRequest::default()
        },
        ..Parameters::default()
    })
}

/// Converts the sampling parameters, after TGI's rules: unless one asks for sampling, decoding is
/// greedy.
fn sampling(wire: &GenerateParameters) -> Result<SamplingParams, ApiError> {
    let warped = wire.temperature.is_some_and(|t| t != 1.0)
        || wire.top_k.is_some()
        || wire.top_p.is_some()
        || wire.typical_p.is_some();
    let sampled = wire.do_sample == Some(true) || warped;
    let mut params = SamplingParams {
        temperature: if sampled { 1.0 } else { 0.0 },
        ..SamplingParams::default()
    };
    if sampled {
        TEMPERATURE.assign_native(&mut params, wire.temperature)?;
    }
    TOP_K.assign_native(&mut params, wire.top_k.map(i64::from))?;
    TOP_P.assign_native(&mut params, wire.top_p)?;
    TYPICAL_P.assign_native(&mut params, wire.typical_p)?;
    REPETITION_PENALTY.assign_native(&mut params, wire.repetition_penalty)?;
    FREQUENCY_PENALTY.assign_native(&mut params, wire.frequency_penalty)?;
    Ok(params)
}

/// Checks TGI's rules for `best_of`.
fn check_best_of(parameters: &Parameters, seeded: bool) -> Result<(), ApiError> {
    if parameters.choices.rank() && parameters.sampling.temperature <= 0.0 {
        let rule = "you must use sampling when `best_of` is > 1: give `do_sample` or `temperature`";
        return Err(ApiError::validation("best_of", rule));
    }
    if parameters.choices.rank() && seeded {
        let rule = "`seed` must not be set when `best_of` > 1";
        return Err(ApiError::validation("seed", rule));
    }
    Ok(())
}

/// Fails if the request needs fields that TGI's streams do not have.
pub(super) fn check_streamable(input: &GenerateInput) -> Result<(), ApiError> {
    match input.parameters.logprob_request.prompt {
        None => Ok(()),
        Some(_) => {
            let rule = "`decoder_input_details` == true is not supported when streaming tokens";
            Err(ApiError::validation("decoder_input_details", rule))
        }
    }
}

fn check_neutral(wire: &GenerateParameters) -> Result<(), ApiError> {
    neutral::check(&NEUTRAL, [&wire.adapter_id])
}
