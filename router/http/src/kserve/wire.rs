//! JSON of the Open Inference Protocol.

use penstock_request::error::ApiError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::generation_request::GenerationRequest;
use super::output::Output;
use super::tensor::{Datatype, Elements, OutTensor, Tensor, wrong};
use crate::strict::{self, JsonText, from_object};

from_object!(InferRequest, InputTensor, RequestedOutput);

/// Maximum number of tensors in a request: more than there are names.
pub(crate) const MOST_TENSORS: usize = 64;
/// Maximum number of dimensions of a tensor.
pub(crate) const MOST_DIMENSIONS: usize = 8;
/// Maximum bytes of JSON of parameters.
const LONGEST: usize = 64 << 10;

/// Body of `/v2/models/{model}/infer`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct InferRequest {
    /// An id that the response repeats.
    pub(crate) id: Option<String>,
    /// Sampling parameters with vLLM's names.
    #[schema(value_type = Option<Object>)]
    parameters: Option<JsonText>,
    /// `text_input` or `input_ids`, and any other inputs that `/v2/models/{model}` lists.
    #[serde(deserialize_with = "strict::list::<MOST_TENSORS, _, _>")]
    inputs: Vec<InputTensor>,
    /// The outputs to return. Default: `text_output`, and those that the inputs request.
    #[serde(
        default,
        deserialize_with = "strict::list_or_null::<MOST_TENSORS, _, _>"
    )]
    outputs: Option<Vec<RequestedOutput>>,
}

/// An input tensor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "a tensor (a JSON object)"
)]
pub(crate) struct InputTensor {
    /// The input's name.
    name: String,
    /// Number of elements in each dimension.
    #[serde(deserialize_with = "strict::list::<MOST_DIMENSIONS, _, _>")]
    shape: Vec<i64>,
    /// For example `BYTES`.
    datatype: String,
    /// `binary_data_size`: the length of the data after the JSON.
    #[schema(value_type = Option<Object>)]
    parameters: Option<JsonText>,
    /// The elements, if they are not after the JSON.
    #[schema(value_type = Option<Vec<Object>>)]
    data: Option<Elements>,
}

/// An output that the client requests.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    remote = "Self",
    deny_unknown_fields,
    expecting = "an output (a JSON object)"
)]
pub(crate) struct RequestedOutput {
    /// The output's name.
    name: String,
    /// `binary_data`: whether the data follow the JSON.
    #[schema(value_type = Option<Object>)]
    parameters: Option<JsonText>,
}

/// Which outputs are sent as raw bytes after the JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    /// Only these.
    Only(Vec<Output>),
    /// All outputs.
    All,
}

/// A response of `/infer`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InferResponse {
    /// The served model.
    pub(super) model_name: String,
    /// Always `1`.
    pub(super) model_version: &'static str,
    /// The request's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    /// The requested outputs.
    pub(super) outputs: Vec<OutputTensor>,
}

/// An output tensor.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutputTensor {
    /// The output's name.
    pub(super) name: &'static str,
    /// For example `BYTES`.
    pub(super) datatype: &'static str,
    /// Number of elements in each dimension.
    pub(super) shape: Vec<i64>,
    /// `binary_data_size`, if the data follow the JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) parameters: Option<Value>,
    /// The elements, otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) data: Option<Value>,
}

/// The inputs and outputs of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelMetadata {
    /// The served model.
    pub(super) name: String,
    /// Always `["1"]`.
    pub(super) versions: [&'static str; 1],
    /// Always `penstock`.
    pub(super) platform: &'static str,
    /// Input tensors.
    pub(super) inputs: Vec<TensorMetadata>,
    /// Output tensors.
    pub(super) outputs: Vec<TensorMetadata>,
}

/// The type of a tensor.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TensorMetadata {
    /// The tensor's name.
    pub(super) name: &'static str,
    /// For example `BYTES`.
    pub(super) datatype: &'static str,
    /// Number of elements; -1 = any.
    pub(super) shape: [i64; 1],
}

/// The server's name, version and extensions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerMetadata {
    /// Always `penstock`.
    pub(super) name: &'static str,
    /// Penstock's version.
    pub(super) version: &'static str,
    /// Supported extensions of the protocol.
    pub(super) extensions: [&'static str; 4],
}

impl InferRequest {
    /// Returns the request, and which outputs are binary. `tail` is the part of the body after the
    /// JSON.
    pub(super) fn into_generation_request(
        self,
        mut tail: &[u8],
    ) -> Result<(GenerationRequest, Binary), ApiError> {
        let mut generation_request = GenerationRequest::default();
        for input in self.inputs {
            let tensor = input.into_tensor(&mut tail)?;
            let name = tensor.name.clone();
            generation_request.set(&name, tensor.value(GenerationRequest::is_list(&name))?)?;
        }
        if !tail.is_empty() {
            let left = tail.len();
            let rule = format!("`inputs`: {left} byte(s) after the JSON do not belong to a tensor");
            return Err(ApiError::validation("inputs", rule));
        }
        let parameters = object("parameters", self.parameters.as_ref())?;
        let mut binary = match parameters.get("binary_data_output") {
            Some(Value::Bool(true)) => Binary::All,
            _ => Binary::Only(Vec::new()),
        };
        generation_request.parameters(parameters)?;
        for output in self.outputs.into_iter().flatten() {
            generation_request.add_requested_output(&output.name)?;
            let parameters = object("outputs", output.parameters.as_ref())?;
            let raw = parameters.get("binary_data") == Some(&Value::Bool(true));
            if let (Binary::Only(names), Some(output), true) =
                (&mut binary, Output::parse(&output.name), raw)
            {
                names.push(output);
            }
        }
        Ok((generation_request, binary))
    }
}

impl InputTensor {
    fn into_tensor(self, tail: &mut &[u8]) -> Result<Tensor, ApiError> {
        let Self { name, shape, .. } = self;
        let datatype = Datatype::parse(&self.datatype, &name)?;
        let parameters = object("inputs", self.parameters.as_ref())?;
        let elements = match (parameters.get("binary_data_size"), self.data) {
            (None, Some(elements)) => {
                datatype.check(&elements, &name)?;
                elements
            }
            (Some(size), None) => {
                let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
                let taken = size.and_then(|size| tail.split_at_checked(size));
                let (raw, rest) = taken.ok_or_else(|| {
                    wrong(&name, "has a `binary_data_size` beyond the end of the body")
                })?;
                *tail = rest;
                datatype.read(raw, &name)?
            }
            _ => return Err(wrong(&name, "must have `data` or a `binary_data_size`")),
        };
        Tensor::new(name, &shape, elements)
    }
}

/// Parses a small JSON object; empty if there is none.
fn object(name: &'static str, text: Option<&JsonText>) -> Result<Map<String, Value>, ApiError> {
    match text.map(|text| text.value(LONGEST)) {
        None | Some(Some(Value::Null)) => Ok(Map::new()),
        Some(Some(Value::Object(map))) => Ok(map),
        _ => {
            let rule = format!("`{name}` must have a JSON object of at most {LONGEST} bytes");
            Err(ApiError::validation(name, rule))
        }
    }
}

impl Binary {
    fn takes(&self, output: Output) -> bool {
        match self {
            Self::All => true,
            Self::Only(outputs) => outputs.contains(&output),
        }
    }
}

impl InferResponse {
    /// Builds the response, and the bytes that follow its JSON.
    pub(super) fn new(
        model_name: String,
        id: Option<String>,
        tensors: Vec<OutTensor>,
        binary: &Binary,
    ) -> (Self, Vec<u8>) {
        let mut tail = Vec::new();
        let outputs = tensors.into_iter().map(|tensor| {
            let mut output = OutputTensor {
                name: tensor.output.name(),
                datatype: tensor.values.datatype(),
                shape: tensor.shape,
                parameters: None,
                data: None,
            };
            if binary.takes(tensor.output) {
                let raw = tensor.values.raw();
                output.parameters = Some(serde_json::json!({ "binary_data_size": raw.len() }));
                tail.extend(raw);
            } else {
                output.data = Some(tensor.values.json());
            }
            output
        });
        let response = Self {
            outputs: outputs.collect(),
            model_name,
            model_version: super::VERSION,
            id,
        };
        (response, tail)
    }
}
