//! The fields of the request that a response repeats.

use penstock_request::validate::Parameters;
use penstock_text::Charge;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::openai::wire::metadata::Metadata;
use crate::openai::wire::responses::{FunctionTool, ResponsesRequest};
use crate::strict::JsonText;

/// Members of the response that repeat the request. They are kept as text, since a tree of the
/// tools' schemas would take forty times as much memory, and since a stream writes them several
/// times.
pub(super) struct RequestEcho {
    /// The members, each after a comma.
    pub(super) members: String,
    /// Charge of the request's body, which contains them.
    _charge: Charge,
}

/// The request's parameters.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "written by `members`; here for the schema")]
#[schema(as = RequestEcho)]
pub(super) struct RequestEchoFields {
    /// As in the request.
    instructions: Option<String>,
    /// As in the request.
    #[schema(value_type = Object)]
    metadata: (),
    /// As in the request.
    max_output_tokens: Option<u32>,
    /// Always null.
    max_tool_calls: Option<u32>,
    /// Whether the output may have several calls.
    parallel_tool_calls: bool,
    /// As in the request.
    previous_response_id: Option<String>,
    /// The effort, as in the request.
    #[schema(value_type = Object)]
    reasoning: (),
    /// Always `default`.
    service_tier: &'static str,
    /// Always false.
    background: bool,
    /// The temperature in use.
    temperature: f32,
    /// The format, as in the request.
    #[schema(value_type = Object)]
    text: (),
    /// As in the request; default `auto`.
    #[schema(value_type = Object)]
    tool_choice: (),
    /// As in the request.
    #[schema(value_type = Vec<Object>)]
    tools: (),
    /// As in the request; default 0.
    top_logprobs: u32,
    /// The `top_p` in use.
    top_p: f32,
    /// Always `disabled`.
    truncation: &'static str,
}

impl RequestEcho {
    /// Creates the echo of a request; `parameters` supply the defaults.
    pub(super) fn new(body: &ResponsesRequest, parameters: &Parameters, charge: Charge) -> Self {
        Self {
            members: members(body, parameters),
            _charge: charge,
        }
    }
}

fn members(body: &ResponsesRequest, parameters: &Parameters) -> String {
    let effort = body.reasoning.as_ref().and_then(|r| r.effort.as_deref());
    let verbosity = body
        .text
        .as_ref()
        .and_then(|text| text.verbosity.as_deref());
    let format = body.text.as_ref().and_then(|text| text.format.as_ref());
    let format = format.map_or(r#"{"type":"text"}"#, |format| format.text.as_str());
    let choice = body.tool_choice.as_ref();
    let choice = choice.map_or(r#""auto""#, |choice| choice.text.as_str());
    let metadata = body.metadata.as_ref();
    let members = [
        ("instructions", json(&body.instructions)),
        ("metadata", metadata.map_or("{}".into(), Metadata::to_json)),
        ("max_output_tokens", json(&parameters.max_new_tokens)),
        ("max_tool_calls", json(&())),
        (
            "parallel_tool_calls",
            json(&body.parallel_tool_calls.unwrap_or(true)),
        ),
        ("previous_response_id", json(&body.previous_response_id)),
        (
            "reasoning",
            format!("{{\"effort\":{},\"summary\":null}}", json(&effort)),
        ),
        ("service_tier", json("default")),
        ("background", json(&false)),
        ("temperature", json(&parameters.sampling.temperature)),
        (
            "text",
            format!(
                "{{\"format\":{format},\"verbosity\":{}}}",
                json(verbosity.unwrap_or("medium"))
            ),
        ),
        ("tool_choice", choice.to_owned()),
        ("tools", tools(body.tools.as_deref().unwrap_or_default())),
        ("top_logprobs", json(&body.top_logprobs.unwrap_or(0))),
        ("top_p", json(&parameters.sampling.top_p)),
        ("truncation", json("disabled")),
    ];
    let members = members.map(|(name, json)| format!(",\"{name}\":{json}"));
    members.concat()
}

fn tools(tools: &[FunctionTool]) -> String {
    let tools: Vec<String> = tools.iter().map(tool).collect();
    format!("[{}]", tools.join(","))
}

fn tool(tool: &FunctionTool) -> String {
    let parameters = tool.parameters.as_ref().map_or("null", JsonText::as_str);
    format!(
        "{{\"type\":\"function\",\"name\":{},\"description\":{},\"parameters\":{parameters},\"strict\":{}}}",
        Value::from(tool.name.as_str()),
        json(&tool.description),
        tool.strict == Some(true)
    )
}

/// Serializes a value that cannot fail to serialize.
fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
