//! Rules of how many tokens a prompt and its answer may have.

use std::fmt;

use crate::config::RouterConfig;
use crate::error::ApiError;

use super::{FieldNames, Keep, Parameters, Truncation};

/// Tokens that a request may have, as configuration and engine allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Prompt tokens.
    pub max_input: usize,
    /// Prompt and answer together.
    pub max_total: usize,
    /// Ids at or above it do not exist.
    pub vocabulary: usize,
}

impl TokenLimits {
    /// The smaller of what is configured and what the engine can hold.
    pub fn new(config: &RouterConfig, max_sequence_tokens: usize, vocabulary: usize) -> Self {
        let max_total = config
            .max_total_tokens
            .unwrap_or(usize::MAX)
            .min(max_sequence_tokens);
        let room = max_total.saturating_sub(1);
        let max_input = config.max_input_tokens.unwrap_or(usize::MAX).min(room);
        Self {
            max_input,
            max_total,
            vocabulary,
        }
    }
}

pub(super) fn check_truncate(
    truncate: Option<Truncation>,
    names: FieldNames,
    limits: TokenLimits,
) -> Result<(), ApiError> {
    match truncate.map(|truncation| truncation.keep) {
        Some(Keep::Tokens(n)) if n == 0 || n > limits.max_input => {
            let (name, max) = (names.truncate, limits.max_input);
            let rule =
                format!("`{name}` must be strictly positive and less than {max}. Given: {n}");
            Err(ApiError::validation(name, rule))
        }
        _ => Ok(()),
    }
}

/// A prompt, or another text called `name`, that has too many tokens.
pub(crate) fn too_long(name: &'static str, max: usize, given: impl fmt::Display) -> ApiError {
    let rule = format!("`{name}` must have less than {max} tokens. Given: {given}");
    ApiError::validation(name, rule)
}

/// How many tokens a prompt may have so that all that is asked for has room after it; at least 1.
pub(super) fn room_for_prompt(parameters: &Parameters, limits: TokenLimits) -> usize {
    let wanted = parameters.max_new_tokens.unwrap_or(1);
    let wanted = wanted.max(parameters.min_new_tokens) as usize;
    let room = limits.max_total.saturating_sub(wanted);
    room.min(limits.max_input).max(1)
}

/// How many tokens the answer may have.
pub(super) fn new_tokens(
    parameters: &Parameters,
    names: FieldNames,
    limits: TokenLimits,
    input: usize,
) -> Result<u32, ApiError> {
    let FieldNames {
        prompt,
        max_new_tokens,
        min_new_tokens,
        ..
    } = names;
    if input == 0 {
        let rule = format!("`{prompt}` cannot be empty: the tokenizer makes no token of it");
        return Err(ApiError::validation(prompt, rule));
    }
    if input > limits.max_input {
        return Err(too_long(prompt, limits.max_input, input));
    }
    let room = u32::try_from(limits.max_total - input).unwrap_or(u32::MAX);
    let wanted = parameters.max_new_tokens.unwrap_or(room);
    if wanted > room {
        let max = limits.max_total;
        let rule = format!(
            "`{prompt}` tokens + `{max_new_tokens}` must be <= {max}. \
             Given: {input} `{prompt}` tokens and {wanted} `{max_new_tokens}`"
        );
        return Err(ApiError::validation(max_new_tokens, rule));
    }
    let least = parameters.min_new_tokens;
    if least > wanted {
        let rule =
            format!("`{min_new_tokens}` must be <= `{max_new_tokens}` ({wanted}). Given: {least}");
        return Err(ApiError::validation(min_new_tokens, rule));
    }
    Ok(wanted)
}
