//! Rules of beam search.

use super::range::Range;
use super::{FieldNames, Parameters};
use crate::adjustment::Penalties;
use crate::engine::types::Beam;
use crate::error::ApiError;

/// Log-probabilities of so many continuations come from the workers at most.
pub(crate) const LOOKED_AT: usize = 20;

pub(crate) const LENGTH_PENALTY: Range<f32> = Range::new(-100.0, 100.0);

/// Checks what can be said without token ids.
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

/// The error of a field that has no place in a search.
fn unmixable(name: &'static str) -> ApiError {
    let rule = format!(
        "`{name}` cannot be combined with `use_beam_search`: a search looks for the likeliest tokens, and \
         ends a sequence at its tokens alone (`stop_token_ids`)"
    );
    ApiError::validation(name, rule)
}

/// What changes the choice of tokens, with the field that says so.
fn sampling(parameters: &Parameters) -> impl Iterator<Item = (&'static str, bool)> {
    let adjustment = &parameters.adjustment;
    let Penalties {
        repetition,
        frequency,
        presence,
    } = adjustment.penalties;
    [
        ("temperature", parameters.temperature != 0.0),
        ("top_k", parameters.top_k != 0),
        ("top_p", parameters.top_p != 1.0),
        ("min_p", adjustment.min_p != 0.0),
        ("typical_p", adjustment.typical_p != 1.0),
        ("repetition_penalty", repetition != 1.0),
        ("frequency_penalty", frequency != 0.0),
        ("presence_penalty", presence != 0.0),
        ("logit_bias", !adjustment.logit_bias.is_empty()),
        ("allowed_token_ids", adjustment.allowed.is_some()),
        (
            "bad_words_ids",
            !(adjustment.banned.is_empty() && adjustment.bad_words.is_empty()),
        ),
        ("bad_words", !parameters.bad_words.is_empty()),
        ("watermark", adjustment.watermark.is_some()),
    ]
    .into_iter()
}

/// What else a search cannot do.
fn rest(parameters: &Parameters, names: FieldNames) -> impl Iterator<Item = (&'static str, bool)> {
    let guide = parameters.guide.as_ref();
    [
        ("stop", !parameters.stop.is_empty()),
        (names.min_new_tokens, parameters.min_new_tokens != 0),
        (
            "logprob_token_ids",
            !parameters.logprob_token_ids.is_empty(),
        ),
        (
            guide.map_or("grammar", |guide| guide.field),
            guide.is_some(),
        ),
    ]
    .into_iter()
}

/// How many continuations of a sequence the workers tell, after checking the width against the model's
/// end tokens and its vocabulary.
pub(super) fn looked_at(
    beam: &Beam,
    end_tokens: usize,
    vocabulary: usize,
) -> Result<u32, ApiError> {
    let most = LOOKED_AT.min(vocabulary).saturating_sub(end_tokens);
    let width = beam.width;
    if (1..=most).contains(&(width as usize)) {
        return Ok(beam.looked_at(end_tokens) as u32);
    }
    let rule = format!("`beam_width` must be > 0 and <= {most} for this model. Given: {width}");
    Err(ApiError::validation("beam_width", rule))
}
