//! `/v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::stream::Kind;
use super::wire::answer::{AssistantMessage, ChatChoice, ChatCompletion, Usage};
use super::wire::chat::ChatRequest;
use super::wire::{Common, ErrorBody};
use super::{Answer, Answering, FINGERPRINT, check_model, respond};
use crate::chat::{Chat, Turn};
use crate::error::ApiError;
use crate::http::error::OpenAiError;
use crate::http::{App, json};
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
    let (mut body, charge): (ChatRequest, _) = json::read(request, &app).await?;
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
        charge,
    };
    let choices = input.parameters.choices;
    let generations = app.generator.generate_all(input).await?;
    let told = (Kind::Chat, delivery, choices);
    Ok(respond(&app, told, generations, whole).await?)
}

fn whole(answering: Answering, (answers, usage): (Vec<Answer>, Usage)) -> ChatCompletion {
    let choice = |(index, answer): (usize, Answer)| ChatChoice {
        index,
        message: AssistantMessage {
            role: "assistant",
            content: answer.text,
        },
        logprobs: None,
        finish_reason: answer.reason.into(),
    };
    let Answering { id, created, model } = answering;
    ChatCompletion {
        id,
        object: "chat.completion",
        created,
        model,
        system_fingerprint: FINGERPRINT,
        choices: answers.into_iter().enumerate().map(choice).collect(),
        usage,
    }
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
