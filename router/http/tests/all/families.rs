//! Output formats of model families on the chat route: what the request changes in prompt, grammar
//! and answer.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::grammar_spec::{GrammarFormat, ReasoningMarkers};
use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::Server;

const CHAT: &str = "/v1/chat/completions";
const HARMONY: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|start|>\
    {{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{% if false %}<|channel|>analysis\
    <|message|>{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
const OPEN_ANALYSIS: &str = "<|start|>assistant<|channel|>analysis<|message|>";
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

/// Markers of reasoning that the prompt has begun, and the header after it.
fn analysis(header: &'static str) -> ReasoningMarkers {
    ReasoningMarkers {
        marks: ["<|channel|>analysis<|message|>", "<|end|>"],
        started: true,
        header,
    }
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
async fn a_document_in_harmony_follows_reasoning_and_a_header() {
    let server = server(HARMONY);
    let header = "<|start|>assistant<|channel|>final<|message|>";
    let format = json!({"type": "json_object"});
    for (fields, header, answer) in [
        (json!({"response_format": format}), header, "{}"),
        (
            json!({"regex": "[a-z]+", "thinking_token_budget": 5}),
            header,
            "yes",
        ),
        (json!({"thinking_token_budget": 5}), "", "Yes."),
    ] {
        let played = format!(
            "Hm.<|end|>{}{answer}",
            "<|start|>assistant<|channel|>final<|message|>"
        );
        server.backend.play(&[&played], End::StopToken);
        let mut body = body(fields);
        body["tools"] = Value::Null;
        let message = server.post(CHAT, body).await.json()["choices"][0]["message"].clone();
        assert_eq!(message["content"], answer);
        assert_eq!(message["reasoning_content"], "Hm.");
        assert!(
            prompt(&server).ends_with(OPEN_ANALYSIS),
            "{}",
            prompt(&server)
        );
        let grammar = server.backend.last().grammar.unwrap();
        assert_eq!(grammar.reasoning, Some(analysis(header)));
    }
    let refused = server
        .post(CHAT, body(json!({"response_format": format})))
        .await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[tokio::test]
async fn forced_calls_of_harmony_come_after_reasoning() {
    let server = server(HARMONY);
    let played = "Hm.<|end|><|start|>assistant to=functions.f json{\"city\":\"x\"}";
    server.backend.play(&[played], End::StopToken);
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
    assert_eq!(grammar.reasoning, Some(analysis("<|start|>assistant")));
    assert_eq!(choice["message"]["reasoning_content"], "Hm.");
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

/// Kimi K2's chat template puts the ids of earlier calls into the prompt.
#[tokio::test]
async fn clients_get_the_call_ids_that_the_model_wrote() {
    let server = server(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}\
                         {# <|tool_calls_section_begin|> #}",
    );
    let call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:7\
                <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    server.backend.play(&[call], End::StopToken);
    let answer = server.post(CHAT, body(json!({}))).await.json();
    let calls = &answer["choices"][0]["message"]["tool_calls"];
    assert_eq!(calls[0]["id"], "functions.f:7", "{answer}");
    assert_eq!(calls[0]["function"]["name"], "f");
    server.backend.play(&[call], End::StopToken);
    let streamed = server.post(CHAT, body(json!({"stream": true}))).await;
    assert!(streamed.text().contains("\"id\":\"functions.f:7\""));
}
