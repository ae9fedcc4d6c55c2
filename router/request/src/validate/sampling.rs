//! Rules of sampling parameters that are lists of tokens or texts, and of beam search, which takes
//! the place of sampling.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::error::ApiError;
use crate::logprobs::{self, LogprobRequest, MAX_LOGPROB_TOKEN_IDS};
use crate::range::Range;
use crate::sampling_params::{FLOATS, INTEGERS, SamplingParams, WHOLE_VOCABULARY};
use crate::types::BeamParameters;

use super::{FieldNames, Parameters};

/// Maximum logprobs of one prompt, including top logprobs: bounds the memory and the length of a
/// response.
const MAX_PROMPT_LOGPROBS: u64 = 1 << 20;
/// Maximum entries of `logit_bias`: a worker's slot has room for this many.
pub const MAX_LOGIT_BIASES: usize = 1024;
/// Maximum entries of each list of token ids in a request.
pub const MAX_TOKEN_IDS: usize = 8192;
/// Maximum stop token ids of a request, in addition to the model's own: a worker's slot has room
/// for this many.
pub const MAX_STOP_TOKEN_IDS: usize = 128;
/// Maximum bad words of several tokens, and tokens of each: a worker's slot has room for this many.
pub const MAX_BAD_WORDS: usize = 256;
/// Maximum tokens of a bad word.
pub const MAX_WORD_TOKENS: usize = 16;
/// Maximum texts in `bad_words`: each may become two words, with and without a leading space.
pub const MAX_BAD_TEXTS: usize = MAX_BAD_WORDS / 2;
/// Maximum bytes of each text.
pub const MAX_TEXT_BYTES: usize = 256;
/// Range of the values of `logit_bias`.
pub const BIASES: Range<f32> = Range::new(-100.0, 100.0);
/// Maximum candidates per sequence that the workers return.
pub const MAX_BEAM_CANDIDATES: usize = 20;
/// Allowed length penalties.
pub const LENGTH_PENALTY: Range<f32> = Range::new(-100.0, 100.0);

impl SamplingParams {
    /// Checks the lists; `vocabulary` is the exclusive bound of token ids. Numeric parameters are
    /// checked where they are set.
    pub(super) fn check(&self, vocabulary: usize) -> Result<(), ApiError> {
        self.check_bias(vocabulary)?;
        if let Some(allowed) = &self.allowed_token_ids {
            check_ids("allowed_token_ids", allowed, MAX_TOKEN_IDS, vocabulary)?;
        }
        check_ids(
            "bad_words_ids",
            &self.banned_token_ids,
            MAX_TOKEN_IDS,
            vocabulary,
        )?;
        check_ids(
            "logprob_token_ids",
            &self.logprob_token_ids,
            MAX_LOGPROB_TOKEN_IDS,
            vocabulary,
        )?;
        for word in &self.bad_words {
            check_ids("bad_words_ids", word, MAX_WORD_TOKENS, vocabulary)?;
        }
        self.check_words("bad_words_ids")
    }

    /// Fails if there are too many words, or one is too long.
    fn check_words(&self, name: &'static str) -> Result<(), ApiError> {
        let given = self.bad_words.len();
        if given > MAX_BAD_WORDS {
            let rule = format!(
                "`{name}` must have at most {MAX_BAD_WORDS} words of several tokens. Given: {given}"
            );
            return Err(ApiError::validation(name, rule));
        }
        let longest = self.bad_words.iter().map(Vec::len).max().unwrap_or(0);
        if longest > MAX_WORD_TOKENS {
            let rule = format!(
                "`{name}` must have words of at most {MAX_WORD_TOKENS} tokens. Given: {longest}"
            );
            return Err(ApiError::validation(name, rule));
        }
        Ok(())
    }

    /// Forbids a text of `bad_words`, both at the start of a line and after a space.
    pub(crate) fn forbid_text(
        &mut self,
        text: &str,
        tokens: impl Fn(&str) -> Result<Vec<u32>, ApiError>,
    ) -> Result<(), ApiError> {
        let text = text.trim_start();
        let mut words = vec![tokens(text)?, tokens(&format!(" {text}"))?];
        words.dedup();
        for word in words.into_iter().filter(|word| !word.is_empty()) {
            self.forbid(word);
        }
        self.check_words("bad_words")
    }

    /// Fails if no token is possible while the tokens of `stops` are masked.
    pub(super) fn check_possible(&self, stops: &[u32]) -> Result<(), ApiError> {
        let Some(allowed) = &self.allowed_token_ids else {
            return Ok(());
        };
        // The last token of a bad word is masked only sometimes; it counts as if it always were.
        let last = self.bad_words.iter().filter_map(|word| word.last());
        let impossible = self.banned_token_ids.iter().chain(stops).chain(last);
        let impossible: HashSet<u32> = impossible.copied().collect();
        if allowed.iter().any(|id| !impossible.contains(id)) {
            return Ok(());
        }
        let rule = "`allowed_token_ids` must leave a token that is neither in `bad_words_ids` nor, \
                    below `min_tokens`, a stop token";
        Err(ApiError::validation("allowed_token_ids", rule))
    }

    fn check_bias(&self, vocabulary: usize) -> Result<(), ApiError> {
        let name = "logit_bias";
        let ids: Vec<u32> = self.logit_bias.iter().map(|&(id, _)| id).collect();
        check_ids(name, &ids, MAX_LOGIT_BIASES, vocabulary)?;
        let mut seen = HashSet::new();
        for &(id, bias) in &self.logit_bias {
            if !BIASES.has(bias) {
                let rule =
                    format!("`{name}` values must be {BIASES}. Given: {bias} for token {id}");
                return Err(ApiError::validation(name, rule));
            }
            if !seen.insert(id) {
                let rule = format!("`{name}` must name each token once. Given: {id} twice");
                return Err(ApiError::validation(name, rule));
            }
        }
        Ok(())
    }
}

/// Returns the client's seed, or a new one.
pub(super) fn seed(given: Option<u64>) -> u64 {
    // A fresh hasher has fresh random keys: good enough for a seed, which need not be secret.
    given.unwrap_or_else(|| RandomState::new().hash_one(0_u64))
}

/// Checks that no text of `bad_words` is empty or too long.
pub(super) fn check_texts(texts: &[String]) -> Result<(), ApiError> {
    let name = "bad_words";
    if texts.iter().any(|text| text.trim().is_empty()) {
        let rule = format!("`{name}` cannot be empty strings");
        return Err(ApiError::validation(name, rule));
    }
    let longest = texts.iter().map(String::len).max().unwrap_or(0);
    if longest > MAX_TEXT_BYTES {
        let rule =
            format!("`{name}` must have at most {MAX_TEXT_BYTES} bytes each. Given: {longest}");
        return Err(ApiError::validation(name, rule));
    }
    Ok(())
}

/// Checks that a list of token ids is short enough and that its ids exist.
pub(super) fn check_ids(
    name: &'static str,
    ids: &[u32],
    most: usize,
    vocabulary: usize,
) -> Result<(), ApiError> {
    if ids.len() > most {
        let given = ids.len();
        let rule = format!("`{name}` must have at most {most} entries. Given: {given}");
        return Err(ApiError::validation(name, rule));
    }
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => {
            let most = vocabulary.saturating_sub(1);
            let rule = format!("`{name}` token ids must be <= {most}. Given: {id}");
            Err(ApiError::validation(name, rule))
        }
    }
}

/// Checks the rules of beam search that need no token ids.
pub(super) fn check_beam(parameters: &Parameters, names: FieldNames) -> Result<(), ApiError> {
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
    let mut refused = sampling_fields(parameters).chain(other_fields(parameters, names));
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
fn sampling_fields(parameters: &Parameters) -> impl Iterator<Item = (&'static str, bool)> {
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
fn other_fields(
    parameters: &Parameters,
    names: FieldNames,
) -> impl Iterator<Item = (&'static str, bool)> {
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

/// Checks the width of a beam search against the model's end tokens and its vocabulary.
pub(super) fn check_beam_width(
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

/// Fails if more than `most` top logprobs are requested. `name` is the client's field for those of
/// generated tokens.
pub(super) fn check_logprobs(
    request: LogprobRequest,
    name: &'static str,
    most: u32,
) -> Result<(), ApiError> {
    let prompt = request.prompt.filter(|&count| count != WHOLE_VOCABULARY);
    for (name, count) in [(name, request.tokens), ("prompt_logprobs", prompt)] {
        logprobs::range(most).check(name, count.unwrap_or(0))?;
    }
    Ok(())
}

/// Fails if the prompt has too many logprobs: `tokens` positions, returned with each of `answers`
/// choices. `prompt` is the field's name, `vocabulary` the size of the vocabulary.
pub(super) fn check_prompt_logprobs(
    request: LogprobRequest,
    prompt: &'static str,
    (tokens, answers): (usize, u32),
    vocabulary: usize,
) -> Result<(), ApiError> {
    let Some(top) = request.prompt_logprobs() else {
        return Ok(());
    };
    let top = u64::from(top).min(vocabulary as u64);
    let each = (top + 1) * u64::from(answers.max(1));
    if tokens as u64 * each <= MAX_PROMPT_LOGPROBS {
        return Ok(());
    }
    let most = MAX_PROMPT_LOGPROBS / each;
    let rule = format!(
        "`{prompt}` must have at most {most} tokens if {each} logprobs are returned for each. \
         Given: {tokens}"
    );
    Err(ApiError::validation(prompt, rule))
}
