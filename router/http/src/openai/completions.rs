//! `/v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use penstock_request::error::{ApiError, ErrorKind};
use penstock_request::validate::FieldNames;
use penstock_text::GenerateInput;

use super::wire::answer::{Completion, TextChoice, Usage};
use super::wire::completions::CompletionRequest;
use super::wire::{Common, Delivery, ErrorBody};
use super::{ChoiceOutput, ChunkKind, FINGERPRINT, ResponseMeta, ResponseOptions, respond};
use crate::error::OpenAiError;
use crate::{App, json};

/// Completes one or several prompts.
#[utoipa::path(
    post, path = "/v1/completions", tag = "openai", request_body = CompletionRequest,
    responses(
        (status = 200, body = Completion),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub(crate) async fn completions(
    State(app): State<App>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (mut body, charge): (CompletionRequest, _) = json::read(request, &app).await?;
    body.check()?;
    let mut common = body.common(body.max_tokens, &app.generator.model_text().defaults)?;
    body.apply_best_of(&mut common.parameters);
    check_stream(&common)?;
    common.parameters.logprob_request = body.logprob_request()?;
    app.check_model(common.model.as_deref())?;
    check_batch(body.prompt.len(), app.config.max_client_batch_size)?;
    let Common {
        parameters,
        delivery,
        ..
    } = common;
    let choices = parameters.choices;
    let inputs = body
        .prompts()?
        .into_iter()
        .map(move |prompt| GenerateInput {
            prompt,
            parameters: parameters.clone(),
            names: FieldNames::COMPLETIONS,
            charge: charge.clone(),
        });
    let generations = app.generator.generate_batch(inputs).await?;
    let options = ResponseOptions {
        kind: ChunkKind::Text,
        delivery,
        choices,
    };
    Ok(respond(&app, options, generations, whole).await?)
}

fn check_stream(common: &Common) -> Result<(), ApiError> {
    let streams = matches!(common.delivery, Delivery::Stream { .. });
    if streams && common.parameters.choices.rank() {
        let rule = "`best_of` must equal `n` when `stream` is true: the best are known at the end";
        return Err(ApiError::validation("best_of", rule));
    }
    Ok(())
}

fn check_batch(given: usize, most: usize) -> Result<(), ApiError> {
    match given {
        0 => Err(ApiError::validation("prompt", "`prompt` cannot be empty")),
        n if n > most => {
            let rule = format!(
                "Number of prompts exceeds the maximum allowed batch size of {most}. Given: {n}"
            );
            let error = ApiError::new(ErrorKind::BatchSize, rule);
            Err(ApiError {
                param: Some("prompt".into()),
                ..error
            })
        }
        _ => Ok(()),
    }
}

fn whole(meta: ResponseMeta, (answers, usage): (Vec<ChoiceOutput>, Usage)) -> Completion {
    let choices = answers
        .into_iter()
        .enumerate()
        .map(|(index, mut answer)| TextChoice {
            index,
            prompt_token_ids: (answer.ids.as_mut()).and_then(|ids| ids.take_prompt()),
            token_ids: answer.ids.map(|mut ids| ids.take()),
            text: answer.text,
            logprobs: answer.logprobs,
            prompt_logprobs: answer.prompt_logprobs,
            finish_reason: answer.reason,
            stop_reason: answer.stop_reason,
        });
    let ResponseMeta { id, created, model } = meta;
    Completion {
        id,
        object: ChunkKind::Text.object(),
        created,
        model,
        system_fingerprint: FINGERPRINT,
        choices: choices.collect(),
        usage,
    }
}
