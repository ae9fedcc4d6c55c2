//! Rules of beam search.

use super::{FieldNames, Parameters};
use crate::error::ApiError;
use crate::logits_processors::Penalties;
use crate::range::Range;
use crate::types::BeamParameters;

/// Maximum candidates per sequence that the workers return.
pub const MAX_BEAM_CANDIDATES: usize = 20;

/// Allowed length penalties.
pub const LENGTH_PENALTY: Range<f32> = Range::new(-100.0, 100.0);

/// Checks the rules that need no token ids.
pub(super) fn check(parameters: &Parameters, names: FieldNames) -> Result<(), ApiError> {
    let Some(beam) = parameters.beam else {
        return Ok(());
    };
    let n = parameters.choices.n;
    if beam.width < n {
        let width = beam.width;
        let rule = format!(
            "`beam_width` (or `best_of` in its place) must be >= `n` ({n}). Given: {width}"
        );
        return Err(ApiError::validation("beam_width", rule));
    }
    LENGTH_PENALTY.check("length_penalty", beam.length_penalty)?;
    let mut refused = sampling(parameters).chain(rest(parameters, names));
    match refused.find(|(_, given)| *given) {
        Some((name, _)) => Err(unmixable(name)),
        None => Ok(()),
    }
}

/// Returns the error for a field that does not apply to beam search.
fn unmixable(name: &'static str) -> ApiError {
    let rule = format!(
        "`{name}` cannot be combined with `use_beam_search`: beam search takes the most \
         probable tokens and ends a sequence only at tokens of `stop_token_ids`"
    );
    ApiError::validation(name, rule)
}

/// Yields the fields that affect sampling, and whether each is set.
fn sampling(parameters: &Parameters) -> impl Iterator<Item = (&'static str, bool)> {
    let logits_processors = &parameters.logits_processors;
    let Penalties {
        repetition,
        frequency,
        presence,
    } = logits_processors.penalties;
    [
        ("temperature", parameters.temperature != 0.0),
        ("top_k", parameters.top_k != 0),
        ("top_p", parameters.top_p != 1.0),
        ("min_p", logits_processors.min_p != 0.0),
        ("typical_p", logits_processors.typical_p != 1.0),
        ("repetition_penalty", repetition != 1.0),
        ("frequency_penalty", frequency != 0.0),
        ("presence_penalty", presence != 0.0),
        ("logit_bias", !logits_processors.logit_bias.is_empty()),
        ("allowed_token_ids", logits_processors.allowed.is_some()),
        (
            "bad_words_ids",
            !(logits_processors.banned.is_empty() && logits_processors.bad_words.is_empty()),
        ),
        ("bad_words", !parameters.bad_words.is_empty()),
        ("watermark", logits_processors.watermark.is_some()),
    ]
    .into_iter()
}

/// Yields the other fields that beam search does not support.
fn rest(parameters: &Parameters, names: FieldNames) -> impl Iterator<Item = (&'static str, bool)> {
    let grammar = parameters.grammar.as_ref();
    [
        ("stop", !parameters.stop.is_empty()),
        (names.min_new_tokens, parameters.min_new_tokens != 0),
        (
            "logprob_token_ids",
            !parameters.logprob_token_ids.is_empty(),
        ),
        (
            grammar.map_or("grammar", |grammar| grammar.field),
            grammar.is_some(),
        ),
    ]
    .into_iter()
}

/// Returns how many candidates per sequence the workers return, after checking the width against
/// the model's end tokens and its vocabulary.
pub(super) fn candidate_count(
    beam: &BeamParameters,
    end_tokens: usize,
    vocabulary: usize,
) -> Result<u32, ApiError> {
    let most = MAX_BEAM_CANDIDATES
        .min(vocabulary)
        .saturating_sub(end_tokens);
    let width = beam.width;
    if (1..=most).contains(&(width as usize)) {
        return Ok(beam.candidate_count(end_tokens) as u32);
    }
    let rule = format!("`beam_width` must be > 0 and <= {most} for this model. Given: {width}");
    Err(ApiError::validation("beam_width", rule))
}
