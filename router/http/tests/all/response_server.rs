//! Helpers of the tests of `/v1/responses`.

#![allow(dead_code, unreachable_pub, reason = "each test uses its own part")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_http::RouterConfig;
use penstock_text::config::Format;
use penstock_text::tool_parsers::ReasoningFormat;
use serde_json::{Value, json};

use crate::scripted::Server;

pub const PATH: &str = "/v1/responses";
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\":{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content or '' }}{{ m.reasoning_content }}\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ m.tool_call_id }}/{% endfor %}\
    {% if add_generation_prompt %}>{% endif %}\
    {% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}";
pub const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}</tool_call>";
pub const ARGUMENTS: &str = "{\"a\": \"b\"}";

pub fn server() -> Server {
    server_with(|_| {})
}

pub fn server_with(change: impl FnOnce(&mut RouterConfig)) -> Server {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.reasoning_format = Format::Fixed(ReasoningFormat::Think);
        change(config);
    });
    server.backend.set_length(2000);
    server
}

pub fn body(fields: Value) -> Value {
    let mut body = json!({"model": "brook", "input": "hi"});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

pub fn tool() -> Value {
    json!({"type": "function", "name": "f", "description": "d", "strict": false,
           "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}})
}

pub fn prompt(server: &Server) -> String {
    let ids = server.backend.last().prompt;
    ids.iter().map(|&id| id as u8 as char).collect()
}
