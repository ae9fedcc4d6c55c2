//! Output formats of model families on the chat route: what the request changes in prompt, grammar
//! and answer.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::grammar_spec::GrammarFormat;
use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::Server;

const CHAT: &str = "/v1/chat/completions";
const HARMONY: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|start|>\
    {{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{% if false %}<|channel|>analysis\
    <|message|>{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
const QWEN: &str =
    "{% if tools %}{{ tools | tojson }}<tool_call>\n<function={% endif %}{{ messages[0].content }}";
const THOUGHT: &str = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";

fn server(template: &str) -> Server {
    let server = Server::with(Some(template), |_| {});
    server.backend.set_length(3000);
    server
}

fn body(fields: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn prompt(server: &Server) -> String {
    let ids = &server.backend.last().prompt;
    ids.iter().map(|&id| id as u8 as char).collect()
}

#[tokio::test]
async fn harmony_channels_become_reasoning_content_and_calls() {
    let server = server(HARMONY);
    let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"city\": \"1\"}";
    server.backend.play(&[THOUGHT, call], End::StopToken);
    let choice = server.post(CHAT, body(json!({}))).await.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["reasoning_content"], "Hm.");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        *function,
        json!({"name": "f", "arguments": "{\"city\": \"1\"}"})
    );
    assert!(prompt(&server).ends_with("<|start|>assistant"));
    let answer = "<|channel|>final<|message|>Yes.";
    let stop = json!({"tools": null, "stream": true});
    server.backend.play(&[THOUGHT, answer], End::StopToken);
    let text = server.post(CHAT, body(stop)).await.text();
    assert!(text.contains("\"reasoning_content\":\"Hm.\""), "{text}");
    assert!(text.contains("Yes.") && !text.contains("final"), "{text}");
}

#[tokio::test]
async fn a_document_in_harmony_follows_the_header_of_its_channel() {
    let server = server(HARMONY);
    server.backend.play(&["{}"], End::StopToken);
    let format = json!({"type": "json_object"});
    let fields = json!({"tools": null, "response_format": format});
    let answer = server.post(CHAT, body(fields)).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "{}");
    let end = "<|start|>assistant<|channel|>final<|message|>";
    assert!(prompt(&server).ends_with(end), "{}", prompt(&server));
    assert_eq!(server.backend.last().grammar.unwrap().reasoning, None);
    for fields in [
        json!({"response_format": format}),
        json!({"thinking_token_budget": 5}),
    ] {
        let refused = server.post(CHAT, body(fields)).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
    }
}

#[tokio::test]
async fn forced_calls_of_harmony_come_without_reasoning() {
    let server = server(HARMONY);
    server
        .backend
        .play(&[" to=functions.f json{\"city\":\"x\"}"], End::StopToken);
    let fields = json!({"tool_choice": "required"});
    let choice = server.post(CHAT, body(fields)).await.json()["choices"][0].clone();
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        *function,
        json!({"name": "f", "arguments": "{\"city\":\"x\"}"})
    );
    assert_eq!(choice["message"]["content"], Value::Null);
    let grammar = server.backend.last().grammar.unwrap();
    assert_eq!(grammar.constraint.kind, GrammarFormat::ToolCalls);
    assert_eq!(grammar.reasoning, None);
}

#[tokio::test]
async fn values_without_quotes_have_the_types_of_the_requests_schema() {
    let server = server(QWEN);
    let call = "<tool_call>\n<function=f>\n<parameter=city>\n1\n</parameter>\n<parameter=days>\n1\n\
                </parameter>\n</function>\n</tool_call>";
    server.backend.play(&[call], End::StopToken);
    let answer = server.post(CHAT, body(json!({}))).await.json();
    let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(function["arguments"], "{\"city\": \"1\", \"days\": 1}");
}
