//! Triton's extensions about models: configuration, statistics and the repository index.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use penstock_text::metrics::{Statistics, Total};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::output::Output;
use super::{INPUTS, ModelPath, VERSION, check};
use crate::error::ErrorResponse;
use crate::error::NativeError;
use crate::strict::from_object;
use crate::{App, json};

from_object!(IndexRequest);

/// Maximum bytes of the index's body, which has one field.
const LONGEST_INDEX: usize = 4 << 10;

/// A model's inputs and outputs, in Triton's format.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelConfig {
    /// The served model.
    pub(super) name: String,
    /// Always `penstock`.
    pub(super) platform: &'static str,
    /// Always `penstock`.
    pub(super) backend: &'static str,
    /// Always 0: tensors have no batch dimension. Requests are batched anyway.
    pub(super) max_batch_size: i32,
    /// Input tensors.
    pub(super) input: Vec<TensorConfig>,
    /// Output tensors.
    pub(super) output: Vec<TensorConfig>,
    /// Number of responses per request.
    pub(super) model_transaction_policy: TransactionPolicy,
}

/// A tensor, in Triton's format.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TensorConfig {
    /// The tensor's name.
    pub(super) name: &'static str,
    /// For example `TYPE_STRING`.
    pub(super) data_type: String,
    /// Number of elements; -1 = any.
    pub(super) dims: [i64; 1],
    /// Whether a request may leave out this input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) optional: Option<bool>,
}

/// Number of responses per request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransactionPolicy {
    /// Always true: a request may have several responses.
    pub(super) decoupled: bool,
}

/// Statistics of all models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AllStatistics {
    /// The one model.
    model_stats: [ModelStatistics; 1],
}

/// Statistics of a model since the server started, over all routes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelStatistics {
    /// The served model.
    pub(super) name: String,
    /// Always `1`.
    pub(super) version: &'static str,
    /// Unix time in milliseconds when a request last completed; 0 = never.
    pub(super) last_inference: u64,
    /// Completed requests.
    pub(super) inference_count: u64,
    /// Same as `inference_count`. `/metrics` counts the model's steps (`penstock_steps`).
    pub(super) execution_count: u64,
    /// Durations of the requests.
    pub(super) inference_stats: InferStatistics,
    /// Always empty: batches change with every step.
    #[schema(value_type = Vec<Object>)]
    batch_stats: [(); 0],
}

/// Durations of requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InferStatistics {
    /// From arrival to the end.
    pub(super) success: Duration,
    /// From arrival to the end, of requests that failed or were aborted.
    pub(super) fail: Duration,
    /// Waiting for a slot.
    pub(super) queue: Duration,
    /// Chat template, tokenization, validation, preparation.
    pub(super) compute_input: Duration,
    /// From the first step to the end.
    pub(super) compute_infer: Duration,
    /// Always 0: text is detokenized while the model runs.
    pub(super) compute_output: Duration,
    /// Always 0: responses are not cached. `/metrics` has the prefix cache.
    pub(super) cache_hit: Duration,
    /// Always 0.
    pub(super) cache_miss: Duration,
}

/// Number of events and their total duration.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = StatisticDuration)]
pub(crate) struct Duration {
    /// Number of events.
    pub(super) count: u64,
    /// Total nanoseconds.
    pub(super) ns: u64,
}

/// Body of `/v2/repository/index`, which is optional.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    default,
    expecting = "a JSON object"
)]
pub(crate) struct IndexRequest {
    /// Whether to list only models that are ready. Default false.
    pub(super) ready: Option<bool>,
}

/// A model of the repository.
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

/// Returns the configuration of the served model.
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "kserve", operation_id = "kserve_config",
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses((status = 200, body = ModelConfig), (status = 404, body = ErrorResponse))
)]
pub(crate) async fn config(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<Json<ModelConfig>, NativeError> {
    let name = check(&app, model_path)?;
    Ok(Json(model_config(&app, &name)))
}

/// Returns the statistics of the served model.
#[utoipa::path(
    get, path = "/v2/models/{model}/stats", tag = "kserve", operation_id = "kserve_stats",
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses((status = 200, body = AllStatistics), (status = 404, body = ErrorResponse))
)]
pub(crate) async fn stats(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
) -> Result<Json<AllStatistics>, NativeError> {
    let name = check(&app, model_path)?;
    Ok(Json(all_statistics(&app, &name)))
}

/// Returns the statistics of all models: there is one.
#[utoipa::path(
    get, path = "/v2/models/stats", tag = "kserve", operation_id = "kserve_all_stats",
    responses((status = 200, body = AllStatistics))
)]
pub(crate) async fn all_stats(State(app): State<App>) -> Json<AllStatistics> {
    Json(all_statistics(&app, &app.config.model_id))
}

/// Lists the models.
#[utoipa::path(
    post, path = "/v2/repository/index", tag = "kserve", operation_id = "kserve_index",
    request_body = IndexRequest,
    responses((status = 200, body = Vec<IndexedModel>), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn index(
    State(app): State<App>,
    request: Request,
) -> Result<Json<Vec<IndexedModel>>, NativeError> {
    let (bytes, _charge) = json::read_at_most(LONGEST_INDEX, request, &app).await?;
    let requested: IndexRequest = match bytes.as_slice() {
        // Triton's client sends no body.
        [] => IndexRequest::default(),
        body => json::parse(body)?,
    };
    Ok(Json(models(&app, requested.ready == Some(true))))
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

/// Returns the name of a datatype in Triton's configurations.
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

/// Lists the model under each of its names; empty if `ready` is true and the model is not ready.
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
