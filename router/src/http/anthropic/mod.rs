//! Anthropic's messages, as its official clients expect them.

mod answer;
mod conversation;
mod stream;
pub(super) mod wire;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use self::answer::{MessageAnswer, TokenCount, Usage, blocks, stop_reason};
use self::conversation::conversation;
use self::stream::MessageStream;
use self::wire::MessagesRequest;
use super::error::AnthropicError;
use super::openai::check_model;
use super::{App, facts, json, reading, sse};
use crate::error::ApiError;
use crate::validate::{FieldNames, GenerateInput, Parameters, Prompt};

/// What the prompt is made of, between the quotes of a message.
const PROMPT: &str = "system` and `messages";

/// Answers a conversation, in one piece or as a stream of events.
#[utoipa::path(
    post, path = "/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, body = MessageAnswer), (status = "4XX"), (status = "5XX"))
)]
pub(super) async fn messages(
    State(app): State<App>,
    request: Request,
) -> Result<Response, AnthropicError> {
    let (mut body, charge): (MessagesRequest, _) = json::read(request, &app).await?;
    body.check()?;
    check_model(&app, Some(&body.model))?;
    let stream = body.stream == Some(true);
    let max_tokens = body.max_tokens.ok_or_else(|| {
        ApiError::validation("max_tokens", "`max_tokens` is missing: it must be > 0")
    })?;
    let (chat, guide) = conversation(&mut body, &app.generator)?;
    let parameters = Parameters {
        guide,
        max_new_tokens: Some(max_tokens),
        temperature: body.temperature.unwrap_or(1.0),
        top_p: body.top_p.unwrap_or(1.0),
        top_k: body.top_k.unwrap_or(0),
        stop: body.stop_sequences.take().unwrap_or_default(),
        ..Parameters::default()
    };
    let input = GenerateInput {
        prompt: Prompt::Chat(chat),
        parameters,
        names: FieldNames {
            prompt: PROMPT,
            ..FieldNames::CHAT
        },
        charge,
    };
    let mut generation = app.generator.generate(input).await.map_err(rename_stop)?;
    let mut answer = begin(&app, generation.facts().prompt_tokens);
    if stream {
        let headers = facts::stream_headers(&app, std::slice::from_ref(&generation));
        let events = MessageStream::new(generation, answer);
        return Ok((headers, sse::respond(events, app.config.keep_alive)).into_response());
    }
    let (read, end) = reading::collect(&mut generation, |_, _| {}).await?;
    let headers = facts::whole_headers(&app, std::slice::from_ref(&generation));
    answer.stop_reason = Some(stop_reason(end.reason, !read.calls.is_empty()));
    answer.stop_sequence = end.stop_string;
    answer.usage.output_tokens = generation.facts().generated_tokens;
    answer.content = blocks(read);
    Ok((headers, Json(answer)).into_response())
}

/// Counts the tokens of a conversation as `/v1/messages` would read it.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, body = TokenCount), (status = "4XX"))
)]
pub(super) async fn count_tokens(
    State(app): State<App>,
    request: Request,
) -> Result<Json<TokenCount>, AnthropicError> {
    let (mut body, charge): (MessagesRequest, _) = json::read(request, &app).await?;
    body.check()?;
    check_model(&app, Some(&body.model))?;
    let (chat, _) = conversation(&mut body, &app.generator)?;
    let (_, tokens) = app.generator.tokenize_chat(chat, PROMPT, charge).await?;
    Ok(Json(TokenCount {
        input_tokens: tokens.len(),
    }))
}

fn begin(app: &App, input_tokens: usize) -> MessageAnswer {
    let random = || RandomState::new().hash_one("msg");
    MessageAnswer {
        id: format!("msg_{:016x}{:016x}", random(), random()),
        r#type: "message",
        role: "assistant",
        model: app.config.model_id.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: Usage {
            input_tokens,
            output_tokens: 0,
        },
    }
}

/// The rules of `stop` are those of `stop_sequences` here.
fn rename_stop(error: ApiError) -> ApiError {
    if error.param.as_deref() != Some("stop") {
        return error;
    }
    ApiError {
        message: error.message.replace("`stop`", "`stop_sequences`"),
        param: Some("stop_sequences".into()),
        ..error
    }
}
