//! What Triton's clients ask of a model beside its answers: its configuration, what it has done, and
//! which models there are.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::output::Output;
use super::{INPUTS, ModelPath, VERSION, check};
use crate::http::error::NativeError;
use crate::http::native::wire::ErrorResponse;
use crate::http::strict::from_object;
use crate::http::{App, json};
use crate::metrics::{Statistics, Total};

from_object!(IndexRequest);

/// Bytes of the index's body, which has one field.
const LONGEST_INDEX: usize = 4 << 10;

/// What a model takes and gives, in Triton's words.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelConfig {
    /// The served model.
    pub(super) name: String,
    /// Always `penstock`.
    pub(super) platform: &'static str,
    /// Always `penstock`.
    pub(super) backend: &'static str,
    /// Always 0: tensors have no batch dimension. Requests share steps all the same.
    pub(super) max_batch_size: i32,
    /// Tensors that it takes.
    pub(super) input: Vec<TensorConfig>,
    /// Tensors that it gives.
    pub(super) output: Vec<TensorConfig>,
    /// How requests are answered.
    pub(super) model_transaction_policy: TransactionPolicy,
}

/// A kind of tensor, in Triton's words.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TensorConfig {
    /// What it is for.
    pub(super) name: &'static str,
    /// Such as `TYPE_STRING`.
    pub(super) data_type: String,
    /// -1 = any number.
    pub(super) dims: [i64; 1],
    /// Whether a request may leave it out; of inputs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) optional: Option<bool>,
}

/// How requests are answered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransactionPolicy {
    /// Always true: a request may have several responses.
    pub(super) decoupled: bool,
}

/// What all models have done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AllStatistics {
    /// One.
    model_stats: [ModelStatistics; 1],
}

/// What a model has done since the server started, on whatever route it was asked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelStatistics {
    /// The served model.
    pub(super) name: String,
    /// Always `1`.
    pub(super) version: &'static str,
    /// When a request was last answered to its end: Unix time in milliseconds, 0 = never.
    pub(super) last_inference: u64,
    /// Requests answered to their end.
    pub(super) inference_count: u64,
    /// The same: steps of the model are in `/metrics` (`penstock_steps`).
    pub(super) execution_count: u64,
    /// How long its requests took.
    pub(super) inference_stats: InferStatistics,
    /// Always empty: steps have no batches that requests stay in.
    #[schema(value_type = Vec<Object>)]
    batch_stats: [(); 0],
}

/// How long requests took.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InferStatistics {
    /// From arrival to the end.
    pub(super) success: Duration,
    /// Of those that failed, or whose clients went away.
    pub(super) fail: Duration,
    /// Waiting for a place.
    pub(super) queue: Duration,
    /// Chat template, tokenizer, rules, preparation.
    pub(super) compute_input: Duration,
    /// From the first step to the end.
    pub(super) compute_infer: Duration,
    /// Always 0: text is made while the model runs.
    pub(super) compute_output: Duration,
    /// Always 0: no answer is kept. What is kept of prompts is in `/metrics`.
    pub(super) cache_hit: Duration,
    /// Always 0, too.
    pub(super) cache_miss: Duration,
}

/// How often something happened, and how long it took together.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = StatisticDuration)]
pub(crate) struct Duration {
    /// How often.
    pub(super) count: u64,
    /// Nanoseconds.
    pub(super) ns: u64,
}

/// Body of `/v2/repository/index`; may be left out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    default,
    expecting = "a JSON object"
)]
pub(crate) struct IndexRequest {
    /// Only models that would answer now. Default false.
    pub(super) ready: Option<bool>,
}

/// A model that is there.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IndexedModel {
    /// The served model.
    pub(super) name: String,
    /// Always `1`.
    pub(super) version: &'static str,
    /// `READY` or `UNAVAILABLE`.
    pub(super) state: &'static str,
    /// Why it is unavailable.
    pub(super) reason: String,
}

/// Tells the served model's configuration.
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "kserve", operation_id = "kserve_config",
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses((status = 200, body = ModelConfig), (status = 404, body = ErrorResponse))
)]
pub(in crate::http) async fn config(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<Json<ModelConfig>, NativeError> {
    let name = check(&app, model_path)?;
    Ok(Json(model_config(&app, &name)))
}

/// Tells what the served model has done since the server started.
#[utoipa::path(
    get, path = "/v2/models/{model}/stats", tag = "kserve", operation_id = "kserve_stats",
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses((status = 200, body = AllStatistics), (status = 404, body = ErrorResponse))
)]
pub(in crate::http) async fn stats(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<Json<AllStatistics>, NativeError> {
    let name = check(&app, model_path)?;
    Ok(Json(all_statistics(&app, &name)))
}

/// The same of all models: there is one.
#[utoipa::path(
    get, path = "/v2/models/stats", tag = "kserve", operation_id = "kserve_all_stats",
    responses((status = 200, body = AllStatistics))
)]
pub(in crate::http) async fn all_stats(State(app): State<App>) -> Json<AllStatistics> {
    Json(all_statistics(&app, &app.config.model_id))
}

/// Tells which models there are.
#[utoipa::path(
    post, path = "/v2/repository/index", tag = "kserve", operation_id = "kserve_index",
    request_body = IndexRequest,
    responses((status = 200, body = Vec<IndexedModel>), (status = "4XX", body = ErrorResponse))
)]
pub(in crate::http) async fn index(
    State(app): State<App>,
    request: Request,
) -> Result<Json<Vec<IndexedModel>>, NativeError> {
    let (bytes, _charge) = json::read_at_most(LONGEST_INDEX, request, &app).await?;
    let asked: IndexRequest = match bytes.as_slice() {
        // As Triton's own client asks.
        [] => IndexRequest::default(),
        body => json::parse(body)?,
    };
    Ok(Json(models(&app, asked.ready == Some(true))))
}

pub(super) fn model_config(app: &App, requested_name: &str) -> ModelConfig {
    let inputs = INPUTS.iter().map(|(name, datatype, size)| TensorConfig {
        name,
        data_type: data_type(datatype),
        dims: [*size],
        optional: Some(true),
    });
    let outputs = Output::ALL.iter().map(|output| TensorConfig {
        name: output.name(),
        data_type: data_type(output.datatype()),
        dims: [-1],
        optional: None,
    });
    ModelConfig {
        name: app.config.served_name(requested_name).to_owned(),
        platform: "penstock",
        backend: "penstock",
        max_batch_size: 0,
        input: inputs.collect(),
        output: outputs.collect(),
        model_transaction_policy: TransactionPolicy { decoupled: true },
    }
}

/// The protocol's name of a datatype in Triton's configurations.
fn data_type(datatype: &str) -> String {
    match datatype {
        "BYTES" => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

fn all_statistics(app: &App, requested_name: &str) -> AllStatistics {
    AllStatistics {
        model_stats: [model_statistics(app, requested_name)],
    }
}

pub(super) fn model_statistics(app: &App, requested_name: &str) -> ModelStatistics {
    let Statistics {
        last_success,
        success,
        failure,
        validation,
        queue,
        inference,
    } = app.generator.metrics().statistics();
    ModelStatistics {
        name: app.config.served_name(requested_name).to_owned(),
        version: VERSION,
        last_inference: last_success,
        inference_count: success.count,
        execution_count: success.count,
        inference_stats: InferStatistics {
            success: success.into(),
            fail: failure.into(),
            queue: queue.into(),
            compute_input: validation.into(),
            compute_infer: inference.into(),
            compute_output: Duration::default(),
            cache_hit: Duration::default(),
            cache_miss: Duration::default(),
        },
        batch_stats: [],
    }
}

/// The model by each of its names, if it would answer now or `ready` is false.
pub(super) fn models(app: &App, ready: bool) -> Vec<IndexedModel> {
    let obstacle = app.generator.not_ready_reason();
    if ready && obstacle.is_some() {
        return Vec::new();
    }
    let state = if obstacle.is_none() {
        "READY"
    } else {
        "UNAVAILABLE"
    };
    let reason = obstacle.unwrap_or_default();
    let model = |name: &str| IndexedModel {
        name: name.to_owned(),
        version: VERSION,
        state,
        reason: reason.clone(),
    };
    app.config.served_names().map(model).collect()
}

impl From<Total> for Duration {
    fn from(total: Total) -> Self {
        Self {
            count: total.count,
            ns: u64::try_from(total.time.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
