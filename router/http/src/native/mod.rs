//! The native routes, with TGI's names, defaults and event format.

mod parameters;
mod stream;
pub(super) mod wire;

use penstock_request::error::ApiError;
use penstock_request::logprobs;
use penstock_request::types::Candidate;
use penstock_text::Charge;
use penstock_text::generation::{FinishReason, Generation, TextEvent};

pub(super) use self::parameters::NEUTRAL;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;

use self::parameters::{ResponseOptions, check_streamable, parse_request};
use self::stream::NativeStream;
use self::wire::{Details, GenerateRequest, GenerateResponse, Info, PrefillToken, Token};
use super::error::{ErrorResponse, NativeError};
use super::{App, json, response_headers, sse};

/// Completes a prompt and returns the output as a whole.
#[utoipa::path(
    post, path = "/generate", tag = "native", request_body = GenerateRequest,
    responses(
        (status = 200, body = GenerateResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(super) async fn generate(
    State(app): State<App>,
    request: Request,
) -> Result<Response, NativeError> {
    let (body, charge): (GenerateRequest, _) = json::read(request, &app).await?;
    check_stream(body.stream, false, "/generate_stream")?;
    let (headers, answer) = whole(&app, body, charge).await?;
    Ok((headers, Json(answer)).into_response())
}

/// Completes a prompt as a stream of events, one per token.
#[utoipa::path(
    post, path = "/generate_stream", tag = "native", request_body = GenerateRequest,
    responses(
        (status = 200, body = wire::StreamResponse, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(super) async fn generate_stream(
    State(app): State<App>,
    request: Request,
) -> Result<Response, NativeError> {
    let (body, charge): (GenerateRequest, _) = json::read(request, &app).await?;
    check_stream(body.stream, true, "/generate")?;
    Ok(streamed(&app, body, charge).await?)
}

/// Same as `/generate`, in a list of one, or as `/generate_stream` if `stream` is true.
#[utoipa::path(
    post, path = "/", tag = "native", request_body = GenerateRequest,
    responses(
        (status = 200, body = Vec<GenerateResponse>),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(super) async fn compatible(
    State(app): State<App>,
    request: Request,
) -> Result<Response, NativeError> {
    let (body, charge): (GenerateRequest, _) = json::read(request, &app).await?;
    if body.stream == Some(true) {
        return Ok(streamed(&app, body, charge).await?);
    }
    let (headers, answer) = whole(&app, body, charge).await?;
    Ok((headers, Json([answer])).into_response())
}

/// Returns the model, its limits and the server's version.
#[utoipa::path(get, path = "/info", tag = "native", responses((status = 200, body = Info)))]
pub(super) async fn info(State(app): State<App>) -> Json<Info> {
    let limits = app.generator.limits();
    let tokens = app.generator.token_limits().ok();
    let defaults = &app.generator.model_text().defaults;
    Json(Info {
        model_id: app.config.model_id.clone(),
        model_sha: app.config.model_revision.clone(),
        model_pipeline_tag: "text-generation",
        max_concurrent_requests: limits.as_ref().map(|l| l.max_slots),
        max_best_of: app.config.text.limits.max_best_of,
        max_stop_sequences: app.config.text.limits.max_stop_sequences,
        max_input_tokens: tokens.map(|t| t.max_input),
        max_total_tokens: tokens.map(|t| t.max_total),
        validation_workers: app.config.text.tokenizer_threads.get(),
        max_client_batch_size: app.config.max_client_batch_size,
        system_prompt: app.config.text.system_prompt.as_deref().map(str::to_owned),
        generation_config: defaults.given().iter().cloned().collect(),
        kv_tokens: limits.as_ref().map(|l| l.kv_tokens),
        device: limits.as_ref().map(|l| l.device_name.clone()),
        model_backend: limits.as_ref().map(|l| l.model_backend.clone()),
        limitations: limits.map(|l| l.limitations),
        router: "penstock",
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
    })
}

fn check_stream(stream: Option<bool>, here: bool, other: &str) -> Result<(), ApiError> {
    match stream {
        Some(requested) if requested != here => {
            let rule = format!("`stream` must be {here} on this route; use {other}");
            Err(ApiError::validation("stream", rule))
        }
        _ => Ok(()),
    }
}

async fn streamed(app: &App, body: GenerateRequest, charge: Charge) -> Result<Response, ApiError> {
    let characters = body.inputs.chars().count();
    let (input, options) = parse_request(body, charge)?;
    if input.parameters.choices.rank() {
        let rule = "`best_of` != 1 is not supported when streaming tokens";
        return Err(ApiError::validation("best_of", rule));
    }
    check_streamable(&input)?;
    let generation = app.generator.generate(input).await?;
    let mut headers = response_headers::stream_headers(app, std::slice::from_ref(&generation));
    response_headers::put_prompt_characters(&mut headers, characters);
    let stream = NativeStream::new(generation, options);
    Ok((headers, sse::respond(stream, app.config.keep_alive)).into_response())
}

async fn whole(
    app: &App,
    body: GenerateRequest,
    charge: Charge,
) -> Result<(HeaderMap, GenerateResponse), ApiError> {
    let characters = body.inputs.chars().count();
    let (input, options) = parse_request(body, charge)?;
    let mut generations = app.generator.generate_all(input).await?;
    let answers = generations.iter_mut().map(|each| collect(each, &options));
    let answers = try_join_all(answers).await?;
    let mut headers = response_headers::whole_headers(app, &generations);
    response_headers::put_prompt_characters(&mut headers, characters);
    let mut ranked: Vec<_> = generations.iter().zip(answers).collect();
    ranked.sort_by(|(a, _), (b, _)| a.facts().cmp_by_mean_logprob(b.facts()));
    let mut ranked = ranked.into_iter().map(|(_, answer)| answer);
    let mut answer = ranked
        .next()
        .ok_or_else(response_headers::incomplete_generation)?;
    if let Some(details) = &mut answer.details {
        details.best_of_sequences = ranked.filter_map(GenerateResponse::into_sequence).collect();
    }
    Ok((headers, answer))
}

async fn collect(
    generation: &mut Generation,
    options: &ResponseOptions,
) -> Result<GenerateResponse, ApiError> {
    let (mut tokens, mut top_tokens) = (Vec::new(), Vec::new());
    let mut event = TextEvent::default();
    while let Some(outcome) = generation.next(&mut event).await {
        outcome?;
        if options.details {
            tokens.extend(event.tokens().map(|(token, text, _)| Token {
                id: token.id,
                text: text.to_owned(),
                logprob: token.logprob,
                special: token.special,
            }));
            top_tokens.extend(
                event
                    .top_logprobs
                    .iter()
                    .map(|top| candidates(generation, top)),
            );
        }
        let Some(end) = event.end.take() else {
            continue;
        };
        let facts = generation.facts();
        let details = options.details.then(|| Details {
            finish_reason: finish_reason(end.reason),
            generated_tokens: facts.generated_tokens,
            seed: facts.seed,
            input_length: facts.prompt_tokens,
            prefill: prefill(generation),
            tokens: std::mem::take(&mut tokens),
            top_tokens: std::mem::take(&mut top_tokens),
            best_of_sequences: Vec::new(),
        });
        return Ok(GenerateResponse {
            generated_text: format!("{}{}", options.prefix, end.text),
            details,
        });
    }
    Err(response_headers::incomplete_generation())
}

/// Returns the top candidates at the position of a token.
fn candidates(generation: &Generation, top: &[Candidate]) -> Vec<Token> {
    let vocabulary = &generation.model_text().vocabulary;
    let token = |&Candidate { id, logprob }: &Candidate| Token {
        id,
        text: vocabulary.piece_text(id),
        logprob,
        special: vocabulary.is_special(id),
    };
    top.iter().map(token).collect()
}

/// Returns the prompt's tokens with their logprobs; empty unless requested.
fn prefill(generation: &Generation) -> Vec<PrefillToken> {
    let prompt = generation.prompt();
    let prompt_logprobs = prompt.tokens.iter().map(|token| Some(token.logprob));
    let logprobs = std::iter::once(None).chain(prompt_logprobs);
    let tokens = prompt.ids.iter().zip(logprobs);
    let token = |(&id, logprob): (&u32, Option<f32>)| PrefillToken {
        id,
        text: generation.model_text().vocabulary.piece_text(id),
        logprob: logprob.map(logprobs::clamp_logprob),
    };
    tokens.map(token).collect()
}

fn finish_reason(reason: FinishReason) -> wire::FinishReason {
    match reason {
        FinishReason::Length => wire::FinishReason::Length,
        FinishReason::StopToken => wire::FinishReason::EosToken,
        FinishReason::StopString => wire::FinishReason::StopSequence,
    }
}
