//! Sampling parameters of a request: their type, and the table of the numeric ones.
//!
//! A numeric parameter has one row in [`FLOATS`] or [`INTEGERS`]. Range checks, the bounds in the
//! OpenAPI description, the rules of beam search, KServe's names and the Python package follow from
//! it. Lists of tokens and texts have rules of their own in `validate/sampling.rs`: each has another
//! shape, so that a table of them would be longer than the rules.

use crate::error::ApiError;
use crate::range::{Number, Range};

/// Sampling parameters. The worker defines the formulas and their order: `proto/README.md`,
/// Sampling. The default samples from the model's distribution at temperature 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy.
    pub temperature: f32,
    /// Keeps this many most likely tokens; 0 = off.
    pub top_k: u32,
    /// Keeps the most likely tokens that have this probability together; 1 = off.
    pub top_p: f32,
    /// Keeps tokens with at least this share of the largest probability; 0 = off.
    pub min_p: f32,
    /// Keeps the tokens nearest to the entropy that have this probability together; 1 = off.
    pub typical_p: f32,
    /// Divides positive logits and multiplies others, for tokens of prompt and output; 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted once per generated occurrence of the token; 0 = off.
    pub frequency_penalty: f32,
    /// Subtracted if the token was generated; 0 = off.
    pub presence_penalty: f32,
    /// Seed of the counter-based generator; chosen by the router if the client gave none.
    pub seed: u64,
    /// Values added to the logits of these tokens; no duplicates.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only allowed tokens; `None` = all.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Tokens that are never generated.
    pub banned_token_ids: Vec<u32>,
    /// Sequences of two or more tokens that are never generated.
    pub bad_words: Vec<Vec<u32>>,
    /// Watermark to embed.
    pub watermark: Option<Watermark>,
    /// Top logprobs for each generated token.
    pub top_logprobs: u32,
    /// Top logprobs for each prompt token, in addition to its own; `None` = no prompt logprobs,
    /// `WHOLE_VOCABULARY` = all.
    pub prompt_logprobs: Option<u32>,
    /// Tokens whose logprobs are returned at each generated token, whatever their rank; no
    /// duplicates.
    pub logprob_token_ids: Vec<u32>,
    /// Tokens of reasoning after which it is closed; `None` = no limit.
    pub thinking_token_budget: Option<u32>,
}

/// Requests the logprobs of the whole vocabulary; also in the protocol.
pub const WHOLE_VOCABULARY: u32 = u32::MAX;

/// The watermark of "A Watermark for Large Language Models": a share of tokens is green and gets a
/// bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermark {
    /// Share of green tokens, between 0 and 1.
    pub gamma: f64,
    /// Bias added to the logits of green tokens.
    pub delta: f32,
    /// Key of the hash of the preceding token.
    pub key: u64,
}

/// A row of the table: a numeric parameter that all OpenAI routes, KServe and Python accept.
pub struct NumericParam<T> {
    /// Its field in requests and in Python.
    pub name: &'static str,
    /// Its valid values.
    pub range: Range<T>,
    /// The value without effect: the default, and the only one that beam search allows. (The
    /// default temperature is 1, except with beam search.)
    pub neutral: T,
    /// TGI's narrower range on the native routes; `None` = they do not have the parameter.
    pub native: Option<Range<T>>,
    /// Whether Anthropic's route has the parameter.
    pub anthropic: bool,
    /// Its input tensor in KServe; `None` = it is only among the request's parameters.
    pub kserve_input: Option<&'static str>,
    /// Reads the parameter.
    pub get: fn(&SamplingParams) -> T,
    /// Writes a valid value.
    set: fn(&mut SamplingParams, T),
}

/// The parameters with real values.
pub static FLOATS: [&NumericParam<f32>; 7] = [
    &TEMPERATURE,
    &TOP_P,
    &MIN_P,
    &TYPICAL_P,
    &REPETITION_PENALTY,
    &FREQUENCY_PENALTY,
    &PRESENCE_PENALTY,
];

/// The parameters with whole values.
pub static INTEGERS: [&NumericParam<i64>; 2] = [&TOP_K, &THINKING_TOKEN_BUDGET];

/// Randomness of sampling.
pub static TEMPERATURE: NumericParam<f32> = NumericParam {
    name: "temperature",
    range: Range::new(0.0, f32::MAX),
    neutral: 0.0,
    native: Some(Range::above(0.0, f32::MAX)),
    anthropic: true,
    kserve_input: Some("temperature"),
    get: |params| params.temperature,
    set: |params, value| params.temperature = value,
};

/// The number of most likely tokens that are kept; -1 turns it off, as 0 does.
pub static TOP_K: NumericParam<i64> = NumericParam {
    name: "top_k",
    range: Range::new(-1, i32::MAX as i64),
    neutral: 0,
    native: Some(Range::new(1, i32::MAX as i64)),
    anthropic: false, // Anthropic's field of this name is not negative: its wire type says so.
    kserve_input: Some("runtime_top_k"),
    get: |params| i64::from(params.top_k),
    set: |params, value| params.top_k = u32::try_from(value).unwrap_or(0),
};

/// The number of reasoning tokens; -1 is no limit.
pub static THINKING_TOKEN_BUDGET: NumericParam<i64> = NumericParam {
    name: "thinking_token_budget",
    range: Range::new(-1, i32::MAX as i64),
    neutral: -1,
    native: None,
    anthropic: false,
    kserve_input: None,
    get: |params| params.thinking_token_budget.map_or(-1, i64::from),
    set: |params, value| params.thinking_token_budget = u32::try_from(value).ok(),
};

const SHARE: Range<f32> = Range::above(0.0, 1.0);
/// TGI refuses 1, which is neutral.
const NATIVE_SHARE: Range<f32> = Range::between(0.0, 1.0);

/// The probability of the most likely tokens that are kept.
pub static TOP_P: NumericParam<f32> = NumericParam {
    name: "top_p",
    range: SHARE,
    neutral: 1.0,
    native: Some(NATIVE_SHARE),
    anthropic: true,
    kserve_input: Some("runtime_top_p"),
    get: |params| params.top_p,
    set: |params, value| params.top_p = value,
};

/// The share of the largest probability that a kept token has at least.
pub static MIN_P: NumericParam<f32> = NumericParam {
    name: "min_p",
    range: Range::new(0.0, 1.0),
    neutral: 0.0,
    native: None,
    anthropic: false,
    kserve_input: None,
    get: |params| params.min_p,
    set: |params, value| params.min_p = value,
};

/// The probability of the tokens nearest to the entropy that are kept.
pub static TYPICAL_P: NumericParam<f32> = NumericParam {
    name: "typical_p",
    range: SHARE,
    neutral: 1.0,
    native: Some(NATIVE_SHARE),
    anthropic: false,
    kserve_input: None,
    get: |params| params.typical_p,
    set: |params, value| params.typical_p = value,
};

/// Beyond these penalties, logits would overflow float32.
const REPETITION: Range<f32> = Range::new(1e-6, 1e6);
const PENALTY: Range<f32> = Range::new(-2.0, 2.0);

/// The penalty for tokens of prompt and output.
pub static REPETITION_PENALTY: NumericParam<f32> = NumericParam {
    name: "repetition_penalty",
    range: REPETITION,
    neutral: 1.0,
    native: Some(REPETITION),
    anthropic: false,
    kserve_input: Some("repetition_penalty"),
    get: |params| params.repetition_penalty,
    set: |params, value| params.repetition_penalty = value,
};

/// The penalty per occurrence in the output.
pub static FREQUENCY_PENALTY: NumericParam<f32> = NumericParam {
    name: "frequency_penalty",
    range: PENALTY,
    neutral: 0.0,
    native: Some(PENALTY),
    anthropic: false,
    kserve_input: None,
    get: |params| params.frequency_penalty,
    set: |params, value| params.frequency_penalty = value,
};

/// The penalty for tokens that occur in the output.
pub static PRESENCE_PENALTY: NumericParam<f32> = NumericParam {
    name: "presence_penalty",
    range: PENALTY,
    neutral: 0.0,
    native: None,
    anthropic: false,
    kserve_input: None,
    get: |params| params.presence_penalty,
    set: |params, value| params.presence_penalty = value,
};

impl<T: Number> NumericParam<T> {
    /// Sets the parameter to the client's value; `None` keeps the default.
    ///
    /// # Errors
    /// A value outside the range.
    pub fn assign(&self, params: &mut SamplingParams, given: Option<T>) -> Result<(), ApiError> {
        if let Some(value) = given {
            self.range.check(self.name, value)?;
            (self.set)(params, value);
        }
        Ok(())
    }

    /// Like `assign`, with the range of the native routes.
    ///
    /// # Errors
    /// A value outside that range.
    pub fn assign_native(
        &self,
        params: &mut SamplingParams,
        given: Option<T>,
    ) -> Result<(), ApiError> {
        if let Some(value) = given {
            match self.native {
                Some(narrower) if narrower != self.range => {
                    narrower.check_native(self.name, value)?;
                }
                _ => self.range.check(self.name, value)?,
            }
            (self.set)(params, value);
        }
        Ok(())
    }

    /// Whether the parameter has an effect.
    pub fn is_set(&self, params: &SamplingParams) -> bool {
        (self.get)(params) != self.neutral
    }
}

/// Returns the names of the numeric parameters, and the input tensors of those that have one.
pub fn numeric_names() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let floats = FLOATS.iter().map(|param| (param.name, param.kserve_input));
    let integers = INTEGERS
        .iter()
        .map(|param| (param.name, param.kserve_input));
    floats.chain(integers)
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            banned_token_ids: Vec::new(),
            bad_words: Vec::new(),
            watermark: None,
            top_logprobs: 0,
            prompt_logprobs: None,
            logprob_token_ids: Vec::new(),
            thinking_token_budget: None,
        }
    }
}

impl Default for Watermark {
    /// TGI's values.
    fn default() -> Self {
        Self {
            gamma: 0.5,
            delta: 2.0,
            key: 15_485_863,
        }
    }
}

impl SamplingParams {
    /// Adds a forbidden word of one or more tokens.
    pub fn forbid(&mut self, word: Vec<u32>) {
        match *word {
            [id] => self.banned_token_ids.push(id),
            _ => self.bad_words.push(word),
        }
    }

    /// Returns the seed of a choice. Choice 0 uses the request's own seed, so that the first of n
    /// choices equals the only choice of the same request without n. Other seeds are derived by the
    /// finalizer of SplitMix64 (Steele, Lea, Flood 2014), so that choices draw independent noise.
    #[must_use]
    pub fn choice_seed(&self, choice: u32) -> u64 {
        if choice == 0 {
            return self.seed;
        }
        let step = u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed.wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 from state 0, as its authors' program prints them.
    #[test]
    fn seeds_of_choices_are_the_outputs_of_splitmix64() {
        let params = SamplingParams::default();
        let seeds = [0, 1, 2, 3].map(|choice| params.choice_seed(choice));
        let outputs = [
            0,
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
        ];
        assert_eq!(seeds, outputs);
    }

    #[test]
    fn default_of_each_numeric_parameter_is_neutral_except_temperature() {
        let default = SamplingParams::default();
        let floats = FLOATS.iter().filter(|param| param.is_set(&default));
        assert_eq!(
            floats.map(|param| param.name).collect::<Vec<_>>(),
            ["temperature"]
        );
        assert!(INTEGERS.iter().all(|param| !param.is_set(&default)));
    }

    #[test]
    fn each_numeric_parameter_is_written_where_it_is_read() {
        for param in FLOATS {
            let mut params = SamplingParams::default();
            param.assign(&mut params, Some(0.75)).unwrap();
            assert_eq!((param.get)(&params), 0.75, "{}", param.name);
        }
        for param in INTEGERS {
            let mut params = SamplingParams::default();
            param.assign(&mut params, Some(7)).unwrap();
            assert_eq!((param.get)(&params), 7, "{}", param.name);
        }
    }
}
