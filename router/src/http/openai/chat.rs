//! `/v1/chat/completions`.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use super::stream::Kind;
use super::wire::answer::{AssistantMessage, ChatChoice, ChatCompletion, Usage};
use super::wire::chat::ChatRequest;
use super::wire::{Common, Delivery, ErrorBody};
use super::{Answering, FINGERPRINT, check_model, collect, streamed};
use crate::chat::{Chat, Turn};
use crate::error::ApiError;
use crate::http::error::OpenAiError;
use crate::http::{App, facts, json};
use crate::validate::{FieldNames, GenerateInput, Prompt};

/// Answers a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses(
        (status = 200, body = ChatCompletion),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub(crate) async fn chat(
    State(app): State<App>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let mut body: ChatRequest = json::read(request, &app.config).await?;
    body.check()?;
    let max_tokens = max_tokens(&body)?;
    let Common {
        model,
        parameters,
        delivery,
    } = body.common(max_tokens)?;
    check_model(&app, model.as_deref())?;
    let prompt = Prompt::Chat(conversation(body)?);
    let input = GenerateInput {
        prompt,
        parameters,
        names: FieldNames::CHAT,
    };
    let generation = app.generator.generate(input).await?;
    let answering = Answering::new("chatcmpl", &app);
    let headers = facts::stream_headers(&app, &generation);
    Ok(match delivery {
        Delivery::Stream { usage } => (
            headers,
            streamed(&app, Kind::Chat, answering, vec![generation], usage),
        )
            .into_response(),
        Delivery::Whole => {
            let answer = collect(generation).await?;
            let usage = Usage::sum([(answer.prompt_tokens, answer.generated_tokens)].into_iter());
            let message = AssistantMessage {
                role: "assistant",
                content: answer.text,
            };
            let finish_reason = answer.reason.into();
            let choice = ChatChoice {
                index: 0,
                message,
                logprobs: None,
                finish_reason,
            };
            let Answering { id, created, model } = answering;
            let body = ChatCompletion {
                id,
                object: "chat.completion",
                created,
                model,
                system_fingerprint: FINGERPRINT,
                choices: vec![choice],
                usage,
            };
            (headers, Json(body)).into_response()
        }
    })
}

fn max_tokens(body: &ChatRequest) -> Result<Option<u32>, ApiError> {
    match (body.max_tokens, body.max_completion_tokens) {
        (Some(old), Some(new)) if old != new => {
            let rule = format!(
                "`max_tokens` and `max_completion_tokens` mean the same and must not differ. \
                 Given: {old} and {new}"
            );
            Err(ApiError::validation("max_completion_tokens", rule))
        }
        (old, new) => Ok(new.or(old)),
    }
}

fn conversation(body: ChatRequest) -> Result<Chat, ApiError> {
    let turns = body.messages.into_iter().enumerate();
    let messages: Vec<_> = turns
        .map(|(index, message)| message.into_turn(index))
        .collect::<Result<_, _>>()?;
    let last = messages.last();
    let open = last
        .is_some_and(|m| m.role == "assistant" && m.content.is_some() && m.tool_calls.is_none());
    let continues = body
        .continue_final_message
        .unwrap_or(open && body.add_generation_prompt != Some(true));
    let turn = match (continues, body.add_generation_prompt) {
        (true, Some(true)) => {
            let rule = "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(ApiError::validation("continue_final_message", rule));
        }
        (true, _) => Turn::Continue,
        (false, Some(false)) => Turn::Bare,
        (false, _) => Turn::Open,
    };
    Ok(Chat { messages, turn })
}
