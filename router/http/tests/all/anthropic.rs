//! Anthropic's Messages API: requests and responses of its clients.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use penstock_text::config::Format;
use penstock_text::tool_parsers::ReasoningFormat;
use serde_json::{Value, json};

use crate::scripted::Server;

const PATH: &str = "/v1/messages";
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\":{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content or '' }}{{ m.reasoning_content }}\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ m.tool_call_id }}/{% endfor %}\
    {% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ reasoning_effort }}";
const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}</tool_call>";

fn server() -> Server {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.reasoning_format = Format::Fixed(ReasoningFormat::Think);
    });
    server.backend.set_length(2000);
    server
}

fn body(fields: Value) -> Value {
    let mut body = json!({"model": "brook", "max_tokens": 50,
                          "messages": [{"role": "user", "content": "hi"}]});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn tools() -> Value {
    json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}}])
}

fn prompt(server: &Server) -> String {
    let ids = server.backend.last().prompt;
    ids.iter().map(|&id| id as u8 as char).collect()
}

#[tokio::test]
async fn message_without_streaming() {
    let server = server();
    server
        .backend
        .play(&["<think>hm</think>So: ", CALL], End::StopToken);
    let answer = server
        .post(PATH, body(json!({"tools": tools()})))
        .await
        .json();
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&answer["type"], &answer["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(answer["stop_reason"], "tool_use");
    assert_eq!(answer["stop_sequence"], Value::Null);
    let content = answer["content"].as_array().unwrap();
    assert_eq!(
        content[0],
        json!({"type": "thinking", "thinking": "hm", "signature": ""})
    );
    assert_eq!(content[1], json!({"type": "text", "text": "So:"}));
    assert_eq!(content[2]["type"], "tool_use");
    assert_eq!(content[2]["name"], "f");
    assert_eq!(content[2]["input"], json!({"a": "b"}));
    let tokens = "<think>hm</think>So: ".len() + CALL.len() + 1;
    assert_eq!(answer["usage"]["output_tokens"], tokens);
    assert_eq!(answer["usage"]["input_tokens"], prompt(&server).len());
}

#[tokio::test]
async fn finish_reason_is_reported() {
    let server = server();
    for (texts, end, fields, reason, sequence) in [
        (
            ["a", "b"],
            End::StopToken,
            json!({}),
            "end_turn",
            Value::Null,
        ),
        (
            ["a", "b"],
            End::Length,
            json!({}),
            "max_tokens",
            Value::Null,
        ),
        (
            ["a", "STOPx"],
            End::Length,
            json!({"stop_sequences": ["STOP"]}),
            "stop_sequence",
            json!("STOP"),
        ),
    ] {
        server.backend.play(&texts, end);
        let answer = server.post(PATH, body(fields)).await.json();
        assert_eq!(answer["stop_reason"], reason);
        assert_eq!(answer["stop_sequence"], sequence);
    }
    server.backend.play(&[&CALL[..40]], End::Length);
    let cut = server
        .post(PATH, body(json!({"tools": tools()})))
        .await
        .json();
    assert_eq!(
        cut["content"][0]["input"],
        json!({"incomplete_json": "{\"a\":"})
    );
}

/// Returns the events of a stream; each is named by its type.
fn named_events(text: &str) -> Vec<Value> {
    text.split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
            data
        })
        .collect()
}

/// Returns each block with the text of its deltas; checks that blocks start, grow and stop in turn.
fn blocks(events: &[Value]) -> Vec<(Value, String)> {
    let mut blocks: Vec<(Value, String)> = Vec::new();
    let mut open = None;
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(open.replace(event["index"].clone()), None);
                assert_eq!(event["index"], blocks.len());
                blocks.push((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!(open, Some(event["index"].clone()));
                let delta = event["delta"].as_object().unwrap();
                let text = delta.iter().find(|(key, _)| *key != "type").unwrap().1;
                blocks
                    .last_mut()
                    .unwrap()
                    .1
                    .push_str(text.as_str().unwrap());
            }
            "content_block_stop" => assert_eq!(open.take(), Some(event["index"].clone())),
            other => assert_eq!(other, ""),
        }
    }
    assert_eq!(open, None);
    blocks
}

#[tokio::test]
async fn message_stream_events() {
    let server = server();
    let text = format!("<think>hm</think>So: {CALL}{CALL}");
    let cut: Vec<String> = text.chars().map(String::from).collect();
    let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
    server.backend.play(&cut, End::StopToken);
    let reply = server
        .post(PATH, body(json!({"tools": tools(), "stream": true})))
        .await;
    let events = named_events(&reply.text());
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events[0]["message"]["content"], json!([]));
    assert!(
        events[0]["message"]["usage"]["input_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert_eq!(events[1]["type"], "ping");
    let blocks = blocks(&events[2..events.len() - 2]);
    let kinds: Vec<_> = blocks
        .iter()
        .map(|(block, text)| (block["type"].as_str().unwrap(), text.as_str()))
        .collect();
    let arguments = "{\"a\": \"b\"}";
    assert_eq!(
        kinds,
        [
            ("thinking", "hm"),
            ("text", "So:"),
            ("tool_use", arguments),
            ("tool_use", arguments)
        ]
    );
    assert_eq!(blocks[2].0["input"], json!({}));
    let [delta, stop] = &events[events.len() - 2..] else {
        unreachable!()
    };
    assert_eq!(
        delta["delta"],
        json!({"stop_reason": "tool_use", "stop_sequence": null})
    );
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 50);
    assert_eq!(stop, &json!({"type": "message_stop"}));
}

#[tokio::test]
async fn content_blocks_become_chat_messages() {
    let server = server();
    server.backend.play(&["ok"], End::StopToken);
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "c"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
            {"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "So"},
    ]);
    let system = json!([{"type": "text", "text": "be"}, {"type": "text", "text": "nice"}]);
    let fields = json!({"messages": messages, "system": system, "thinking": {"type": "disabled"}});
    let reply = server.post(PATH, body(fields.clone())).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let call =
        r#"[{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]"#;
    let expected =
        format!("system:benice/user:ab/assistant:chm{call}/tool:42t1/user:d/assistant:So");
    assert_eq!(prompt(&server), expected);
    let count = server
        .post("/v1/messages/count_tokens", body(fields))
        .await
        .json();
    assert_eq!(count, json!({"input_tokens": expected.len()}));
}

#[tokio::test]
async fn a_failed_tool_result_is_marked_in_the_prompt() {
    for (result, expected) in [
        (json!({"content": "no such city"}), "no such city"),
        (
            json!({"content": "no such city", "is_error": false}),
            "no such city",
        ),
        (
            json!({"content": "no such city", "is_error": true}),
            "Error: no such city",
        ),
        (
            json!({"content": "Errors found", "is_error": true}),
            "Error: Errors found",
        ),
        (
            json!({"content": " ERROR: no", "is_error": true}),
            " ERROR: no",
        ),
        (json!({"content": "Err", "is_error": true}), "Error: Err"),
        (
            json!({"content": "error 404", "is_error": true}),
            "error 404",
        ),
        (json!({"is_error": true}), "Error"),
    ] {
        let server = server();
        server.backend.play(&["ok"], End::StopToken);
        let mut result = result;
        result["type"] = json!("tool_result");
        result["tool_use_id"] = json!("t1");
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
            {"role": "user", "content": [result]},
        ]);
        let reply = server.post(PATH, body(json!({"messages": messages}))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let prompt = prompt(&server);
        assert!(prompt.contains(&format!("/tool:{expected}t1/")), "{prompt}");
    }
}

/// Fields of a request, and the field that the message names.
fn bad_messages() -> Vec<(Value, &'static str)> {
    let says = |content: Value| json!([{"role": "user", "content": content}]);
    let answers = |content: Value| json!([{"role": "assistant", "content": content}]);
    vec![
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "system", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": says(json!([{"type": "image", "source": {}}]))}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": says(json!([{"type": "text"}]))}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": says(json!([{"type": "tool_result"}]))}),
            "messages[0].content[0].tool_use_id",
        ),
        (json!({"messages": says(json!(5))}), "messages[0].content"),
        (
            json!({"messages": answers(json!([]))}),
            "messages[0].content",
        ),
        (
            json!({"messages": answers(json!([{"type": "tool_use", "name": "f"}]))}),
            "messages[0].content[0].id",
        ),
        (
            json!({"messages": answers(json!([{"type": "tool_use", "id": "1", "name": "f", "input": 5}]))}),
            "messages[0].content[0].input",
        ),
    ]
}

fn bad_tools() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"tools": [{"name": "f"}]}), "input_schema"),
        (
            json!({"tools": [{"name": "f g", "input_schema": {}}]}),
            "tools[0].name",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}),
            "tools[0].input_schema.type",
        ),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "w", "input_schema": {}}]}),
            "tools[0].type",
        ),
        (
            json!({"tools": tools(), "tool_choice": {"type": "tool"}}),
            "tool_choice.name",
        ),
        (
            json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "g"}}),
            "tool_choice",
        ),
        (
            json!({"tools": tools(), "tool_choice": {"type": "all"}}),
            "tool_choice.type",
        ),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
        (json!({"thinking": {"type": "hard"}}), "thinking.type"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": "lots"}}),
            "thinking.budget_tokens",
        ),
        (
            json!({"output_config": {"effort": "some"}}),
            "output_config.effort",
        ),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"container": "c"}), "container"),
        (json!({"thread": {"type": "create"}}), "thread"),
        (json!({"colour": 1}), "colour"),
    ]
}

#[tokio::test]
async fn thinking_and_effort_are_variables_of_the_template() {
    let server = server();
    for (fields, variables) in [
        (json!({}), ""),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}),
            "True",
        ),
        (json!({"output_config": {"effort": "max"}}), "max"),
        (
            json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}),
            "Falselow",
        ),
    ] {
        server.backend.play(&["ok"], End::StopToken);
        let reply = server.post(PATH, body(fields)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(prompt(&server), format!("user:hi/{variables}"));
    }
}

#[tokio::test]
async fn invalid_fields_are_refused_by_name() {
    let server = server();
    for (fields, name) in bad_messages().into_iter().chain(bad_tools()) {
        for stream in [false, true] {
            let mut body = body(fields.clone());
            body["stream"] = json!(stream);
            let reply = server.post(PATH, body).await;
            assert_eq!(reply.status, 400, "{name}: {}", reply.text());
            let error = reply.json();
            assert_eq!(error["type"], "error");
            assert_eq!(error["error"]["type"], "invalid_request_error");
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(name), "{name} is not in {message}");
        }
    }
    assert!(server.backend.requests().is_empty());
    let reply = server.post(PATH, body(json!({"model": "claude"}))).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    assert_eq!(
        server.get(PATH).await.json()["error"]["type"],
        "invalid_request_error"
    );
}

/// Anthropic's tool runner sends `thread` first and goes on without it if the error has this code.
#[tokio::test]
async fn a_thread_field_is_refused_with_an_error_code() {
    let server = server();
    server.backend.play(&["a"], End::StopToken);
    for (thread, status, code) in [
        (json!({"type": "create"}), 400, "thread_unsupported_request"),
        (
            json!({"type": "continue", "previous_message_id": "msg_1"}),
            400,
            "thread_unsupported_request",
        ),
        (Value::Null, 200, ""),
    ] {
        let reply = server.post(PATH, body(json!({"thread": thread}))).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        let error_code = reply.json()["error"]["details"]["error_code"].clone();
        assert_eq!(error_code.as_str().unwrap_or_default(), code);
    }
    let reply = server.post(PATH, body(json!({"container": "c"}))).await;
    assert_eq!(reply.json()["error"]["details"], Value::Null);
}
