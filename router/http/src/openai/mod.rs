//! The OpenAI routes, as the official clients expect them.

mod chat;
mod completions;
mod logprobs;
mod models;
mod responses;
mod stream;
pub(super) mod wire;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use penstock_request::error::ApiError;
use penstock_request::validate::Choices;
use penstock_text::generation::{FinishReason, Generation, GenerationFacts, TextEvent};
use penstock_text::tool_parsers::OutputParserOptions;
use serde::Serialize;
use serde_json::json;

pub use self::chat::parse_chat_request;
pub(super) use self::chat::{__path_chat, chat};
pub(super) use self::chat::{OWN_VARIABLES, conversation};
pub(super) use self::completions::{__path_completions, completions};
use self::logprobs::{Logprobs, LogprobsBuilder, LogprobsById, TokenIds};
pub(super) use self::models::{__path_model, __path_models, model, models};
pub(super) use self::responses::{
    __path_delete_response, __path_input_items, __path_input_tokens, __path_responses,
    __path_stored_response, ResponseStore, delete_response, input_items, input_tokens, responses,
    stored_response,
};
use self::stream::ChunkStream;
use self::wire::answer::{StopReason, Usage};
use self::wire::{Delivery, StreamUsage};
use super::ids::unique;
use super::parsed_output::{self, Call};
use super::{App, response_headers, sse};

const FINGERPRINT: &str = concat!("penstock-", env!("CARGO_PKG_VERSION"));

/// The kind of a stream's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkKind {
    /// `chat.completion.chunk`
    Chat,
    /// `text_completion`
    Text,
}

/// The fields that begin every chunk and response of a request.
#[derive(Clone, Debug)]
struct ResponseMeta {
    id: String,
    created: u64,
    model: String,
}

/// A finished choice.
#[derive(Clone, Debug, PartialEq)]
struct ChoiceOutput {
    /// The text; after the prompt, if that is echoed.
    text: String,
    /// The reasoning before the text.
    reasoning: String,
    /// The tool calls.
    calls: Vec<Call>,
    /// Whether calls are returned as the legacy `function_call`.
    older: bool,
    reason: wire::answer::FinishReason,
    stop_reason: Option<StopReason>,
    facts: GenerationFacts,
    logprobs: Option<Logprobs>,
    prompt_logprobs: Option<Vec<Option<LogprobsById>>>,
    ids: Option<Box<TokenIds>>,
}

impl ChunkKind {
    /// Returns the prefix of response ids.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }

    /// Returns the field `object` of a chunk.
    pub(super) fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Text => "text_completion",
        }
    }

    /// Returns the part of a choice's JSON before its text.
    pub(super) fn before_text(self) -> &'static str {
        match self {
            Self::Chat => "\"delta\":{\"content\":",
            Self::Text => "\"text\":",
        }
    }

    /// Returns the part before the first text of a choice, where a chat sends the role.
    pub(super) fn before_first_text(self) -> &'static str {
        match self {
            Self::Chat => "\"delta\":{\"role\":\"assistant\",\"content\":",
            Self::Text => self.before_text(),
        }
    }

    /// Returns the start of the tail, up to the value of `logprobs`.
    pub(super) fn before_logprobs(self) -> &'static str {
        match self {
            Self::Chat => "},\"logprobs\":",
            Self::Text => ",\"logprobs\":",
        }
    }

    /// Returns the tail: the part of a chunk after its text.
    pub(super) fn tail(self, usage: StreamUsage) -> &'static [u8] {
        match (self, usage == StreamUsage::AtEnd) {
            (Self::Chat, false) => b"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            (Self::Chat, true) => {
                b"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
            }
            (Self::Text, false) => b",\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            (Self::Text, true) => {
                b",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
            }
        }
    }
}

impl ResponseMeta {
    fn new(prefix: &str, app: &App) -> Self {
        Self {
            id: unique(&format!("{prefix}-")),
            created: unix_time(),
            model: app.config.model_id.clone(),
        }
    }

    /// Returns the JSON of a chunk up to the value of `choices`.
    fn head(&self, object: &str) -> String {
        let fields = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        });
        let fields = fields.to_string();
        format!("{},\"choices\":", fields.trim_end_matches('}'))
    }
}

/// Returns the Unix time in seconds.
pub(super) fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Runs a generation to its end.
async fn collect(kind: ChunkKind, generation: &mut Generation) -> Result<ChoiceOutput, ApiError> {
    let mut logprobs_builder = LogprobsBuilder::begin(kind, generation);
    let mut ids = TokenIds::begin(generation);
    if !generation.parser_options().is_plain() {
        let on_event = |generation: &Generation, event: &TextEvent| {
            if let Some(logprobs_builder) = &mut logprobs_builder {
                logprobs_builder.add_event(generation, event);
            }
            if let Some(ids) = &mut ids {
                ids.add_event(event);
            }
        };
        let (output, end) = parsed_output::collect(generation, on_event).await?;
        return Ok(ChoiceOutput {
            text: format!("{}{}", generation.prompt().text, output.content),
            reasoning: output.reasoning,
            reason: finish_reason(
                end.reason,
                !output.calls.is_empty(),
                generation.parser_options(),
            ),
            stop_reason: stop_reason(end.reason, end.stop_string, generation),
            calls: output.calls,
            older: generation.parser_options().legacy_function_call,
            facts: generation.facts().clone(),
            logprobs: logprobs_builder.as_mut().map(LogprobsBuilder::take),
            prompt_logprobs: logprobs::prompt_logprobs(generation),
            ids,
        });
    }
    let mut event = TextEvent::default();
    while let Some(outcome) = generation.next(&mut event).await {
        outcome?;
        if let Some(logprobs_builder) = &mut logprobs_builder {
            logprobs_builder.add_event(generation, &event);
        }
        if let Some(ids) = &mut ids {
            ids.add_event(&event);
        }
        if let Some(mut end) = event.end.take() {
            let stop_string = end.stop_string().map(str::to_owned);
            end.text.truncate(end.content_len);
            let facts = generation.facts();
            let echo = &generation.prompt().text;
            return Ok(ChoiceOutput {
                text: format!("{echo}{}", end.text),
                reasoning: String::new(),
                calls: Vec::new(),
                older: false,
                reason: end.reason.into(),
                stop_reason: stop_reason(end.reason, stop_string, generation),
                facts: facts.clone(),
                logprobs: logprobs_builder.as_mut().map(LogprobsBuilder::take),
                prompt_logprobs: logprobs::prompt_logprobs(generation),
                ids,
            });
        }
    }
    Err(response_headers::incomplete_generation())
}

/// How a request's choices are sent.
struct ResponseOptions {
    /// The API's kind of chunks and ids.
    kind: ChunkKind,
    /// As a stream or as a whole.
    delivery: Delivery,
    /// How many choices are generated and returned.
    choices: Choices,
}

/// Responds with the choices of a request: as a stream, or as a whole once all have finished; then
/// with the best choices of each prompt, prompt by prompt.
async fn respond<T: Serialize>(
    app: &App,
    options: ResponseOptions,
    mut generations: Vec<Generation>,
    whole: impl FnOnce(ResponseMeta, (Vec<ChoiceOutput>, Usage)) -> T,
) -> Result<Response, ApiError> {
    let kind = options.kind;
    let meta = ResponseMeta::new(kind.id_prefix(), app);
    match options.delivery {
        Delivery::Stream { usage } => {
            let headers = response_headers::stream_headers(app, &generations);
            let stream = ChunkStream::new(kind, meta, generations, usage);
            Ok((headers, sse::respond(stream, app.config.keep_alive)).into_response())
        }
        Delivery::Whole => {
            let each = generations.iter_mut().map(|each| collect(kind, each));
            let answers = try_join_all(each).await?;
            let headers = response_headers::whole_headers(app, &generations);
            let usage = Usage::sum(answers.iter().map(|answer| answer.facts.usage()));
            let answers = (best(answers, options.choices), usage);
            Ok((headers, Json(whole(meta, answers))).into_response())
        }
    }
}

/// Returns the `n` best outputs of each prompt, best first. If exactly `n` were generated, their
/// order stays.
fn best(mut answers: Vec<ChoiceOutput>, choices: Choices) -> Vec<ChoiceOutput> {
    if !choices.rank() {
        return answers;
    }
    let (n, made) = (choices.n as usize, choices.made() as usize);
    for prompt in answers.chunks_mut(made) {
        prompt.sort_by(|a, b| a.facts.cmp_by_mean_logprob(&b.facts));
    }
    let indexed = answers.into_iter().enumerate();
    let selected = indexed.filter(|(index, _)| index % made < n);
    selected.map(|(_, answer)| answer).collect()
}

/// Returns what ended the output, besides its length and the model's end tokens.
fn stop_reason(
    reason: FinishReason,
    stop_string: Option<String>,
    generation: &Generation,
) -> Option<StopReason> {
    match reason {
        FinishReason::StopString => stop_string.map(StopReason::Text),
        FinishReason::StopToken => generation.stop_token().map(StopReason::Token),
        FinishReason::Length => None,
    }
}

/// Returns the finish reason. An output with tool calls gets its own reason, unless it was cut off
/// or the request named the function.
fn finish_reason(
    reason: FinishReason,
    calls: bool,
    parser_options: &OutputParserOptions,
) -> wire::answer::FinishReason {
    let decided = calls && !parser_options.named_choice;
    match wire::answer::FinishReason::from(reason) {
        wire::answer::FinishReason::Stop if decided && parser_options.legacy_function_call => {
            wire::answer::FinishReason::FunctionCall
        }
        wire::answer::FinishReason::Stop if decided => wire::answer::FinishReason::ToolCalls,
        other => other,
    }
}
