//! Rules of sampling parameters that are lists of tokens or texts.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::error::ApiError;
use crate::logprobs::MAX_LOGPROB_TOKEN_IDS;
use crate::range::Range;
use crate::sampling_params::SamplingParams;

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
