//! Rules of beam search.

use super::{FieldNames, Parameters};
use crate::error::ApiError;
use crate::range::Range;
use crate::sampling_params::{FLOATS, INTEGERS};
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
    let params = &parameters.sampling;
    let floats = FLOATS.iter().map(|row| (row.name, row.is_set(params)));
    let integers = INTEGERS.iter().map(|row| (row.name, row.is_set(params)));
    let words = params.banned_token_ids.is_empty() && params.bad_words.is_empty();
    let lists = [
        ("logit_bias", !params.logit_bias.is_empty()),
        ("allowed_token_ids", params.allowed_token_ids.is_some()),
        ("bad_words_ids", !words),
        ("bad_words", !parameters.bad_words.is_empty()),
        ("watermark", parameters.watermark),
        ("logprob_token_ids", !params.logprob_token_ids.is_empty()),
    ];
    floats.chain(integers).chain(lists)
}

/// Yields the other fields that beam search does not support.
fn rest(parameters: &Parameters, names: FieldNames) -> impl Iterator<Item = (&'static str, bool)> {
    let constraint = parameters.constraint.as_ref();
    [
        ("stop", !parameters.stop.is_empty()),
        (names.min_new_tokens, parameters.min_new_tokens != 0),
        (
            constraint.map_or("grammar", |constraint| constraint.field),
            constraint.is_some(),
        ),
    ]
    .into_iter()
}

/// Checks the width against the model's end tokens and its vocabulary.
pub(super) fn check_width(
    beam: &BeamParameters,
    end_tokens: usize,
    vocabulary: usize,
) -> Result<(), ApiError> {
    let most = MAX_BEAM_CANDIDATES
        .min(vocabulary)
        .saturating_sub(end_tokens);
    let width = beam.width;
    if (1..=most).contains(&(width as usize)) {
        return Ok(());
    }
    let rule = format!("`beam_width` must be > 0 and <= {most} for this model. Given: {width}");
    Err(ApiError::validation("beam_width", rule))
}
