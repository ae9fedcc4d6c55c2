//! The configured limits of requests, and the rules of how many tokens a prompt and its output may
//! have.

use std::fmt;

use crate::error::ApiError;
use crate::logprobs::MAX_TOP_LOGPROBS;
use crate::sampling_params::Watermark;

use super::{Dialect, FieldNames, Keep, Parameters, Truncation, TruncationSide};

/// Limits of requests and what they may use. The launcher sets every field.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLimits {
    /// Maximum stop strings per request.
    pub max_stop_sequences: usize,
    /// Maximum choices per prompt: the largest `n` and `best_of`.
    pub max_best_of: u32,
    /// Maximum top logprobs per token: at most `logprobs::MAX_TOP_LOGPROBS`.
    pub max_top_tokens: u32,
    /// Whether requests may use structured output.
    pub structured_output: bool,
    /// Maximum prompt tokens; `None` = limited by the context only.
    pub max_input_tokens: Option<usize>,
    /// Maximum tokens of prompt plus output; `None` = the limit of the model and the KV pool.
    pub max_total_tokens: Option<usize>,
    /// Watermark for requests that ask for one.
    pub watermark: Watermark,
}

/// Token limits of a request, from the configuration and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Maximum prompt tokens.
    pub max_input: usize,
    /// Maximum tokens of prompt plus output.
    pub max_total: usize,
    /// Size of the vocabulary; token ids are below it.
    pub vocabulary: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            max_stop_sequences: 16,
            max_best_of: 32,
            max_top_tokens: MAX_TOP_LOGPROBS,
            structured_output: true,
            max_input_tokens: None,
            max_total_tokens: None,
            watermark: Watermark::default(),
        }
    }
}

impl TokenLimits {
    /// Returns the smaller of the configured limits and the engine's.
    pub fn new(config: &RequestLimits, max_sequence_tokens: usize, vocabulary: usize) -> Self {
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
            // TGI's message; the bound that it names is exclusive.
            let (name, max) = (names.truncate, limits.max_input.saturating_add(1));
            let rule =
                format!("`{name}` must be strictly positive and less than {max}. Given: {n}");
            Err(ApiError::validation(name, rule))
        }
        _ => Ok(()),
    }
}

/// Returns the error for a prompt with too many tokens.
pub fn too_long(names: FieldNames, limits: TokenLimits, given: impl fmt::Display) -> ApiError {
    let name = names.prompt;
    let TokenLimits {
        max_input,
        max_total,
        ..
    } = limits;
    let rule = match names.dialect {
        Dialect::Native => {
            let beyond = max_input.saturating_add(1);
            format!("`{name}` must have less than {beyond} tokens. Given: {given}")
        }
        Dialect::OpenAi => format!(
            "This model's maximum context length is {max_total} tokens, and the prompt is too long: \
             `{name}` may have at most {max_input}. Given: {given}. Shorten `{name}`"
        ),
        Dialect::Anthropic => {
            format!("prompt is too long: {given} tokens > {max_input} maximum. Shorten `{name}`")
        }
    };
    ApiError::too_many_tokens(name, rule)
}

/// Returns the error for a prompt of `input` tokens that leaves no room for `wanted` new tokens.
fn no_room(names: FieldNames, limits: TokenLimits, input: usize, wanted: u32) -> ApiError {
    let FieldNames {
        prompt,
        max_new_tokens,
        ..
    } = names;
    let max = limits.max_total;
    let (sum, room) = (input + wanted as usize, max - input);
    // LangChain searches for these words, and shortens the conversation when it finds them.
    let cause = match (wanted as usize) < max {
        true => ", so the prompt is too long",
        false => "",
    };
    let rule = match names.dialect {
        Dialect::Native => format!(
            "`{prompt}` tokens + `{max_new_tokens}` must be <= {max}. \
             Given: {input} `{prompt}` tokens and {wanted} `{max_new_tokens}`"
        ),
        Dialect::OpenAi => format!(
            "This model's maximum context length is {max} tokens. However, you requested {sum} tokens: \
             {input} in `{prompt}` and {wanted} in `{max_new_tokens}`{cause}. Shorten `{prompt}`, or send \
             a `{max_new_tokens}` of at most {room}"
        ),
        Dialect::Anthropic => format!(
            "input length and `{max_new_tokens}` exceed context limit: {input} + {wanted} > {max}. \
             Shorten `{prompt}`, or send a `{max_new_tokens}` of at most {room}"
        ),
    };
    ApiError::too_many_tokens(max_new_tokens, rule)
}

/// Returns how many tokens a prompt may have so that all requested tokens fit after it; at least 1.
pub(super) fn room_for_prompt(parameters: &Parameters, limits: TokenLimits) -> usize {
    let wanted = parameters.max_new_tokens.unwrap_or(1);
    let wanted = wanted.max(parameters.min_new_tokens) as usize;
    let room = limits.max_total.saturating_sub(wanted);
    room.min(limits.max_input).max(1)
}

/// Truncates a prompt; `room` is how many tokens leave room for the output.
pub(super) fn truncate(truncation: Truncation, ids: &mut Vec<u32>, room: usize) {
    let keep = match truncation.keep {
        Keep::Tokens(tokens) => tokens,
        Keep::Room => room,
    };
    match truncation.side {
        TruncationSide::Left => drop(ids.drain(..ids.len().saturating_sub(keep))),
        TruncationSide::Right => ids.truncate(keep),
    }
}

/// Returns how many tokens the output may have.
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
        let rule = format!("`{prompt}` cannot be empty: the tokenizer returns no tokens for it");
        return Err(ApiError::validation(prompt, rule));
    }
    if input > limits.max_input {
        return Err(too_long(names, limits, input));
    }
    let room = u32::try_from(limits.max_total - input).unwrap_or(u32::MAX);
    let wanted = parameters.max_new_tokens.unwrap_or(room);
    if wanted > room {
        return Err(no_room(names, limits, input, wanted));
    }
    let least = parameters.min_new_tokens;
    if least > wanted {
        let rule =
            format!("`{min_new_tokens}` must be <= `{max_new_tokens}` ({wanted}). Given: {least}");
        return Err(ApiError::validation(min_new_tokens, rule));
    }
    Ok(wanted)
}
