//! JSON of the native routes, with the names that TGI's have.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::beam::WireEarlyStopping;
use crate::http::strict::{self, JsonText, from_object};
use crate::http::structured_output::Grammar;

from_object!(GenerateRequest, GenerateParameters);

/// Stop strings that are read: more than any configuration allows.
const MOST_STOPS: usize = 1024;

/// Body of `/generate`, `/generate_stream` and `/`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct GenerateRequest {
    /// The prompt; not empty.
    #[schema(example = "Once upon a time")]
    pub(crate) inputs: String,
    /// Without it, the answer is sampled at temperature 1.
    pub(crate) parameters: Option<GenerateParameters>,
    /// On `/`: whether to stream. Elsewhere it must agree with the route.
    pub(crate) stream: Option<bool>,
}

/// How an answer is made.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct GenerateParameters {
    /// Positive: make so many answers and tell the one with the highest mean log-probability. Above 1
    /// only for sampled answers, without `seed`, and not in streams.
    pub(crate) best_of: Option<u32>,
    /// Search for the likeliest answers instead of sampling, as `generate` of `transformers` does with
    /// `num_beams`. A stream brings the answer at the end.
    pub(crate) use_beam_search: Option<bool>,
    /// Sequences that go on from each step; at least `n`. Default: `best_of`, or 1.
    pub(crate) beam_width: Option<u32>,
    /// Only with beam search, whose answers are ranked by the sum of their log-probabilities divided
    /// by their length to this power. Default 1.
    pub(crate) length_penalty: Option<f32>,
    /// Only with beam search: true ends it once it has `beam_width` answers, false (default) when
    /// no running one seems better, "never" when none can be.
    #[schema(value_type = Option<bool>)]
    pub(crate) early_stopping: Option<WireEarlyStopping>,
    /// > 0. Without it and without the other sampling parameters, the answer is greedy.
    pub(crate) temperature: Option<f32>,
    /// From 0.000001 to 1000000: divides positive logits, and multiplies others, of tokens that prompt
    /// or answer have.
    pub(crate) repetition_penalty: Option<f32>,
    /// From -2 to 2: taken off a token's logit for each time that the answer has it.
    pub(crate) frequency_penalty: Option<f32>,
    /// > 0: choose among so many of the likeliest tokens.
    pub(crate) top_k: Option<i32>,
    /// > 0 and < 1: choose among the likeliest tokens that have this probability together.
    pub(crate) top_p: Option<f32>,
    /// Above 0 and below 1: choose among the tokens nearest to the entropy that have this probability
    /// together.
    pub(crate) typical_p: Option<f32>,
    /// Sample even if no other parameter asks for it.
    pub(crate) do_sample: Option<bool>,
    /// > 0; without it the answer may fill the context.
    pub(crate) max_new_tokens: Option<u32>,
    /// Put the prompt before `generated_text`.
    pub(crate) return_full_text: Option<bool>,
    /// The answer ends right after the first of these.
    #[serde(default, deserialize_with = "strict::list_or_null::<MOST_STOPS, _, _>")]
    pub(crate) stop: Option<Vec<String>>,
    /// > 0: keep only so many tokens at the end of the prompt.
    pub(crate) truncate: Option<usize>,
    /// Mark the answer: `penstock watermark-detect` can tell it from other texts.
    pub(crate) watermark: Option<bool>,
    /// Tell tokens, their log-probabilities and how the answer ended.
    pub(crate) details: Option<bool>,
    /// Tell the prompt's tokens with their log-probabilities, too; not in a stream. Includes `details`.
    pub(crate) decoder_input_details: Option<bool>,
    /// The same seed draws the same random numbers, whatever shares the batch: the same
    /// tokens, but where a GPU's rounding, which depends on the batch, tips a near tie.
    pub(crate) seed: Option<u64>,
    /// 0 to 20: tell so many of the likeliest tokens in the place of each, too.
    pub(crate) top_n_tokens: Option<u32>,
    /// What the answer must spell.
    pub(crate) grammar: Option<Grammar>,
    /// Not offered yet.
    #[schema(value_type = Option<String>)]
    pub(crate) adapter_id: Option<JsonText>,
}

/// A finished answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GenerateResponse {
    /// The answer.
    pub(crate) generated_text: String,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Details>,
}

impl GenerateResponse {
    /// The answer as one of those that were not the best; none without details.
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

/// How an answer came about.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Details {
    /// Why it ended.
    pub(crate) finish_reason: FinishReason,
    /// Tokens of the answer, an end token included.
    pub(crate) generated_tokens: u32,
    /// Null if the answer is greedy.
    pub(crate) seed: Option<u64>,
    /// Tokens of the prompt, as the model got it.
    pub(crate) input_length: usize,
    /// The prompt's tokens, with `decoder_input_details`.
    pub(crate) prefill: Vec<PrefillToken>,
    /// The answer's tokens.
    pub(crate) tokens: Vec<Token>,
    /// For each token of the answer, the likeliest in its place, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_tokens: Vec<Vec<Token>>,
    /// The other answers that `best_of` made, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) best_of_sequences: Vec<BestOfSequence>,
}

/// An answer that `best_of` made and that was not the best.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BestOfSequence {
    /// The answer.
    pub(crate) generated_text: String,
    /// Why it ended.
    pub(crate) finish_reason: FinishReason,
    /// Tokens of the answer, an end token included.
    pub(crate) generated_tokens: u32,
    /// Its own.
    pub(crate) seed: Option<u64>,
    /// The prompt's tokens, with `decoder_input_details`.
    pub(crate) prefill: Vec<PrefillToken>,
    /// The answer's tokens.
    pub(crate) tokens: Vec<Token>,
    /// For each token of the answer, the likeliest in its place, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_tokens: Vec<Vec<Token>>,
}

/// A token of a prompt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PrefillToken {
    /// Vocabulary id.
    pub(crate) id: u32,
    /// What it stands for by itself.
    pub(crate) text: String,
    /// Natural log of its probability; null for the first.
    pub(crate) logprob: Option<f32>,
}

/// A token of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Token {
    /// Vocabulary id.
    pub(crate) id: u32,
    /// The text that became whole with it.
    pub(crate) text: String,
    /// Natural log of its probability.
    pub(crate) logprob: f32,
    /// Whether it is a special token, which is not part of the text.
    pub(crate) special: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
// OpenAI's routes have a type of the same name.
#[schema(as = NativeFinishReason)]
pub(crate) enum FinishReason {
    /// `max_new_tokens` reached.
    Length,
    /// The model's end token.
    EosToken,
    /// A stop string.
    StopSequence,
}

/// One event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StreamResponse {
    /// Counts from 1.
    pub(crate) index: u32,
    /// The token.
    pub(crate) token: Token,
    /// The likeliest tokens in its place, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_tokens: Vec<Token>,
    /// On the last event: the whole answer.
    pub(crate) generated_text: Option<String>,
    /// On the last event, if asked for.
    pub(crate) details: Option<StreamDetails>,
}

/// How a streamed answer came about.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StreamDetails {
    /// Why it ended.
    pub(crate) finish_reason: FinishReason,
    /// Tokens of the answer, an end token included.
    pub(crate) generated_tokens: u32,
    /// Null if the answer is greedy.
    pub(crate) seed: Option<u64>,
    /// Tokens of the prompt, as the model got it.
    pub(crate) input_length: usize,
}

/// A token of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SimpleToken {
    /// Vocabulary id.
    pub(crate) id: u32,
    /// The characters that it covers.
    pub(crate) text: String,
    /// Its first character.
    pub(crate) start: usize,
    /// One past its last character.
    pub(crate) stop: usize,
}

/// A conversation's prompt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatTokens {
    /// Its tokens.
    pub(crate) tokenize_response: Vec<SimpleToken>,
    /// Its text, as the chat template writes it.
    pub(crate) templated_text: String,
}

impl From<crate::tokenize::TextPiece> for SimpleToken {
    fn from(piece: crate::tokenize::TextPiece) -> Self {
        Self {
            id: piece.id,
            text: piece.text,
            start: piece.start,
            stop: piece.stop,
        }
    }
}

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "written by http::error; here for the schema")]
pub(crate) struct ErrorResponse {
    /// Field, rule, value.
    #[schema(example = "Input validation error: `max_new_tokens` must be strictly positive")]
    pub(crate) error: String,
    /// For programs.
    #[schema(example = "validation")]
    pub(crate) error_type: String,
}

/// What runs here.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Info {
    /// The served model.
    pub(crate) model_id: String,
    /// Revision of its files.
    pub(crate) model_sha: Option<String>,
    /// Always `text-generation`.
    pub(crate) model_pipeline_tag: &'static str,
    /// Requests that run at once; null while the model loads.
    pub(crate) max_concurrent_requests: Option<u32>,
    /// The largest `best_of`.
    pub(crate) max_best_of: u32,
    /// Stop strings per request.
    pub(crate) max_stop_sequences: usize,
    /// Tokens of a prompt; null while the model loads.
    pub(crate) max_input_tokens: Option<usize>,
    /// Prompt and answer together; null while the model loads.
    pub(crate) max_total_tokens: Option<usize>,
    /// Threads that tokenize.
    pub(crate) validation_workers: usize,
    /// Prompts per completion request.
    pub(crate) max_client_batch_size: usize,
    /// What the system says in a chat without a system turn.
    pub(crate) system_prompt: Option<String>,
    /// Tokens that the KV pool holds; null while the model loads.
    pub(crate) kv_tokens: Option<u64>,
    /// What the workers run on; null while the model loads.
    pub(crate) device: Option<String>,
    /// Always `penstock`.
    pub(crate) router: &'static str,
    /// Penstock's version.
    pub(crate) version: &'static str,
    /// Always null: a build does not know its commit.
    #[schema(value_type = Option<String>)]
    pub(crate) sha: Option<()>,
    /// Always null: there is no image of it.
    #[schema(value_type = Option<String>)]
    pub(crate) docker_label: Option<()>,
}
