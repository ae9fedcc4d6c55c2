//! KServe's routes in the description.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::bounds::{Bound, items};
use super::entries;
use super::shapes::Shaped;
use crate::kserve;

#[derive(OpenApi)]
#[openapi(paths(
    kserve::server,
    kserve::model,
    kserve::model_ready,
    kserve::config,
    kserve::stats,
    kserve::all_stats,
    kserve::index,
    kserve::infer,
    kserve::generate,
    kserve::generate_stream,
))]
pub(super) struct Description;

/// The route whose body is optional; an empty body is not `null`.
const OPTIONAL_BODY: &str = "/v2/repository/index";
/// The optional version in the paths.
const VERSION: &str = "/versions/{version}";

/// Returns the bounds of the fields of these routes.
pub(super) fn bounds() -> Vec<Bound> {
    let one_of = |words: &[&str]| json!({ "enum": words });
    let datatypes = kserve::DATATYPES.map(|(name, _)| name);
    let tensors = |least| items(least..=kserve::MOST_TENSORS);
    let mut inputs = tensors(1);
    inputs["uniqueItems"] = true.into(); // more than that: no name may be given twice
    vec![
        (&["InferRequest"], "inputs", inputs),
        (&["InferRequest"], "outputs", tensors(0)),
        (
            &["InputTensor"],
            "shape",
            items(0..=kserve::MOST_DIMENSIONS),
        ),
        (&["InputTensor"], "datatype", one_of(&datatypes)),
        (&["InputTensor"], "name", one_of(&kserve::input_names())),
        (
            &["RequestedOutput"],
            "name",
            one_of(&kserve::output_names()),
        ),
        (
            &["KserveGenerateRequest"],
            "text_input",
            json!({ "minLength": 1 }),
        ),
    ]
}

/// Returns the fields that accept more than one type.
pub(super) fn shapes() -> Vec<Shaped> {
    let elements = json!([{"type": "array"}, {"type": "null"}]);
    vec![
        ("InputTensor", "data", elements.clone()),
        ("OutputTensor", "data", elements),
    ]
}

/// Marks the body that may be empty.
pub(super) fn mark_optional_body(paths: &mut Value) {
    paths[OPTIONAL_BODY]["post"]["requestBody"]["required"] = false.into();
}

/// Adds the routes of a model with a version in the path.
pub(super) fn add_versions(paths: &mut Value) {
    let of_models: Vec<(String, Value)> = entries(paths)
        .filter_map(|(path, methods)| {
            let rest = path.strip_prefix(kserve::MODEL)?;
            Some((format!("{}{VERSION}{rest}", kserve::MODEL), methods.clone()))
        })
        .collect();
    for (path, mut methods) in of_models {
        for (_, operation) in methods.as_object_mut().into_iter().flatten() {
            let name = operation["operationId"].as_str().unwrap_or_default();
            operation["operationId"] = format!("{name}_of_version").into();
            if let Some(parameters) = operation["parameters"].as_array_mut() {
                parameters.push(json!({
                    "name": "version", "in": "path", "required": true,
                    "description": "The only version of a model, `1`", "schema": { "type": "string" },
                }));
            }
        }
        paths[path] = methods;
    }
}
