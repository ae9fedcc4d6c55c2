//! The OpenAI routes, as the official clients expect them.

mod chat;
mod completions;
mod kind;
mod logprobs;
mod models;
mod responses;
mod stream;
mod token_ids;
pub(super) mod wire;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::json;

pub use self::chat::conversation_of;
pub(super) use self::chat::{__path_chat, __path_chat_tokenize, chat, chat_tokenize};
pub(super) use self::chat::{OWN_VARIABLES, conversation};
pub(super) use self::completions::{__path_completions, completions};
use self::kind::Kind;
use self::logprobs::{ById, Gathering, Logprobs};
pub(super) use self::models::{__path_model, __path_models, model, models};
pub(super) use self::responses::{
    __path_delete_response, __path_input_items, __path_input_tokens, __path_responses,
    __path_stored_response, ResponseStore, delete_response, input_items, input_tokens, responses,
    stored_response,
};
use self::stream::ChunkStream;
use self::token_ids::TokenIds;
use self::wire::Delivery;
use self::wire::answer::Usage;
use super::ids::unique;
use super::reading::{self, Call};
use super::{App, facts, sse};
use crate::error::{ApiError, ErrorKind, Excerpt};
use crate::generation::{Facts, FinishReason, Generation, TextEvent};
use crate::tools::Reading;
use crate::validate::Choices;

/// Names that reach the served model whatever it is called. `dummy` is what `huggingface_hub`
/// sends when it is given a URL and no model.
const ALIASES: [&str; 3] = ["penstock", "tgi", "dummy"];
const FINGERPRINT: &str = concat!("penstock-", env!("CARGO_PKG_VERSION"));

/// What all chunks and answers of one request begin with.
#[derive(Clone, Debug)]
struct Answering {
    id: String,
    created: u64,
    model: String,
}

/// An answer in one piece.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    /// After the prompt, if that is echoed.
    text: String,
    /// What the model thought before.
    thought: String,
    /// Tools that it calls.
    calls: Vec<Call>,
    /// Whether they are told by their older name.
    older: bool,
    reason: wire::answer::FinishReason,
    facts: Facts,
    logprobs: Option<Logprobs>,
    prompt_logprobs: Option<Vec<Option<ById>>>,
    ids: Option<Box<TokenIds>>,
}

impl Answering {
    fn new(prefix: &str, app: &App) -> Self {
        Self {
            id: unique(&format!("{prefix}-")),
            created: unix_time(),
            model: app.config.model_id.clone(),
        }
    }

    /// The JSON of a chunk up to the value of `choices`.
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

/// Seconds since 1970.
pub(super) fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Fails unless the request means the served model.
pub(super) fn check_model(app: &App, model: Option<&str>) -> Result<(), ApiError> {
    let mut served = app.config.served_names().chain(ALIASES);
    match model {
        Some(name) if !served.any(|served| served == name) => {
            let names: Vec<&str> = app.config.served_names().collect();
            let message = format!(
                "The model `{}` does not exist; `{}` {} served here",
                Excerpt::new(name),
                names.join("`, `"),
                if names.len() == 1 { "is" } else { "are" }
            );
            let error = ApiError::new(ErrorKind::ModelNotFound, message);
            Err(ApiError {
                param: Some("model".into()),
                ..error
            })
        }
        _ => Ok(()),
    }
}

/// Runs an answer to its end.
async fn collect(kind: Kind, generation: &mut Generation) -> Result<Answer, ApiError> {
    let mut gathering = Gathering::begin(kind, generation);
    let mut ids = TokenIds::begin(generation);
    if !generation.reading().is_plain() {
        let heed = |generation: &Generation, event: &TextEvent| {
            if let Some(gathering) = &mut gathering {
                gathering.add_event(generation, event);
            }
            if let Some(ids) = &mut ids {
                ids.add_event(event);
            }
        };
        let (read, end) = reading::collect(generation, heed).await?;
        return Ok(Answer {
            text: format!("{}{}", generation.prompt().text, read.content),
            thought: read.thought,
            reason: finish_reason(end.reason, !read.calls.is_empty(), generation.reading()),
            calls: read.calls,
            older: generation.reading().older,
            facts: generation.facts().clone(),
            logprobs: gathering.as_mut().map(Gathering::take),
            prompt_logprobs: logprobs::of_prompt(generation),
            ids,
        });
    }
    let mut event = TextEvent::default();
    while let Some(outcome) = generation.next(&mut event).await {
        outcome?;
        if let Some(gathering) = &mut gathering {
            gathering.add_event(generation, &event);
        }
        if let Some(ids) = &mut ids {
            ids.add_event(&event);
        }
        if let Some(mut end) = event.end.take() {
            end.text.truncate(end.content_len);
            let facts = generation.facts();
            let echo = &generation.prompt().text;
            return Ok(Answer {
                text: format!("{echo}{}", end.text),
                thought: String::new(),
                calls: Vec::new(),
                older: false,
                reason: end.reason.into(),
                facts: facts.clone(),
                logprobs: gathering.as_mut().map(Gathering::take),
                prompt_logprobs: logprobs::of_prompt(generation),
                ids,
            });
        }
    }
    Err(facts::unfinished())
}

/// Sends the answers to one request, prompt by prompt: as they come, or the best of each prompt
/// together once all are complete.
async fn respond<T: Serialize>(
    app: &App,
    (kind, delivery, choices): (Kind, Delivery, Choices),
    mut generations: Vec<Generation>,
    whole: impl FnOnce(Answering, (Vec<Answer>, Usage)) -> T,
) -> Result<Response, ApiError> {
    let answering = Answering::new(kind.id_prefix(), app);
    match delivery {
        Delivery::Stream { usage } => {
            let headers = facts::stream_headers(app, &generations);
            let stream = ChunkStream::new(kind, answering, generations, usage);
            Ok((headers, sse::respond(stream, app.config.keep_alive)).into_response())
        }
        Delivery::Whole => {
            let each = generations.iter_mut().map(|each| collect(kind, each));
            let answers = try_join_all(each).await?;
            let headers = facts::whole_headers(app, &generations);
            let usage = Usage::sum(answers.iter().map(|answer| answer.facts.cost()));
            let answers = (best(answers, choices), usage);
            Ok((headers, Json(whole(answering, answers))).into_response())
        }
    }
}

/// Of the answers to each prompt the `n` best, the best first; all of them in their order if that is
/// how many were made.
fn best(mut answers: Vec<Answer>, choices: Choices) -> Vec<Answer> {
    if !choices.rank() {
        return answers;
    }
    let (n, made) = (choices.n as usize, choices.made() as usize);
    for prompt in answers.chunks_mut(made) {
        prompt.sort_by(|a, b| a.facts.rank(&b.facts));
    }
    let places = answers.into_iter().enumerate();
    let told = places.filter(|(place, _)| place % made < n);
    told.map(|(_, answer)| answer).collect()
}

/// An answer that calls tools says so, unless it was cut off, or the request had named the function.
fn finish_reason(
    reason: FinishReason,
    calls: bool,
    reading: &Reading,
) -> wire::answer::FinishReason {
    let decided = calls && !reading.named;
    match wire::answer::FinishReason::from(reason) {
        wire::answer::FinishReason::Stop if decided && reading.older => {
            wire::answer::FinishReason::FunctionCall
        }
        wire::answer::FinishReason::Stop if decided => wire::answer::FinishReason::ToolCalls,
        other => other,
    }
}
