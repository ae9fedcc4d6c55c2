//! OpenAI's legacy `functions` and `function_call` on the chat route.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_http::RouterConfig;
use penstock_request::grammar_spec::GrammarFormat;
use penstock_request::types::End;
use penstock_text::config::Format;
use penstock_text::tool_parsers::ToolFormat;
use serde_json::{Value, json};

use crate::scripted::{CHAT, Server, with};

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\":{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}/{% endfor %}";
const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}</tool_call>";

fn server() -> Server {
    let server = Server::with(Some(TEMPLATE), |_| {});
    server.backend.set_length(2000);
    server
}

fn function() -> Value {
    json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}})
}

fn tool() -> Value {
    json!({"type": "function", "function": function()})
}

fn body(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    with(json!({"messages": messages, "tools": [tool()]}), fields)
}

fn prompt(server: &Server) -> String {
    let ids = server.backend.last().prompt;
    ids.iter().map(|&id| id as u8 as char).collect()
}

/// Returns the same request with the legacy fields.
fn older(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    with(
        json!({"messages": messages, "functions": [function()]}),
        fields,
    )
}

#[tokio::test]
async fn functions_are_tools_and_the_answer_has_function_call() {
    let server = server();
    let calls = ["So: ", CALL, CALL];
    server.backend.play(&calls, End::StopToken);
    let answer = server.post(CHAT, older(json!({}))).await.json();
    let choice = &answer["choices"][0];
    let call = json!({"name": "f", "arguments": "{\"a\": \"b\"}"});
    let message = json!({"role": "assistant", "content": "So:", "function_call": call});
    assert_eq!(choice["message"], message);
    assert_eq!(choice["finish_reason"], "function_call");
    let first_prompt = prompt(&server);
    server.backend.play(&calls, End::StopToken);
    let newer = server.post(CHAT, body(json!({}))).await.json();
    assert_eq!(prompt(&server), first_prompt, "the prompts differ");
    assert_eq!(
        newer["choices"][0]["message"]["tool_calls"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    server
        .backend
        .play(&["So: ", &CALL[..30], &CALL[30..], CALL], End::StopToken);
    let events = server
        .post(CHAT, older(json!({"stream": true})))
        .await
        .events();
    let deltas: Vec<_> = events.iter().map(|e| &e["choices"][0]["delta"]).collect();
    assert!(deltas.iter().all(|delta| delta.get("tool_calls").is_none()));
    let calls: Vec<_> = deltas
        .iter()
        .filter_map(|delta| delta.get("function_call"))
        .collect();
    assert_eq!(calls[0], &json!({"name": "f", "arguments": ""}));
    assert!(calls[1..].iter().all(|call| call.get("name").is_none()));
    let arguments: String = calls
        .iter()
        .map(|call| call["arguments"].as_str().unwrap())
        .collect();
    assert_eq!(arguments, "{\"a\": \"b\"}");
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "function_call"
    );
}

#[tokio::test]
async fn function_call_accepts_a_name_none_and_auto() {
    let server = server();
    server.backend.play(&[CALL], End::StopToken);
    let named =
        older(json!({"function_call": {"name": "f"}, "response_format": {"type": "json_object"}}));
    let choice = server.post(CHAT, named).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["function_call"]["name"], "f");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["finish_reason"], "stop");
    let grammar = server.backend.last().grammar.unwrap().constraint;
    assert_eq!(
        (grammar.kind, grammar.field),
        (GrammarFormat::ToolCalls, "functions")
    );

    for function_call in [json!("none"), json!("auto")] {
        server.backend.play(&["no"], End::StopToken);
        let fields = json!({"function_call": function_call});
        let choice = server.post(CHAT, older(fields)).await.json()["choices"][0].clone();
        assert_eq!(choice["message"]["content"], "no");
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(
            prompt(&server).contains("tool_call"),
            function_call == "auto"
        );
    }
}

#[tokio::test]
async fn legacy_function_messages_become_tool_messages() {
    let server = server();
    server.backend.play(&["ok"], End::StopToken);
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{\"x\": 1}"}},
        {"role": "function", "name": "f", "content": "42"},
    ]);
    let reply = server.post(CHAT, json!({"messages": messages})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = prompt(&server);
    assert!(
        prompt.contains("\"name\": \"f\", \"arguments\": {\"x\": 1}"),
        "{prompt}"
    );
    assert!(prompt.contains("/tool:42/"), "{prompt}");
}

#[tokio::test]
async fn errors_name_the_legacy_function_fields() {
    let server = server();
    let says = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
    for (body, field) in [
        (older(json!({"tools": [tool()]})), "`functions`"),
        (
            body(json!({"function_call": {"name": "f"}})),
            "`function_call` cannot go with `tools`",
        ),
        (
            older(json!({"parallel_tool_calls": true})),
            "`parallel_tool_calls` must be false beside `functions`",
        ),
        (older(json!({"tool_choice": "auto"})), "`functions`"),
        (
            older(json!({"function_call": "required"})),
            "or an object with the `name` of a function. Given: \"required\"",
        ),
        (
            older(json!({"function_call": {"name": "`tools`"}})),
            "`function_call` names no tool of `functions`. Given: ``tools``",
        ),
        (
            older(json!({"functions": [{"name": "a b"}]})),
            "`functions[0].name`",
        ),
        (
            older(json!({"functions": [{"name": "a"}, {"name": "a"}]})),
            "`functions[1].name`",
        ),
        (
            older(json!({"functions": [{"name": "a", "parameters": {"type": "string"}}]})),
            "`functions[0].parameters.type`",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "function_call": {"name": "f"}}),
            "`function_call` must be `none` or `auto` when there are no `functions`",
        ),
        (
            says(json!({"role": "function", "content": "42"})),
            "`messages[1]` must have a `name`",
        ),
        (
            says(json!({"role": "assistant"})),
            "`messages[1]` must have `content`, `tool_calls` or `function_call`",
        ),
        (
            says(json!({"role": "assistant", "function_call": {"name": "f"},
                     "tool_calls": [{"id": "1", "function": {"name": "f"}}]})),
            "`function_call`",
        ),
    ] {
        let reply = server.post(CHAT, body.clone()).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert!(
            reply.message().contains(field),
            "{field} not in {}",
            reply.message()
        );
        assert!(!reply.message().contains("`tools["), "{}", reply.message());
    }
}

#[tokio::test]
async fn error_hints_name_the_fields_of_the_request() {
    let change = |config: &mut RouterConfig| {
        config.text.tool_format = Format::Fixed(ToolFormat::Llama3Json);
    };
    let server = Server::with(Some(TEMPLATE), change);
    server.backend.set_length(2000);
    let format = json!({"response_format": {"type": "json_object"}});
    for (body, rule, advice) in [
        (
            older(format.clone()),
            "with `functions` and `function_call` `auto`",
            "Send `function_call` `none` or an object with a `name`",
        ),
        (
            body(format.clone()),
            "with `tools` and `tool_choice` `auto`",
            "Send `tool_choice` `none` or `required`",
        ),
    ] {
        let reply = server.post(CHAT, body).await;
        assert_eq!(reply.status, 400);
        let message = reply.message();
        assert!(
            message.contains(rule) && message.ends_with(advice),
            "{message}"
        );
    }
    for choice in [json!("none"), json!({"name": "f"})] {
        server.backend.play(&["{}"], End::StopToken);
        let sent = with(older(format.clone()), json!({"function_call": choice}));
        let reply = server.post(CHAT, sent).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[tokio::test]
async fn neutral_legacy_fields_may_stand_beside_tools() {
    let server = server();
    for fields in [
        json!({"functions": []}),
        json!({"functions": null, "function_call": "auto"}),
        json!({"functions": [], "function_call": "none", "parallel_tool_calls": true}),
    ] {
        server.backend.play(&[CALL, CALL], End::StopToken);
        let reply = server.post(CHAT, body(fields.clone())).await;
        assert_eq!(reply.status, 200, "{fields}: {}", reply.text());
        let calls = reply.json()["choices"][0]["message"]["tool_calls"].clone();
        assert_eq!(calls.as_array().unwrap().len(), 2, "{fields}");
    }
}

#[tokio::test]
async fn tool_call_ids_satisfy_strict_templates() {
    let template = "{% macro id(value) %}{% if value is not defined or value|length != 9 \
        or not value.isalnum() %}{{ raise_exception('an id must be 9 letters or digits') }}\
        {% endif %}<{{ value }}>{% endmacro %}{% for m in messages %}{{ m.role }}\
        {% for call in m.tool_calls or [] %}{{ id(call.id) }}{% endfor %}\
        {% if m.role == 'tool' %}{{ id(m.tool_call_id) }}{% endif %}/{% endfor %}";
    let server = Server::with(Some(template), |_| {});
    server.backend.play(&["ok"], End::StopToken);
    let call = json!({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}});
    let result = json!({"role": "function", "name": "f", "content": "42"});
    let user = json!({"role": "user", "content": "a"});
    let messages = json!([user, call, result, call, result, user]);
    let reply = server.post(CHAT, json!({"messages": messages})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let (first, second) = ("<call00001>", "<call00003>");
    let expected =
        format!("user/assistant{first}/tool{first}/assistant{second}/tool{second}/user/");
    assert_eq!(prompt(&server), expected);
    let alone = json!({"messages": [user, result]});
    let reply = server.post(CHAT, alone).await;
    assert!(
        reply.message().contains("an id must be"),
        "{}",
        reply.text()
    );
}
