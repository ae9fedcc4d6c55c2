//! `/v1/models`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use penstock_request::error::{ApiError, ErrorKind};

use super::wire::ErrorBody;
use super::wire::answer::{Model, ModelList};
use crate::App;
use crate::error::OpenAiError;

/// Lists the served model under each of its names.
#[utoipa::path(
    get, path = "/v1/models", tag = "openai", responses((status = 200, body = ModelList))
)]
pub(crate) async fn models(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: app
            .config
            .served_names()
            .map(|name| describe(&app, name))
            .collect(),
    })
}

/// Returns a model.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "openai",
    params(("model" = String, Path, description = "A name of the served model")),
    responses((status = 200, body = Model), (status = 404, body = ErrorBody))
)]
pub(crate) async fn model(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, OpenAiError> {
    let unreadable = |_| {
        let message = "the model's name in the path must be percent-encoded UTF-8";
        ApiError::new(ErrorKind::Syntax, message)
    };
    let Path(name) = name.map_err(unreadable)?;
    app.check_model(Some(&name))?;
    let name = app.config.served_name(&name);
    Ok(Json(describe(&app, name)))
}

fn describe(app: &App, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: app.started,
        owned_by: "penstock",
        max_model_len: app
            .generator
            .token_limits()
            .ok()
            .map(|limits| limits.max_total),
    }
}
