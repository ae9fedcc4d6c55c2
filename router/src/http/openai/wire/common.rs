//! Fields that chat and text completions share, and what they mean.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::engine::types::WHOLE_VOCABULARY;
use crate::error::ApiError;
use crate::http::neutral::{Neutral, Neutrals};
use crate::http::strict::from_object;
use crate::validate::range::Range;
use crate::validate::{AtEos, Keep, Parameters, Truncation, TruncationSide};

from_object!(StreamOptions);

/// What both kinds of request say beside their prompt.
#[derive(Debug)]
pub(crate) struct Common {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// Sampling and ends, ranges not yet checked by `validate`.
    pub(crate) parameters: Parameters,
    /// How the answer is sent.
    pub(crate) delivery: Delivery,
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// In one piece.
    Whole,
    /// As a stream of chunks.
    Stream {
        /// Which chunks tell the usage.
        usage: StreamUsage,
    },
}

/// Which chunks of a stream tell the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    /// None.
    Never,
    /// A last one, without choices.
    AtEnd,
    /// That one, and each chunk of a choice: the tokens of this choice so far.
    Always,
}

/// The end of a prompt that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WireSide {
    Left,
    Right,
}

/// How a stream is told.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    default,
    expecting = "a JSON object"
)]
pub(crate) struct StreamOptions {
    /// Send a last chunk without choices that tells the usage.
    pub(crate) include_usage: Option<bool>,
    /// With `include_usage`: each chunk tells the usage of its choice so far (vLLM's name).
    pub(crate) continuous_usage_stats: Option<bool>,
    /// Has no effect: Penstock adds no padding to its chunks.
    #[serde(rename = "include_obfuscation")]
    pub(crate) _include_obfuscation: Option<bool>,
}

/// Declares a request: the fields given, and those that all requests share.
macro_rules! request {
    (
        $(#[$meta:meta])* $name:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize, utoipa::ToSchema)]
        #[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            /// The served model's id.
            #[schema(example = "brook")]
            pub(crate) model: Option<String>,
            /// >= 0; 0 = greedy. Default 1, and 0 with beam search, which has no other.
            pub(crate) temperature: Option<f32>,
            /// > 0 and <= 1. Default 1.
            pub(crate) top_p: Option<f32>,
            /// > 0, or -1 or 0 = off.
            pub(crate) top_k: Option<i32>,
            /// The same seed draws the same random numbers, whatever shares the batch: the same
            /// tokens, but where a GPU's rounding, which depends on the batch, tips a near tie.
            pub(crate) seed: Option<i64>,
            /// The answer ends before the first of these.
            #[serde(default, deserialize_with = "super::one_or_many::strings")]
            #[schema(value_type = Option<Vec<String>>)]
            pub(crate) stop: Vec<String>,
            /// > 0; without it the answer may fill the context.
            pub(crate) max_tokens: Option<u32>,
            /// No end token and no stop string counts before so many tokens.
            pub(crate) min_tokens: Option<u32>,
            /// Go on after the model's end tokens.
            pub(crate) ignore_eos: Option<bool>,
            /// Whether to stream.
            pub(crate) stream: Option<bool>,
            /// Only with `stream`.
            pub(crate) stream_options: Option<super::common::StreamOptions>,
            /// Whether the stop string that ends the answer is part of it. Default false.
            pub(crate) include_stop_str_in_output: Option<bool>,
            /// Whether special tokens are left out of the text. Default true.
            pub(crate) skip_special_tokens: Option<bool>,
            /// Has no effect: nothing is put between tokens.
            #[serde(rename = "spaces_between_special_tokens")]
            #[schema(value_type = Option<bool>)]
            pub(crate) _spaces_between_special_tokens: Option<serde::de::IgnoredAny>,
            /// Has no effect: an answer's id is made here.
            #[serde(rename = "request_id")]
            #[schema(value_type = Option<String>)]
            pub(crate) _request_id: Option<serde::de::IgnoredAny>,
            /// Has no effect: the backend follows from what the answer must spell.
            #[serde(rename = "guided_decoding_backend")]
            #[schema(value_type = Option<String>)]
            pub(crate) _guided_decoding_backend: Option<serde::de::IgnoredAny>,
            /// Not offered yet.
            #[schema(value_type = Option<String>)]
            pub(crate) guided_whitespace_pattern: Option<crate::http::strict::JsonText>,
            /// Not offered yet; 0 is neutral.
            #[schema(value_type = Option<i64>)]
            pub(crate) priority: Option<crate::http::strict::JsonText>,
            /// Computed prompts are shared only among requests with the same one: nobody learns from
            /// times what others have asked.
            pub(crate) cache_salt: Option<String>,
            /// Tells the log-probabilities of these tokens in the place of each token of the answer, beside
            /// the likely ones that are asked for (vLLM's name). Asks for log-probabilities by itself.
            #[serde(default, deserialize_with = "super::token_ids::ids_or_null")]
            pub(crate) logprob_token_ids: Option<Vec<u32>>,
            /// With log-probabilities: tokens are written as `token_id:` and their id, so that tokens
            /// with equal texts differ.
            pub(crate) return_tokens_as_token_ids: Option<bool>,
            /// Not offered yet; `{}` is neutral.
            #[schema(value_type = Option<Object>)]
            pub(crate) vllm_xargs: Option<crate::http::strict::JsonText>,
            /// Has no effect on the answer.
            #[serde(rename = "user")]
            #[schema(value_type = Option<String>)]
            pub(crate) _user: Option<serde::de::IgnoredAny>,
            /// > 0: answers to each prompt. Default 1.
            pub(crate) n: Option<u32>,
            /// From -2 to 2: taken off a token's logit if the answer has it. Default 0.
            pub(crate) presence_penalty: Option<f32>,
            /// From -2 to 2: taken off a token's logit for each time that the answer has it.
            /// Default 0.
            pub(crate) frequency_penalty: Option<f32>,
            /// From 0.000001 to 1000000: divides positive logits, and multiplies others, of tokens that
            /// prompt or answer have. Default 1.
            pub(crate) repetition_penalty: Option<f32>,
            /// From 0 to 1: choose among tokens with this share of the largest probability, or
            /// more. Default 0.
            pub(crate) min_p: Option<f32>,
            /// Above 0, at most 1: choose among the tokens nearest to the entropy that have this
            /// probability together. Default 1.
            pub(crate) typical_p: Option<f32>,
            /// Token id -> number from -100 to 100 that is added to the token's logit.
            #[serde(default, deserialize_with = "super::token_ids::biases")]
            #[schema(value_type = Option<std::collections::BTreeMap<String, f32>>)]
            pub(crate) logit_bias: Vec<(u32, f32)>,
            /// The only tokens that the answer may have.
            #[serde(default, deserialize_with = "super::token_ids::ids_or_null")]
            pub(crate) allowed_token_ids: Option<Vec<u32>>,
            /// Words that the answer may not have, as lists of 1 to 16 token ids.
            #[serde(default, deserialize_with = "super::token_ids::words")]
            #[schema(value_type = Option<Vec<Vec<u32>>>)]
            pub(crate) bad_words_ids: Vec<Vec<u32>>,
            /// More tokens that end the answer.
            #[serde(default, deserialize_with = "super::token_ids::ids_or_null")]
            pub(crate) stop_token_ids: Option<Vec<u32>>,
            /// Texts that the answer may not have: their tokens never follow one another.
            #[serde(default, deserialize_with = "super::token_ids::texts")]
            #[schema(value_type = Option<Vec<String>>)]
            pub(crate) bad_words: Vec<String>,
            /// Mark the answer: `penstock watermark-detect` can tell it from other texts.
            pub(crate) watermark: Option<bool>,
            /// Keep only so many tokens of the prompt; -1 = as many as leave room for `max_tokens` in
            /// the context.
            pub(crate) truncate_prompt_tokens: Option<i64>,
            /// Which end of the prompt `truncate_prompt_tokens` cuts off: `left` (default) or `right`.
            #[schema(inline)]
            pub(crate) truncation_side: Option<super::common::WireSide>,
            /// What the answer must spell.
            pub(crate) response_format: Option<crate::http::structured_output::ResponseFormat>,
            /// A JSON schema (vLLM's name).
            #[schema(value_type = Option<Object>)]
            pub(crate) guided_json: Option<crate::http::strict::JsonText>,
            /// A regular expression for the whole answer (vLLM's name).
            pub(crate) guided_regex: Option<String>,
            /// The texts that the answer is one of (vLLM's name).
            #[serde(default, deserialize_with = "crate::http::structured_output::choices")]
            #[schema(value_type = Option<Vec<String>>)]
            pub(crate) guided_choice: Option<Vec<String>>,
            /// A grammar, in Lark's syntax or EBNF (vLLM's name).
            pub(crate) guided_grammar: Option<String>,
            /// A regular expression for the whole answer (SGLang's name).
            pub(crate) regex: Option<String>,
            /// A grammar, in EBNF or Lark's syntax (SGLang's name).
            pub(crate) ebnf: Option<String>,
            /// A JSON schema, as a string or an object (SGLang's name).
            #[schema(value_type = Option<String>)]
            pub(crate) json_schema: Option<crate::http::strict::JsonText>,
            /// The same in one object, as newer clients send it.
            pub(crate) structured_outputs: Option<crate::http::structured_output::StructuredOutputs>,
            /// Whether the answer is whole when its tokens run out. Default: for JSON.
            pub(crate) guided_complete: Option<bool>,
            /// Search for the likeliest answers instead of sampling, as `generate` of `transformers`
            /// does with `num_beams`. A stream brings them at the end.
            pub(crate) use_beam_search: Option<bool>,
            /// Sequences that go on from each step; at least `n`, which is the default.
            pub(crate) beam_width: Option<u32>,
            /// Only with beam search, whose answers are ranked by the sum of their log-probabilities
            /// divided by their length to this power. Default 1.
            pub(crate) length_penalty: Option<f32>,
            /// Only with beam search: true ends it once it has `beam_width` answers, false (default)
            /// when no running one seems better, "never" when none can be.
            #[schema(value_type = Option<bool>)]
            pub(crate) early_stopping: Option<crate::http::beam::WireEarlyStopping>,
        }

        crate::http::strict::from_object!($name);

        impl $name {
            /// Refuses what no request can ask yet.
            pub(crate) fn check_shared(&self) -> Result<(), crate::error::ApiError> {
                let values = [
                    &self.guided_whitespace_pattern,
                    &self.priority,
                    &self.vllm_xargs,
                ];
                crate::http::neutral::check(&super::common::NEUTRAL, values)
            }

            /// Takes what all requests share. `max_tokens` is the bound that counts.
            pub(crate) fn common(
                &mut self,
                max_tokens: Option<u32>,
            ) -> Result<super::Common, crate::error::ApiError> {
                let beam = self.beam()?;
                let usual = if beam.is_some() { 0.0 } else { 1.0 };
                Ok(super::Common {
                    model: self.model.take(),
                    parameters: crate::validate::Parameters {
                        max_new_tokens: max_tokens,
                        min_new_tokens: self.min_tokens.unwrap_or(0),
                        temperature: self.temperature.unwrap_or(usual),
                        top_k: super::common::top_k(self.top_k)?,
                        top_p: self.top_p.unwrap_or(1.0),
                        seed: self.seed.map(i64::cast_unsigned),
                        stop: std::mem::take(&mut self.stop),
                        at_eos: super::common::at_eos(self.ignore_eos),
                        choices: crate::validate::Choices {
                            n: self.n.unwrap_or(1),
                            best_of: None,
                        },
                        logprob_token_ids: self.logprob_token_ids.clone().unwrap_or_default(),
                        stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                        logits_processors: self.logits_processors(),
                        bad_words: std::mem::take(&mut self.bad_words),
                        watermark: self.watermark.unwrap_or(false),
                        truncate: super::common::truncation(
                            self.truncate_prompt_tokens,
                            self.truncation_side,
                        )?,
                        grammar: self.take_grammar()?,
                        output_text: crate::validate::OutputTextOptions {
                            stop_string: self.include_stop_str_in_output == Some(true),
                            special_tokens: self.skip_special_tokens == Some(false),
                        },
                        beam,
                        cache_salt: self.cache_salt.take(),
                        ..Default::default()
                    },
                    delivery: super::common::delivery(self.stream, self.stream_options)?,
                })
            }

            /// Whether log-probabilities are told of tokens by their ids.
            pub(crate) fn names_tokens(&self) -> bool {
                let named = self.logprob_token_ids.as_ref();
                named.is_some_and(|ids| !ids.is_empty())
            }

            fn take_grammar(
                &mut self,
            ) -> Result<Option<Box<crate::engine::types::GrammarSpec>>, crate::error::ApiError> {
                crate::http::structured_output::StructuredOutputFields {
                    response_format: self.response_format.take(),
                    guided_json: self.guided_json.take(),
                    guided_regex: self.guided_regex.take(),
                    guided_choice: self.guided_choice.take(),
                    guided_grammar: self.guided_grammar.take(),
                    regex: self.regex.take(),
                    ebnf: self.ebnf.take(),
                    json_schema: self.json_schema.take(),
                    structured_outputs: self.structured_outputs.take(),
                    guided_complete: self.guided_complete,
                }
                .into_grammar()
            }

            fn beam(&self) -> Result<Option<crate::engine::BeamParameters>, crate::error::ApiError> {
                let fields = crate::http::beam::BeamFields {
                    enabled: self.use_beam_search,
                    width: self.beam_width,
                    length_penalty: self.length_penalty,
                    early_stopping: self.early_stopping,
                };
                fields.beam(self.n.unwrap_or(1))
            }

            fn logits_processors(&mut self) -> crate::logits_processors::LogitsProcessors {
                let mut logits_processors = crate::logits_processors::LogitsProcessors {
                    min_p: self.min_p.unwrap_or(0.0),
                    typical_p: self.typical_p.unwrap_or(1.0),
                    penalties: crate::logits_processors::Penalties {
                        repetition: self.repetition_penalty.unwrap_or(1.0),
                        frequency: self.frequency_penalty.unwrap_or(0.0),
                        presence: self.presence_penalty.unwrap_or(0.0),
                    },
                    logit_bias: std::mem::take(&mut self.logit_bias),
                    allowed: self.allowed_token_ids.take(),
                    ..Default::default()
                };
                for word in std::mem::take(&mut self.bad_words_ids) {
                    logits_processors.forbid(word);
                }
                logits_processors
            }
        }
    };
}
pub(super) use request;

/// Not offered yet.
pub(crate) const NEUTRAL: Neutrals<3> = [
    ("guided_whitespace_pattern", Neutral::Null),
    ("priority", Neutral::Json("0")),
    ("vllm_xargs", Neutral::Json("{}")),
];

/// -1 and 0 turn it off.
pub(crate) const TOP_K: Range<i32> = Range::new(-1, i32::MAX);

pub(super) fn top_k(value: Option<i32>) -> Result<u32, ApiError> {
    let k = value.unwrap_or(0);
    if TOP_K.has(k) {
        return Ok(k.max(0).cast_unsigned());
    }
    let rule = format!("`top_k` must be > 0, or -1 or 0 to turn it off. Given: {k}");
    Err(ApiError::validation("top_k", rule))
}

pub(super) fn truncation(
    keep: Option<i64>,
    side: Option<WireSide>,
) -> Result<Option<Truncation>, ApiError> {
    let Some(given) = keep else { return Ok(None) };
    let keep = match given {
        -1 => Keep::Room,
        given => Keep::Tokens(usize::try_from(given).map_err(|_| {
            let name = "truncate_prompt_tokens";
            let rule = format!("`{name}` must be > 0, or -1 to keep what has room. Given: {given}");
            ApiError::validation(name, rule)
        })?),
    };
    let side = match side {
        Some(WireSide::Right) => TruncationSide::Right,
        Some(WireSide::Left) | None => TruncationSide::Left,
    };
    Ok(Some(Truncation { keep, side }))
}

/// What is told of a prompt by itself goes with a whole answer: a stream has no place for it.
pub(super) fn prompt_logprobs(
    count: Option<i64>,
    stream: Option<bool>,
) -> Result<Option<u32>, ApiError> {
    if count.is_some() && stream == Some(true) {
        let rule = "`prompt_logprobs` is not available when `stream` is true";
        return Err(ApiError::validation("prompt_logprobs", rule));
    }
    match count {
        None => Ok(None),
        Some(-1) => Ok(Some(WHOLE_VOCABULARY)),
        Some(given) => match u32::try_from(given) {
            // What this number means in the protocol is said by -1 here.
            Ok(count) if count != WHOLE_VOCABULARY => Ok(Some(count)),
            _ => {
                let rule = format!(
                    "`prompt_logprobs` must be >= 0, or -1 for the whole vocabulary. Given: {given}"
                );
                Err(ApiError::validation("prompt_logprobs", rule))
            }
        },
    }
}

pub(super) fn at_eos(ignore: Option<bool>) -> AtEos {
    if ignore == Some(true) {
        AtEos::Continue
    } else {
        AtEos::Stop
    }
}

pub(super) fn delivery(
    stream: Option<bool>,
    options: Option<StreamOptions>,
) -> Result<Delivery, ApiError> {
    match (stream, options) {
        (Some(true), options) => {
            let options = options.unwrap_or_default();
            let usage = match (options.include_usage, options.continuous_usage_stats) {
                (Some(true), Some(true)) => StreamUsage::Always,
                (Some(true), _) => StreamUsage::AtEnd,
                _ => StreamUsage::Never,
            };
            Ok(Delivery::Stream { usage })
        }
        (_, None) => Ok(Delivery::Whole),
        (_, Some(_)) => {
            let rule = "`stream_options` is only allowed when `stream` is true";
            Err(ApiError::validation("stream_options", rule))
        }
    }
}
