//! Fields that all OpenAI requests share, and their conversion to parameters.

use penstock_request::error::ApiError;
use penstock_request::sampling_params::WHOLE_VOCABULARY;
use penstock_request::validate::{AtEos, Keep, Parameters, Truncation, TruncationSide};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::neutral::{Neutral, Neutrals};
use crate::strict::from_object;

from_object!(StreamOptions);

/// The shared part of a request: everything but its prompt.
#[derive(Debug)]
pub(crate) struct Common {
    /// The requested model.
    pub(crate) model: Option<String>,
    /// Sampling and stop parameters; `validate` checks their ranges later.
    pub(crate) parameters: Parameters,
    /// Whether to stream.
    pub(crate) delivery: Delivery,
}

/// Whether a response is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// As a whole.
    Whole,
    /// As a stream of chunks.
    Stream {
        /// The chunks that have the usage.
        usage: StreamUsage,
    },
}

/// The chunks of a stream that have the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    /// None.
    Never,
    /// A last chunk without choices.
    AtEnd,
    /// That chunk, and every chunk of a choice, with the choice's tokens so far.
    Always,
}

/// The side from which a prompt is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WireSide {
    Left,
    Right,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    default,
    expecting = "a JSON object"
)]
pub(crate) struct StreamOptions {
    /// Whether to send a last chunk without choices that has the usage.
    pub(crate) include_usage: Option<bool>,
    /// With `include_usage`: whether every chunk has the usage of its choice so far (vLLM's name).
    pub(crate) continuous_usage_stats: Option<bool>,
    /// Has no effect: Penstock adds no padding to its chunks.
    #[serde(rename = "include_obfuscation")]
    pub(crate) _include_obfuscation: Option<bool>,
}

/// Declares a request type with the given fields and those that all requests share.
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
            /// >= 0; 0 = greedy. Default 1. With beam search always 0.
            pub(crate) temperature: Option<f32>,
            /// > 0 and <= 1. Default 1.
            pub(crate) top_p: Option<f32>,
            /// > 0; -1 or 0 = off.
            pub(crate) top_k: Option<i32>,
            /// The same seed draws the same random numbers, regardless of the batch. The tokens are
            /// the same, except where a GPU's rounding, which depends on the batch, decides a near
            /// tie.
            pub(crate) seed: Option<i64>,
            /// The output ends before the first of these texts.
            #[serde(default, deserialize_with = "super::one_or_many::strings")]
            #[schema(value_type = Option<Vec<String>>)]
            pub(crate) stop: Vec<String>,
            /// > 0. Default: the rest of the context.
            pub(crate) max_tokens: Option<u32>,
            /// Minimum number of output tokens; end tokens and stop strings before that are ignored.
            pub(crate) min_tokens: Option<u32>,
            /// Whether to continue after the model's end tokens.
            pub(crate) ignore_eos: Option<bool>,
            /// Whether to stream.
            pub(crate) stream: Option<bool>,
            /// Only with `stream`.
            pub(crate) stream_options: Option<super::common::StreamOptions>,
            /// Whether the output includes the stop string that ended it. Default false.
            pub(crate) include_stop_str_in_output: Option<bool>,
            /// Whether special tokens are left out of the text. Default true.
            pub(crate) skip_special_tokens: Option<bool>,
            /// Has no effect: no spaces are added between tokens.
            #[serde(rename = "spaces_between_special_tokens")]
            #[schema(value_type = Option<bool>)]
            pub(crate) _spaces_between_special_tokens: Option<serde::de::IgnoredAny>,
            /// Has no effect: the server generates the response's id.
            #[serde(rename = "request_id")]
            #[schema(value_type = Option<String>)]
            pub(crate) _request_id: Option<serde::de::IgnoredAny>,
            /// Has no effect: the grammar decides the backend.
            #[serde(rename = "guided_decoding_backend")]
            #[schema(value_type = Option<String>)]
            pub(crate) _guided_decoding_backend: Option<serde::de::IgnoredAny>,
            /// Not supported.
            #[schema(value_type = Option<String>)]
            pub(crate) guided_whitespace_pattern: Option<crate::strict::JsonText>,
            /// Order among the waiting requests of the same tenant, smaller first; 0 if omitted.
            pub(crate) priority: Option<i32>,
            /// Requests share cached prefixes only if they have the same salt, so that response
            /// times do not reveal the prompts of others.
            pub(crate) cache_salt: Option<String>,
            /// Seconds until the answer must be complete, > 0; as in the header `x-request-timeout`. A
            /// request that cannot meet its deadline is refused, one that does not is ended.
            pub(crate) timeout: Option<f64>,
            /// Token ids whose logprobs are returned at each position of the output, in addition to
            /// the top logprobs (vLLM's name). Enables logprobs by itself.
            #[serde(default, deserialize_with = "super::token_ids::ids_or_null")]
            pub(crate) logprob_token_ids: Option<Vec<u32>>,
            /// Whether logprobs write a token as `token_id:` and its id, so that tokens with equal
            /// texts differ.
            pub(crate) return_tokens_as_token_ids: Option<bool>,
            /// Not supported; `{}` is neutral.
            #[schema(value_type = Option<Object>)]
            pub(crate) vllm_xargs: Option<crate::strict::JsonText>,
            /// Has no effect on the output.
            #[serde(rename = "user")]
            #[schema(value_type = Option<String>)]
            pub(crate) _user: Option<serde::de::IgnoredAny>,
            /// Number of choices per prompt, > 0. Default 1.
            pub(crate) n: Option<u32>,
            /// From -2 to 2: subtracted from a token's logit if it occurs in the output. Default 0.
            pub(crate) presence_penalty: Option<f32>,
            /// From -2 to 2: subtracted from a token's logit for each time it occurs in the output.
            /// Default 0.
            pub(crate) frequency_penalty: Option<f32>,
            /// From 0.000001 to 1000000: divides positive logits and multiplies negative logits of
            /// tokens that occur in the prompt or the output. Default 1.
            pub(crate) repetition_penalty: Option<f32>,
            /// From 0 to 1: sample from tokens with at least this share of the highest probability.
            /// Default 0.
            pub(crate) min_p: Option<f32>,
            /// > 0 and <= 1: typical sampling from the tokens with this total probability. Default 1.
            pub(crate) typical_p: Option<f32>,
            /// Number of reasoning tokens after which the reasoning is closed (vLLM's name); 0
            /// closes it at once, -1 is no limit. Only in conversations with a model that reasons.
            pub(crate) thinking_token_budget: Option<i32>,
            /// Token id -> number from -100 to 100 that is added to the token's logit.
            #[serde(default, deserialize_with = "super::token_ids::biases")]
            #[schema(value_type = Option<std::collections::BTreeMap<String, f32>>)]
            pub(crate) logit_bias: Vec<(u32, f32)>,
            /// The only tokens that the output may contain.
            #[serde(default, deserialize_with = "super::token_ids::ids_or_null")]
            pub(crate) allowed_token_ids: Option<Vec<u32>>,
            /// Words that the output may not contain, as lists of 1 to 16 token ids.
            #[serde(default, deserialize_with = "super::token_ids::words")]
            #[schema(value_type = Option<Vec<Vec<u32>>>)]
            pub(crate) bad_words_ids: Vec<Vec<u32>>,
            /// Additional tokens that end the output.
            #[serde(default, deserialize_with = "super::token_ids::ids_or_null")]
            pub(crate) stop_token_ids: Option<Vec<u32>>,
            /// Texts that the output may not contain: their token sequences are blocked.
            #[serde(default, deserialize_with = "super::token_ids::texts")]
            #[schema(value_type = Option<Vec<String>>)]
            pub(crate) bad_words: Vec<String>,
            /// Watermark the output, so that `penstock watermark-detect` recognises it.
            pub(crate) watermark: Option<bool>,
            /// Number of prompt tokens to keep; -1 = as many as leave room for `max_tokens` in the
            /// context.
            pub(crate) truncate_prompt_tokens: Option<i64>,
            /// The side from which `truncate_prompt_tokens` truncates: `left` (default) or `right`.
            #[schema(inline)]
            pub(crate) truncation_side: Option<super::common::WireSide>,
            /// Structured output.
            pub(crate) response_format: Option<crate::structured_output::ResponseFormat>,
            /// JSON schema of the output (vLLM's name).
            #[schema(value_type = Option<Object>)]
            pub(crate) guided_json: Option<crate::strict::JsonText>,
            /// Regular expression of the whole output (vLLM's name).
            pub(crate) guided_regex: Option<String>,
            /// The texts that are allowed as output (vLLM's name).
            #[serde(default, deserialize_with = "crate::structured_output::choices")]
            #[schema(value_type = Option<Vec<String>>)]
            pub(crate) guided_choice: Option<Vec<String>>,
            /// Grammar of the output, in Lark's syntax or EBNF (vLLM's name).
            pub(crate) guided_grammar: Option<String>,
            /// Regular expression of the whole output (SGLang's name).
            pub(crate) regex: Option<String>,
            /// Grammar of the output, in EBNF or Lark's syntax (SGLang's name).
            pub(crate) ebnf: Option<String>,
            /// JSON schema of the output, as a string or an object (SGLang's name).
            #[schema(value_type = Option<String>)]
            pub(crate) json_schema: Option<crate::strict::JsonText>,
            /// The same constraints in one object, as recent vLLM clients send them.
            pub(crate) structured_outputs: Option<crate::structured_output::StructuredOutputs>,
            /// Whether the output is completed within the token limit. Default: true for JSON,
            /// otherwise false.
            pub(crate) guided_complete: Option<bool>,
            /// Use beam search for the most likely outputs instead of sampling, as `generate` of
            /// `transformers` does with `num_beams`. A stream sends the outputs at their end.
            pub(crate) use_beam_search: Option<bool>,
            /// Number of beams, at least `n`. Default: `n`.
            pub(crate) beam_width: Option<u32>,
            /// Only with beam search: exponent of the length by which the sum of logprobs is
            /// divided to rank outputs. Default 1.
            pub(crate) length_penalty: Option<f32>,
            /// Only with beam search: true stops once `beam_width` outputs have finished; false
            /// (default) stops when no running beam is likely to be better; "never" stops when none
            /// can be better.
            #[schema(value_type = Option<bool>)]
            pub(crate) early_stopping: Option<crate::beam::WireEarlyStopping>,
        }

        crate::strict::from_object!($name);

        impl $name {
            /// Fails if a shared parameter is not supported.
            pub(crate) fn check_shared(&self) -> Result<(), penstock_request::error::ApiError> {
                let values = [
                    &self.guided_whitespace_pattern,
                    &self.vllm_xargs,
                ];
                crate::neutral::check(&super::common::NEUTRAL, values)
            }

            /// Takes the shared fields. `max_tokens` is the limit in effect; the model's `defaults`
            /// replace absent ones, except in a beam search.
            pub(crate) fn common(
                &mut self,
                max_tokens: Option<u32>,
                defaults: &penstock_request::GenerationDefaults,
            ) -> Result<super::Common, penstock_request::error::ApiError> {
                let beam = self.beam()?;
                let usual = if beam.is_some() {
                    penstock_request::sampling_params::SamplingParams {
                        temperature: 0.0,
                        ..Default::default()
                    }
                } else {
                    defaults.sampling()
                };
                Ok(super::Common {
                    model: self.model.take(),
                    parameters: penstock_request::validate::Parameters {
                        max_new_tokens: max_tokens.or(defaults.max_new_tokens),
                        min_new_tokens: self.min_tokens.unwrap_or(0),
                        sampling: self.sampling(usual)?,
                        seed: self.seed.map(i64::cast_unsigned),
                        stop: std::mem::take(&mut self.stop),
                        at_eos: super::common::at_eos(self.ignore_eos),
                        choices: penstock_request::validate::Choices {
                            n: self.n.unwrap_or(1),
                            best_of: None,
                        },
                        stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                        bad_words: std::mem::take(&mut self.bad_words),
                        watermark: self.watermark.unwrap_or(false),
                        truncate: super::common::truncation(
                            self.truncate_prompt_tokens,
                            self.truncation_side,
                        )?,
                        constraint: self.take_constraint()?,
                        output_text: penstock_request::validate::OutputTextOptions {
                            stop_string: self.include_stop_str_in_output == Some(true),
                            special_tokens: self.skip_special_tokens == Some(false),
                        },
                        beam,
                        cache_salt: self.cache_salt.take(),
                        timeout: self.timeout,
                        priority: self.priority.unwrap_or(0),
                        ..Default::default()
                    },
                    delivery: super::common::delivery(self.stream, self.stream_options)?,
                })
            }

            /// Returns whether the request has `logprob_token_ids`.
            pub(crate) fn names_tokens(&self) -> bool {
                let named = self.logprob_token_ids.as_ref();
                named.is_some_and(|ids| !ids.is_empty())
            }

            fn take_constraint(
                &mut self,
            ) -> Result<Option<penstock_request::grammar_spec::OutputConstraint>, penstock_request::error::ApiError> {
                crate::structured_output::StructuredOutputFields {
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

            fn beam(&self) -> Result<Option<penstock_request::types::BeamParameters>, penstock_request::error::ApiError> {
                let fields = crate::beam::BeamFields {
                    enabled: self.use_beam_search,
                    width: self.beam_width,
                    length_penalty: self.length_penalty,
                    early_stopping: self.early_stopping,
                };
                fields.beam(self.n.unwrap_or(1))
            }

            /// Takes the sampling parameters; `usual` holds those of a request that sets none.
            fn sampling(
                &mut self,
                usual: penstock_request::sampling_params::SamplingParams,
            ) -> Result<penstock_request::sampling_params::SamplingParams, penstock_request::error::ApiError> {
                use penstock_request::sampling_params as table;
                let mut params = table::SamplingParams {
                    logit_bias: std::mem::take(&mut self.logit_bias),
                    allowed_token_ids: self.allowed_token_ids.take(),
                    logprob_token_ids: self.logprob_token_ids.clone().unwrap_or_default(),
                    ..usual
                };
                for word in std::mem::take(&mut self.bad_words_ids) {
                    params.forbid(word);
                }
                table::TEMPERATURE.assign(&mut params, self.temperature)?;
                table::TOP_K.assign(&mut params, self.top_k.map(i64::from))?;
                table::TOP_P.assign(&mut params, self.top_p)?;
                table::MIN_P.assign(&mut params, self.min_p)?;
                table::TYPICAL_P.assign(&mut params, self.typical_p)?;
                table::REPETITION_PENALTY.assign(&mut params, self.repetition_penalty)?;
                table::FREQUENCY_PENALTY.assign(&mut params, self.frequency_penalty)?;
                table::PRESENCE_PENALTY.assign(&mut params, self.presence_penalty)?;
                let budget = self.thinking_token_budget.map(i64::from);
                table::THINKING_TOKEN_BUDGET.assign(&mut params, budget)?;
                Ok(params)
            }
        }
    };
}
pub(super) use request;

/// Parameters that are not supported.
pub(crate) const NEUTRAL: Neutrals<2> = [
    ("guided_whitespace_pattern", Neutral::Null),
    ("vllm_xargs", Neutral::Json("{}")),
];

pub(super) fn truncation(
    keep: Option<i64>,
    side: Option<WireSide>,
) -> Result<Option<Truncation>, ApiError> {
    let Some(given) = keep else { return Ok(None) };
    let keep = match given {
        -1 => Keep::Room,
        given => Keep::Tokens(usize::try_from(given).map_err(|_| {
            let name = "truncate_prompt_tokens";
            let rule = format!(
                "`{name}` must be > 0, or -1 to keep what fits the context. Given: {given}"
            );
            ApiError::validation(name, rule)
        })?),
    };
    let side = match side {
        Some(WireSide::Right) => TruncationSide::Right,
        Some(WireSide::Left) | None => TruncationSide::Left,
    };
    Ok(Some(Truncation { keep, side }))
}

/// Returns the number of prompt logprobs. Streams have no field for them.
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
            // The engine's value for the whole vocabulary; clients send -1 for that.
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
