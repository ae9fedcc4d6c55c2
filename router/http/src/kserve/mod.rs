//! The Open Inference Protocol (KServe v2), with Triton's generate extension: HTTP here, gRPC in
//! `grpc`. Tensor names are those of Triton's vLLM backend and of TurboMind.

mod generate;
mod generated;
mod generation_request;
pub(super) mod grpc;
mod limited_stream;
mod output;
mod output_stream;
mod repository;
mod tensor;
mod wire;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use serde::Deserialize;

pub(super) use self::generate::{
    __path_generate, __path_generate_stream, generate, generate_stream,
};
use self::generation_request::Delivery;
pub(super) use self::generation_request::input_names;
use self::output::Output;
use self::output_stream::OutputStream;
pub(super) use self::repository::{
    __path_all_stats, __path_config, __path_index, __path_stats, all_stats, config, index, stats,
};
pub(super) use self::tensor::DATATYPES;
use self::wire::{InferRequest, InferResponse, ModelMetadata, ServerMetadata, TensorMetadata};
pub(super) use self::wire::{MOST_DIMENSIONS, MOST_TENSORS};
use super::error::{ErrorResponse, NativeError};
use super::{App, json, response_headers};

/// Path of a model.
pub(super) const MODEL: &str = "/v2/models/{model}";
/// Path prefix of Triton's routes that load and unload models.
pub(super) const REPOSITORY_MODELS: &str = "/v2/repository/models/";
/// The only version of a model.
const VERSION: &str = "1";
/// Header with the length of the JSON at the start of a body; raw tensors follow it.
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Inputs in `/v2/models/{model}`: name, datatype and number of elements (-1 = any).
const INPUTS: [(&str, &str, i64); 18] = [
    ("text_input", "BYTES", 1),
    ("stream", "BOOL", 1),
    ("sampling_parameters", "BYTES", 1),
    ("exclude_input_in_output", "BOOL", 1),
    ("return_finish_reason", "BOOL", 1),
    ("return_cumulative_logprob", "BOOL", 1),
    ("return_num_input_tokens", "BOOL", 1),
    ("return_num_output_tokens", "BOOL", 1),
    ("input_ids", "UINT32", -1),
    ("input_lengths", "UINT32", 1),
    ("request_output_len", "UINT32", 1),
    ("temperature", "FP32", 1),
    ("runtime_top_k", "UINT32", 1),
    ("runtime_top_p", "FP32", 1),
    ("repetition_penalty", "FP32", 1),
    ("random_seed", "UINT64", 1),
    ("min_length", "UINT32", 1),
    ("beam_width", "UINT32", 1),
];

/// Returns the names of all outputs.
pub(super) fn output_names() -> [&'static str; 7] {
    Output::ALL.map(Output::name)
}

/// The model in a path, with its version if the path has one.
#[derive(Debug, Deserialize)]
pub(super) struct ModelPath {
    model: String,
    version: Option<String>,
}

/// Returns the routes of the protocol.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/models/stats", get(all_stats))
        .route("/v2/repository/index", post(index))
        .merge(health_routes())
        .merge(model_routes(MODEL))
        .merge(model_routes(&format!("{MODEL}/versions/{{version}}")))
}

/// Returns the routes of health checks.
pub(super) fn health_routes() -> Router<App> {
    Router::new()
        .route("/v2/health/live", get(super::live))
        .route("/v2/health/ready", get(super::ready))
}

/// Returns the routes of a model; `path` is its path, with or without a version.
fn model_routes(path: &str) -> Router<App> {
    Router::new()
        .route(path, get(model))
        .route(&format!("{path}/ready"), get(model_ready))
        .route(&format!("{path}/config"), get(config))
        .route(&format!("{path}/stats"), get(stats))
        .route(&format!("{path}/infer"), post(infer))
        .route(&format!("{path}/generate"), post(generate))
        .route(&format!("{path}/generate_stream"), post(generate_stream))
}

/// Returns the server's name, version and extensions.
#[utoipa::path(get, path = "/v2", tag = "kserve", operation_id = "kserve_server", responses((status = 200, body = ServerMetadata)))]
pub(super) async fn server() -> Json<ServerMetadata> {
    Json(server_metadata())
}

/// Returns the tensors of the served model.
#[utoipa::path(
    get, path = "/v2/models/{model}", tag = "kserve", operation_id = "kserve_model",
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses((status = 200, body = ModelMetadata), (status = 404, body = ErrorResponse))
)]
pub(super) async fn model(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<Json<ModelMetadata>, NativeError> {
    let name = check(&app, model_path)?;
    Ok(Json(model_metadata(&app, &name)))
}

/// Returns 200 if a request for this model sent now would run.
#[utoipa::path(
    get, path = "/v2/models/{model}/ready", tag = "kserve",
    operation_id = "kserve_model_ready",
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses(
        (status = 200),
        (status = 404, body = ErrorResponse),
        (status = 503, body = ErrorResponse),
    )
)]
pub(super) async fn model_ready(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<StatusCode, NativeError> {
    check(&app, model_path)?;
    match app.generator.not_ready_reason() {
        None => Ok(StatusCode::OK),
        Some(reason) => Err(ApiError::new(ErrorKind::Unavailable, reason).into()),
    }
}

/// Completes a prompt given in named tensors, and returns the output as a whole.
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "kserve", operation_id = "kserve_infer",
    request_body = InferRequest,
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses(
        (status = 200, body = InferResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(super) async fn infer(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
    request: Request,
) -> Result<Response, NativeError> {
    let name = check(&app, model_path)?;
    let header_length = header_length(request.headers())?;
    if header_length.is_none() {
        json::check_media_type(&request)?;
    }
    let (bytes, charge) = json::read_bytes(request, &app).await?;
    let (head, tail) = match header_length {
        None => (bytes.as_slice(), &[][..]),
        Some(length) => bytes.split_at_checked(length).ok_or_else(|| {
            let rule = "`Inference-Header-Content-Length` is beyond the end of the body";
            ApiError::new(ErrorKind::Syntax, rule)
        })?,
    };
    let body: InferRequest = json::parse(head)?;
    let id = body.id.clone();
    let (generation_request, binary) = body.into_generation_request(tail)?;
    drop(bytes);
    generation_request.check_stream(
        Delivery::Whole,
        "generate_stream, or ModelStreamInfer of gRPC",
    )?;
    let running = generation_request
        .begin(&app, Delivery::Whole, charge)
        .await?;
    let mut answer = OutputStream::new(running);
    let tensors = answer.whole().await?;
    let headers = response_headers::whole_headers(&app, std::slice::from_ref(answer.generation()));
    let (response, tail) = InferResponse::new(name, id, tensors, &binary);
    Ok((headers, with_tail(&response, tail)).into_response())
}

fn with_tail(response: &InferResponse, tail: Vec<u8>) -> Response {
    if tail.is_empty() {
        return Json(response).into_response();
    }
    // A response of text, numbers and plain structs always serializes.
    let mut body = serde_json::to_vec(response).unwrap_or_default();
    let length = HeaderValue::from(body.len());
    body.extend(tail);
    let kind = HeaderValue::from_static("application/octet-stream");
    let headers = [(header::CONTENT_TYPE, kind), (HEADER_LENGTH, length)];
    (headers, body).into_response()
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let Some(value) = headers.get(HEADER_LENGTH) else {
        return Ok(None);
    };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| {
        let rule = "`Inference-Header-Content-Length` must be a number of bytes";
        ApiError::new(ErrorKind::Syntax, rule)
    })
}

/// Returns the model's name in the path, if this model is served.
fn check(
    app: &App,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<String, ApiError> {
    let Path(ModelPath { model, version }) = model_path.map_err(|_| {
        let message = "the model's name in the path must be percent-encoded UTF-8";
        ApiError::new(ErrorKind::Syntax, message)
    })?;
    check_version(app, &model, version.as_deref().unwrap_or(""))?;
    Ok(model)
}

/// Fails unless the model is served in this version (empty = any).
fn check_version(app: &App, model: &str, version: &str) -> Result<(), ApiError> {
    app.check_model(Some(model))?;
    if version.is_empty() || version == VERSION {
        return Ok(());
    }
    let (model, version) = (Excerpt::new(model), Excerpt::new(version));
    let message = format!("The model `{model}` has no version `{version}`; its version is 1");
    Err(ApiError::new(ErrorKind::ModelNotFound, message))
}

fn server_metadata() -> ServerMetadata {
    ServerMetadata {
        name: "penstock",
        version: env!("CARGO_PKG_VERSION"),
        extensions: [
            "binary_tensor_data",
            "generate",
            "model_configuration",
            "statistics",
        ],
    }
}

fn model_metadata(app: &App, requested_name: &str) -> ModelMetadata {
    let inputs = INPUTS.iter().map(|(name, datatype, size)| TensorMetadata {
        name,
        datatype,
        shape: [*size],
    });
    let outputs = Output::ALL.iter().map(|output| TensorMetadata {
        name: output.name(),
        datatype: output.datatype(),
        shape: [-1],
    });
    ModelMetadata {
        name: app.config.served_name(requested_name).to_owned(),
        versions: [VERSION],
        platform: "penstock",
        inputs: inputs.collect(),
        outputs: outputs.collect(),
    }
}
