//! JSON of the native routes, with TGI's field names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::beam::WireEarlyStopping;
use crate::strict::{self, JsonText, from_object};
use crate::structured_output::Grammar;

from_object!(GenerateRequest, GenerateParameters);

/// Maximum number of stop strings in a body: more than any configuration allows.
const MOST_STOPS: usize = 1024;

/// Body of `/generate`, `/generate_stream` and `/`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct GenerateRequest {
    /// The prompt, not empty.
    #[schema(example = "Once upon a time")]
    pub(crate) inputs: String,
    /// Without this object, the output is sampled at temperature 1.
    pub(crate) parameters: Option<GenerateParameters>,
    /// On `/`: whether to stream. On other routes it must agree with the route.
    pub(crate) stream: Option<bool>,
}

/// Sampling parameters and response options.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct GenerateParameters {
    /// Number of candidates to generate, >= 1. The one with the highest mean logprob is returned.
    /// More than 1 only with sampling, without `seed`, and not in a stream.
    pub(crate) best_of: Option<u32>,
    /// Use beam search for the most likely outputs instead of sampling, as `generate` of
    /// `transformers` does with `num_beams`. A stream sends the output at its end.
    pub(crate) use_beam_search: Option<bool>,
    /// Number of beams, at least `n`. Default: `best_of`, or 1.
    pub(crate) beam_width: Option<u32>,
    /// Only with beam search: exponent of the length by which the sum of logprobs is divided to
    /// rank outputs. Default 1.
    pub(crate) length_penalty: Option<f32>,
    /// Only with beam search: true stops once `beam_width` outputs have finished; false (default)
    /// stops when no running beam is likely to be better; "never" stops when none can be better.
    #[schema(value_type = Option<bool>)]
    pub(crate) early_stopping: Option<WireEarlyStopping>,
    /// > 0. Without it and the other sampling parameters, decoding is greedy.
    pub(crate) temperature: Option<f32>,
    /// From 0.000001 to 1000000: divides positive logits and multiplies negative logits of tokens
    /// that occur in the prompt or the output.
    pub(crate) repetition_penalty: Option<f32>,
    /// From -2 to 2: subtracted from a token's logit for each time it occurs in the output.
    pub(crate) frequency_penalty: Option<f32>,
    /// > 0: sample from this many most likely tokens.
    pub(crate) top_k: Option<i32>,
    /// > 0 and < 1: sample from the most likely tokens with this total probability.
    pub(crate) top_p: Option<f32>,
    /// > 0 and < 1: typical sampling from the tokens with this total probability.
    pub(crate) typical_p: Option<f32>,
    /// Sample even if no other sampling parameter is set.
    pub(crate) do_sample: Option<bool>,
    /// > 0. Default: the rest of the context.
    pub(crate) max_new_tokens: Option<u32>,
    /// Whether `generated_text` begins with the prompt.
    pub(crate) return_full_text: Option<bool>,
    /// The output ends right after the first of these texts.
    #[serde(default, deserialize_with = "strict::list_or_null::<MOST_STOPS, _, _>")]
    pub(crate) stop: Option<Vec<String>>,
    /// > 0: keep only this many tokens at the end of the prompt.
    pub(crate) truncate: Option<usize>,
    /// Watermark the output, so that `penstock watermark-detect` recognises it.
    pub(crate) watermark: Option<bool>,
    /// Whether to return the output's tokens, their logprobs and the finish reason.
    pub(crate) details: Option<bool>,
    /// Whether to return the prompt's tokens with their logprobs; implies `details`. Not in a
    /// stream.
    pub(crate) decoder_input_details: Option<bool>,
    /// The same seed draws the same random numbers, regardless of the batch. The tokens are the
    /// same, except where a GPU's rounding, which depends on the batch, decides a near tie.
    pub(crate) seed: Option<u64>,
    /// 0 to 20: number of most likely tokens to return at each position.
    pub(crate) top_n_tokens: Option<u32>,
    /// Seconds until the answer must be complete, > 0; as in the header `x-request-timeout`. A
    /// request that cannot meet its deadline is refused, one that does not is ended.
    pub(crate) timeout: Option<f64>,
    /// The grammar of the output.
    pub(crate) grammar: Option<Grammar>,
    /// Not supported.
    #[schema(value_type = Option<String>)]
    pub(crate) adapter_id: Option<JsonText>,
}

/// A finished output.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GenerateResponse {
    /// The text.
    pub(crate) generated_text: String,
    /// Details, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Details>,
}

impl GenerateResponse {
    /// Converts to an output that was not the best; `None` without details.
    pub(crate) fn into_sequence(self) -> Option<BestOfSequence> {
        let details = self.details?;
        Some(BestOfSequence {
            generated_text: self.generated_text,
            finish_reason: details.finish_reason,
            generated_tokens: details.generated_tokens,
            seed: details.seed,
            prefill: details.prefill,
            tokens: details.tokens,
            top_tokens: details.top_tokens,
        })
    }
}

/// Details of an output.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Details {
    /// Why the output ended.
    pub(crate) finish_reason: FinishReason,
    /// Output tokens, an end token included.
    pub(crate) generated_tokens: u32,
    /// The seed; null if decoding was greedy.
    pub(crate) seed: Option<u64>,
    /// Prompt tokens, after truncation.
    pub(crate) input_length: usize,
    /// The prompt's tokens, with `decoder_input_details`.
    pub(crate) prefill: Vec<PrefillToken>,
    /// The output's tokens.
    pub(crate) tokens: Vec<Token>,
    /// For each output token, the most likely tokens at its position, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_tokens: Vec<Vec<Token>>,
    /// The other candidates of `best_of`, best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) best_of_sequences: Vec<BestOfSequence>,
}

/// A candidate of `best_of` that was not the best.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BestOfSequence {
    /// The text.
    pub(crate) generated_text: String,
    /// Why the output ended.
    pub(crate) finish_reason: FinishReason,
    /// Output tokens, an end token included.
    pub(crate) generated_tokens: u32,
    /// The candidate's seed.
    pub(crate) seed: Option<u64>,
    /// The prompt's tokens, with `decoder_input_details`.
    pub(crate) prefill: Vec<PrefillToken>,
    /// The output's tokens.
    pub(crate) tokens: Vec<Token>,
    /// For each output token, the most likely tokens at its position, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_tokens: Vec<Vec<Token>>,
}

/// A prompt token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PrefillToken {
    /// Token id.
    pub(crate) id: u32,
    /// The token's own text.
    pub(crate) text: String,
    /// Logprob (natural log); null for the first token.
    pub(crate) logprob: Option<f32>,
}

/// An output token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Token {
    /// Token id.
    pub(crate) id: u32,
    /// The text that this token completes.
    pub(crate) text: String,
    /// Logprob (natural log).
    pub(crate) logprob: f32,
    /// Whether this is a special token, which is not part of the text.
    pub(crate) special: bool,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
// OpenAI's routes have a type with the same name.
#[schema(as = NativeFinishReason)]
pub(crate) enum FinishReason {
    /// `max_new_tokens` was reached.
    Length,
    /// The model generated an end token.
    EosToken,
    /// The text contains a stop string.
    StopSequence,
}

/// An event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StreamResponse {
    /// The token's number, from 1.
    pub(crate) index: u32,
    /// The token.
    pub(crate) token: Token,
    /// The most likely tokens at its position, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_tokens: Vec<Token>,
    /// The complete text, on the last event.
    pub(crate) generated_text: Option<String>,
    /// Details, on the last event, if requested.
    pub(crate) details: Option<StreamDetails>,
}

/// Details of a streamed output.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StreamDetails {
    /// Why the output ended.
    pub(crate) finish_reason: FinishReason,
    /// Output tokens, an end token included.
    pub(crate) generated_tokens: u32,
    /// The seed; null if decoding was greedy.
    pub(crate) seed: Option<u64>,
    /// Prompt tokens, after truncation.
    pub(crate) input_length: usize,
}

/// The model, its limits and the server's version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Info {
    /// The served model.
    pub(crate) model_id: String,
    /// Revision of the model's files.
    pub(crate) model_sha: Option<String>,
    /// Always `text-generation`.
    pub(crate) model_pipeline_tag: &'static str,
    /// Maximum number of running requests; null while the model loads.
    pub(crate) max_concurrent_requests: Option<u32>,
    /// Maximum of `best_of`.
    pub(crate) max_best_of: u32,
    /// Maximum number of stop strings per request.
    pub(crate) max_stop_sequences: usize,
    /// Maximum number of prompt tokens; null while the model loads.
    pub(crate) max_input_tokens: Option<usize>,
    /// Maximum number of prompt and output tokens together; null while the model loads.
    pub(crate) max_total_tokens: Option<usize>,
    /// Number of tokenizer threads.
    pub(crate) validation_workers: usize,
    /// Maximum number of prompts per completion request.
    pub(crate) max_client_batch_size: usize,
    /// Default system message of chats.
    pub(crate) system_prompt: Option<String>,
    /// Default parameters of the OpenAI and Anthropic routes, from generation_config.json.
    #[schema(value_type = Object)]
    pub(crate) generation_config: BTreeMap<&'static str, serde_json::Value>,
    /// Tokens that fit in the KV cache; null while the model loads.
    pub(crate) kv_tokens: Option<u64>,
    /// Device of the workers; null while the model loads.
    pub(crate) device: Option<String>,
    /// What computes the model: `native`, or `transformers` for a model without a native
    /// implementation, which is slower; null while the model loads.
    pub(crate) model_backend: Option<String>,
    /// What is given up for this model because `transformers` computes it, in phrases, such as `no
    /// --tp` with the reason; empty for a native implementation; null while the model loads.
    pub(crate) limitations: Option<Vec<String>>,
    /// Always `penstock`.
    pub(crate) router: &'static str,
    /// Penstock's version.
    pub(crate) version: &'static str,
    /// Always null: builds do not record their commit.
    #[schema(value_type = Option<String>)]
    pub(crate) sha: Option<()>,
    /// Always null: there is no Docker image.
    #[schema(value_type = Option<String>)]
    pub(crate) docker_label: Option<()>,
}
