//! Triton's generate extension: the tensors of `/infer` as plain JSON fields.

use std::task::{Context, Poll, ready};

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use penstock_request::error::{ApiError, Excerpt};
use penstock_text::Charge;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::generation_request::{Delivery, GenerationRequest};
use super::output_stream::OutputStream;
use super::tensor::OutTensor;
use super::{ModelPath, VERSION, check};
use crate::error::ErrorResponse;
use crate::error::{NativeError, native_json};
use crate::sse::{self, EventSource, Flow, FrameBuffer, put_event};
use crate::strict::JsonText;
use crate::{App, json as body, response_headers};

/// Maximum bytes of JSON in a field other than `text_input` and `input_ids`.
const LONGEST: usize = 64 << 10;

/// Body of `/v2/models/{model}/generate` and `/generate_stream`: the tensors of `/infer` as fields.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "read field by field; here for the schema")]
pub(crate) struct KserveGenerateRequest {
    /// The prompt.
    #[schema(example = "Once upon a time")]
    text_input: Option<String>,
    /// The prompt as token ids, instead of `text_input`.
    input_ids: Option<Vec<u32>>,
    /// An id that the response repeats.
    id: Option<String>,
    /// Sampling parameters with vLLM's names; also `stream` and `exclude_input_in_output`.
    parameters: Option<Object>,
    /// Sampling parameters as a string that contains a JSON object.
    sampling_parameters: Option<String>,
    /// Must agree with the route.
    stream: Option<bool>,
    /// Whether `text_output` leaves out the prompt. Default: false; true in a stream.
    exclude_input_in_output: Option<bool>,
    /// Whether to return `finish_reason`.
    return_finish_reason: Option<bool>,
    /// Whether to return `cumulative_logprob`.
    return_cumulative_logprob: Option<bool>,
    /// Whether to return `num_input_tokens`.
    return_num_input_tokens: Option<bool>,
    /// Whether to return `num_output_tokens`.
    return_num_output_tokens: Option<bool>,
}

/// A JSON object; for the schema only.
#[derive(Debug, ToSchema)]
struct Object {}

/// A response, or an event of a stream: the outputs as fields.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "written field by field; here for the schema")]
pub(crate) struct KserveGenerateResponse {
    /// The served model.
    model_name: String,
    /// Always `1`.
    model_version: String,
    /// The request's id.
    id: Option<String>,
    /// The text, or its next part.
    text_output: String,
    /// `stop`, `length`, or `null` before the end. If requested.
    finish_reason: Option<String>,
    /// If requested.
    cumulative_logprob: Option<f32>,
    /// If requested.
    num_input_tokens: Option<u32>,
    /// If requested.
    num_output_tokens: Option<u32>,
}

/// The fields that begin every response of a request.
struct Head {
    name: String,
    id: Option<Value>,
}

/// Writes the events of an output.
struct Stream {
    head: Head,
    answer: OutputStream,
}

/// Completes a prompt given in named fields, and returns the output as a whole.
#[utoipa::path(
    post, path = "/v2/models/{model}/generate", tag = "kserve",
    operation_id = "kserve_generate",
    request_body = KserveGenerateRequest,
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses(
        (status = 200, body = KserveGenerateResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn generate(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
    request: Request,
) -> Result<Response, NativeError> {
    let (head, generation_request, charge) = read(&app, model_path, request).await?;
    generation_request.check_stream(Delivery::Whole, "generate_stream")?;
    let mut answer = OutputStream::new(
        generation_request
            .begin(&app, Delivery::Whole, charge)
            .await?,
    );
    let tensors = answer.whole().await?;
    let headers = response_headers::whole_headers(&app, std::slice::from_ref(answer.generation()));
    Ok((headers, Json(head.response(tensors))).into_response())
}

/// Completes a prompt given in named fields, as a stream of events.
#[utoipa::path(
    post, path = "/v2/models/{model}/generate_stream", tag = "kserve",
    operation_id = "kserve_generate_stream",
    request_body = KserveGenerateRequest,
    params(("model" = String, Path, description = "The served model's id, or `penstock`")),
    responses(
        (status = 200, body = KserveGenerateResponse, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn generate_stream(
    State(app): State<App>,
    model_path: Result<Path<ModelPath>, PathRejection>,
    request: Request,
) -> Result<Response, NativeError> {
    let (head, generation_request, charge) = read(&app, model_path, request).await?;
    generation_request.check_stream(Delivery::Stream, "generate")?;
    let answer = OutputStream::new(
        generation_request
            .begin(&app, Delivery::Stream, charge)
            .await?,
    );
    let headers = response_headers::stream_headers(&app, std::slice::from_ref(answer.generation()));
    let stream = Stream { head, answer };
    Ok((headers, sse::respond(stream, app.config.keep_alive)).into_response())
}

async fn read(
    app: &App,
    model_path: Result<Path<ModelPath>, PathRejection>,
    request: Request,
) -> Result<(Head, GenerationRequest, Charge), ApiError> {
    let name = check(app, model_path)?;
    body::check_media_type(&request)?;
    let (bytes, charge) = body::read_bytes(request, app).await?;
    let fields: Map<String, Value> = body::parse::<Fields>(&bytes)?.0;
    let mut generation_request = GenerationRequest::default();
    let mut head = Head { name, id: None };
    for (field, value) in fields {
        match (field.as_str(), value) {
            ("id", value) => head.id = Some(value),
            ("parameters", Value::Object(parameters)) => {
                generation_request.parameters(parameters)?;
            }
            ("parameters", _) => {
                let rule = "`parameters` must be a JSON object";
                return Err(ApiError::validation("parameters", rule));
            }
            (field, value) => generation_request.set(field, value)?,
        }
    }
    Ok((head, generation_request, charge))
}

/// The fields of an object. Only `text_input` may be a long text and only `input_ids` a long list.
struct Fields(Map<String, Value>);

impl<'de> serde::Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> serde::de::Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = match name.as_str() {
                "text_input" => map.next_value::<String>().map(Value::from)?,
                "input_ids" => {
                    let ids: super::tensor::Elements = map.next_value()?;
                    Value::Array(ids.0)
                }
                _ => {
                    let text: JsonText = map.next_value()?;
                    text.value(LONGEST).ok_or_else(|| {
                        let name = Excerpt::new(&name);
                        let rule = format_args!("`{name}` must have at most {LONGEST} bytes");
                        serde::de::Error::custom(rule)
                    })?
                }
            };
            if fields.contains_key(&name) {
                let name = Excerpt::new(&name);
                return Err(serde::de::Error::custom(format_args!(
                    "`{name}` is given twice"
                )));
            }
            fields.insert(name, value);
        }
        Ok(Fields(fields))
    }
}

impl Head {
    fn response(&self, tensors: Vec<OutTensor>) -> Value {
        let mut response = Map::new();
        if let Some(id) = &self.id {
            response.insert("id".into(), id.clone());
        }
        response.insert("model_name".into(), json!(self.name));
        response.insert("model_version".into(), json!(VERSION));
        for tensor in tensors {
            response.insert(tensor.output.name().into(), tensor.values.scalar());
        }
        Value::Object(response)
    }
}

impl EventSource for Stream {
    fn poll_events(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow> {
        let out = &mut buffer.out;
        Poll::Ready(match ready!(self.answer.poll_next(cx)) {
            Some(Ok(tensors)) => {
                put_event(out, &self.head.response(tensors).to_string());
                Flow::More
            }
            Some(Err(error)) => {
                put_event(out, &native_json(&error));
                Flow::End
            }
            None => Flow::End,
        })
    }
}
