//! OpenAI's Responses API: conversion and validation of requests.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::response_server::{PATH, body, prompt, server, tool};

#[tokio::test]
async fn input_items_become_chat_messages() {
    let server = server();
    server.backend.play(&["ok"], End::StopToken);
    let text = |kind: &str, text: &str| json!({"type": kind, "text": text});
    let input = json!([
        {"role": "user", "content": [text("input_text", "a"), text("input_text", "b")]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null, "status": "completed",
         "content": [text("reasoning_text", "hm")]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "f", "arguments": "{\"x\":1}",
         "status": "completed"},
        {"type": "function_call_output", "call_id": "t1", "output": "42"},
        {"role": "developer", "content": "d"},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"role": "assistant", "content": "e"},
        {"role": "assistant", "content": "f", "status": "incomplete"},
    ]);
    let reply = server
        .post(
            PATH,
            body(json!({"input": input, "instructions": "be nice"})),
        )
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let call =
        r#"[{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]"#;
    let before =
        format!("system:be nice/user:ab/assistant:chm{call}/tool:42t1/system:d/assistant:e/");
    assert_eq!(prompt(&server), format!("{before}assistant:f"));
    let counted = server
        .post("/v1/responses/input_tokens", body(json!({"input": input})))
        .await
        .json();
    let system = "system:be nice/".len();
    let wanted =
        json!({"object": "response.input_tokens", "input_tokens": prompt(&server).len() - system});
    assert_eq!(counted, wanted);
    server.backend.play(&["ok"], End::StopToken);
    let whole = json!([{"role": "assistant", "content": "f"}]);
    server.post(PATH, body(json!({"input": whole}))).await;
    assert_eq!(prompt(&server), "assistant:f/>");
}

#[tokio::test]
async fn text_formats_become_grammars() {
    let server = server();
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    for (fields, text) in [
        (json!({"text": {"format": {"type": "text"}}}), None),
        (
            json!({"text": {"format": {"type": "json_object"}}}),
            Some(r#"{"type":"object"}"#.to_owned()),
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "strict": true, "schema": schema}}}),
            Some(schema.to_string()),
        ),
        (json!({"guided_regex": "[0-9]"}), Some("[0-9]".to_owned())),
    ] {
        server.backend.play(&["1"], End::StopToken);
        let reply = server.post(PATH, body(fields)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let grammar = server.backend.last().grammar;
        assert_eq!(grammar.map(|grammar| grammar.constraint.text), text);
    }
}

/// Fields of a request, and the one at fault.
fn bad_items() -> Vec<(Value, &'static str)> {
    let says = |content: Value| json!({"input": [{"role": "user", "content": content}]});
    let item = |item: Value| json!({ "input": [item] });
    vec![
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (
            item(json!({"role": "tool", "content": "x"})),
            "input[0].role",
        ),
        (item(json!({"content": "x"})), "input[0].role"),
        (item(json!({"role": "user"})), "input[0].content"),
        (
            item(json!({"type": "web_search_call", "id": "1"})),
            "input[0].type",
        ),
        (
            item(json!({"type": "item_reference", "id": "1"})),
            "input[0].type",
        ),
        (
            says(json!([{"type": "input_image", "image_url": "x", "detail": "auto"}])),
            "input[0].content[0].type",
        ),
        (
            says(json!([{"type": "input_file", "file_id": "x"}])),
            "input[0].content[0].type",
        ),
        (
            says(json!([{"type": "input_text"}])),
            "input[0].content[0].text",
        ),
        (
            item(json!({"type": "function_call", "name": "f", "arguments": ""})),
            "input[0].call_id",
        ),
        (
            item(json!({"type": "function_call", "call_id": "1", "arguments": ""})),
            "input[0].name",
        ),
        (
            item(json!({"type": "function_call", "call_id": "1", "name": "f"})),
            "input[0].arguments",
        ),
        (
            item(json!({"type": "function_call_output", "output": "x"})),
            "input[0].call_id",
        ),
        (
            item(json!({"type": "function_call_output", "call_id": "1"})),
            "input[0].output",
        ),
    ]
}

fn bad_fields() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (
            json!({"max_output_tokens": 5, "max_tokens": 6}),
            "max_output_tokens",
        ),
        (json!({"temperature": -1}), "temperature"),
        (json!({"n": 2}), "n"),
        (json!({"colour": 1}), "colour"),
        (json!({"store": "yes"}), "store"),
        (json!({"background": true}), "background"),
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"conversation": {"id": "conv_1"}}), "conversation"),
        (json!({"prompt": {"id": "pmpt_1"}}), "prompt"),
        (json!({"max_tool_calls": 1}), "max_tool_calls"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (
            json!({"text": {"format": {"type": "grammar"}}}),
            "text.format",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x"}}}),
            "text.format.schema",
        ),
        (
            json!({"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}}),
            "text.format",
        ),
        (json!({"reasoning": {"effort": "low"}}), "reasoning.effort"),
        (
            json!({"include": ["file_search_call.results"]}),
            "include[0]",
        ),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"metadata": {"a": 1}}), "metadata.a"),
        (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
        (
            json!({"stream_options": {}, "stream": false}),
            "stream_options",
        ),
    ]
}

fn bad_tools() -> Vec<(Value, &'static str)> {
    let named = |name: &str| json!({"type": "function", "name": name});
    vec![
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [named("f g")]}), "tools[0].name"),
        (
            json!({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}),
            "tools[0].parameters.type",
        ),
        (
            json!({"tools": [tool()], "tool_choice": named("g")}),
            "tool_choice",
        ),
        (
            json!({"tools": [tool()], "tool_choice": {"type": "web_search"}}),
            "tool_choice",
        ),
        (
            json!({"tools": [tool()], "tool_choice": "f"}),
            "tool_choice",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
    ]
}

#[tokio::test]
async fn invalid_fields_are_refused_by_name() {
    let server = server();
    let bad = bad_items().into_iter().chain(bad_fields());
    for (fields, name) in bad.chain(bad_tools()) {
        for stream in [false, true] {
            if fields.get("stream").is_some() && stream {
                continue;
            }
            let mut body = body(fields.clone());
            body["stream"] = json!(stream);
            let reply = server.post(PATH, body).await;
            assert_eq!(reply.status, 400, "{name}: {}", reply.text());
            let error = &reply.json()["error"];
            assert_eq!(error["type"], "invalid_request_error");
            assert_eq!(error["param"], name, "{error}");
            let message = error["message"].as_str().unwrap();
            let last = name.rsplit(['.', '[']).next().unwrap();
            assert!(message.contains(last), "{name} is not in {message}");
        }
    }
    assert!(server.backend.requests().is_empty());
    let reply = server.post(PATH, body(json!({"model": "gpt-5"}))).await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    let reply = server.get("/v1/responses/resp_1").await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn allowed_tools_restricts_the_tools() {
    let server = server();
    server.backend.play(&["ok"], End::StopToken);
    let other = json!({"type": "function", "name": "g"});
    let choice = json!({"type": "allowed_tools", "mode": "auto", "tools": [other]});
    let fields = json!({"tools": [tool(), other], "tool_choice": choice});
    let answer = server.post(PATH, body(fields)).await.json();
    assert_eq!(answer["tool_choice"], choice);
    assert!(prompt(&server).starts_with(r#"[{"type": "function", "function": {"name": "g"}}]"#));
}
