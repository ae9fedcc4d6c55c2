//! Anthropic's Messages API, as its official clients expect it.

mod conversation;
mod response;
mod stream;
pub(super) mod wire;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use penstock_request::error::ApiError;
use penstock_request::sampling_params::{TEMPERATURE, TOP_P};
use penstock_request::validate::{FieldNames, Parameters};
use penstock_text::{GenerateInput, Prompt};

use self::conversation::conversation;
use self::response::{MessageResponse, TokenCount, Usage, blocks, stop_reason};
use self::stream::MessageWriter;
use self::wire::MessagesRequest;
use super::blocks::BlockStream;
use super::error::AnthropicError;
use super::ids::unique;
use super::{App, json, parsed_output, response_headers, sse};

/// Generates the next message of a conversation, as a whole or as a stream of events.
#[utoipa::path(
    post, path = "/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, body = MessageResponse), (status = "4XX"), (status = "5XX"))
)]
pub(super) async fn messages(
    State(app): State<App>,
    request: Request,
) -> Result<Response, AnthropicError> {
    let (mut body, charge): (MessagesRequest, _) = json::read(request, &app).await?;
    body.check()?;
    app.check_model(Some(&body.model))?;
    let stream = body.stream == Some(true);
    let max_tokens = body.max_tokens.ok_or_else(|| {
        ApiError::validation("max_tokens", "`max_tokens` is missing: it must be > 0")
    })?;
    let (chat, constraint) = conversation(&mut body, &app.generator)?;
    let mut sampling = app.generator.model_text().defaults.sampling();
    sampling.top_k = body.top_k.unwrap_or(sampling.top_k);
    TEMPERATURE.assign(&mut sampling, body.temperature)?;
    TOP_P.assign(&mut sampling, body.top_p)?;
    let parameters = Parameters {
        sampling,
        constraint,
        max_new_tokens: Some(max_tokens),
        stop: body.stop_sequences.take().unwrap_or_default(),
        timeout: body.timeout,
        ..Parameters::default()
    };
    let input = GenerateInput {
        prompt: Prompt::Chat(Box::new(chat)),
        parameters,
        names: FieldNames::MESSAGES,
        charge,
    };
    let generation = app.generator.generate(input).await;
    // Validation names the field `stop`; this route calls it `stop_sequences`.
    let mut generation = generation.map_err(|error| error.renamed("stop", "stop_sequences"))?;
    let mut answer = begin(&app, Usage::from_facts(generation.facts()));
    if stream {
        let headers = response_headers::stream_headers(&app, std::slice::from_ref(&generation));
        let events = BlockStream::new(generation, MessageWriter::new(answer));
        return Ok((headers, sse::respond(events, app.config.keep_alive)).into_response());
    }
    let (output, end) = parsed_output::collect(&mut generation, |_, _| {}).await?;
    let headers = response_headers::whole_headers(&app, std::slice::from_ref(&generation));
    answer.stop_reason = Some(stop_reason(end.reason, !output.calls.is_empty()));
    answer.stop_sequence = end.stop_string;
    answer.usage = Usage::from_facts(generation.facts());
    answer.content = blocks(output);
    Ok((headers, Json(answer)).into_response())
}

/// Counts the prompt tokens of a conversation, as `/v1/messages` would render it.
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
    app.check_model(Some(&body.model))?;
    let (chat, _) = conversation(&mut body, &app.generator)?;
    let (_, tokens) = app
        .generator
        .tokenize_chat(chat, FieldNames::MESSAGES, charge)
        .await?;
    Ok(Json(TokenCount {
        input_tokens: tokens.len(),
    }))
}

fn begin(app: &App, usage: Usage) -> MessageResponse {
    MessageResponse {
        id: unique("msg_"),
        r#type: "message",
        role: "assistant",
        model: app.config.model_id.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage,
    }
}
