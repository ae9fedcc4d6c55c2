//! OpenAI's Responses API: requests and responses of its clients.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::BTreeSet;

use penstock_http::openapi_json;
use penstock_request::grammar_spec::GrammarFormat;
use penstock_request::types::End;
use serde_json::{Value, json};

use crate::response_server::{ARGUMENTS, CALL, PATH, body, prompt, server, tool};
use crate::scripted::Server;

/// Plays each character as a step of its own.
fn play(server: &Server, text: &str, end: End) {
    let mut steps: Vec<&str> = text.split("").collect();
    if text.is_empty() {
        steps.truncate(1);
    }
    server.backend.play(&steps, end);
}

/// Returns the events of a stream; each is named by its type and numbered.
fn numbered_events(text: &str) -> Vec<Value> {
    let events = text.split_terminator("\n\n").enumerate();
    let read = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        assert_eq!(data["sequence_number"], number, "{data}");
        data
    };
    events.map(read).collect()
}

/// Returns a response without the fields that differ between two of them.
fn timeless(response: &Value) -> Value {
    let mut response = response.clone();
    for field in ["id", "created_at", "completed_at"] {
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        if let Some(id) = item.get_mut("call_id") {
            *id = Value::Null;
        }
    }
    response
}

/// Returns the items of all events before the last, assembled as clients do.
fn summed(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    for event in events {
        let kind = event["type"].as_str().unwrap();
        let kind = kind.strip_prefix("response.").unwrap();
        if ["created", "in_progress"].contains(&kind) {
            assert_eq!(event["response"]["status"], "in_progress");
            assert_eq!(event["response"]["output"], json!([]));
            continue;
        }
        if kind == "output_item.added" {
            assert_eq!(event["output_index"], items.len());
            assert_eq!(event["item"]["status"], "in_progress");
            items.push(event["item"].clone());
            continue;
        }
        assert_eq!(event["output_index"], items.len() - 1);
        let item = items.last_mut().unwrap();
        if kind == "output_item.done" {
            item["status"] = event["item"]["status"].clone();
            assert_eq!(*item, event["item"]);
            continue;
        }
        assert_eq!(event["item_id"], item["id"]);
        match kind {
            "content_part.added" => item["content"] = json!([event["part"]]),
            "content_part.done" => assert_eq!(event["part"], item["content"][0]),
            "function_call_arguments.delta" => append(&mut item["arguments"], &event["delta"]),
            "function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
            "output_text.delta" | "reasoning_text.delta" => {
                assert_eq!(event["content_index"], 0);
                let part = &mut item["content"][0];
                append(&mut part["text"], &event["delta"]);
                let more = event.get("logprobs").and_then(Value::as_array);
                assert_eq!(more.is_some(), kind == "output_text.delta");
                if let Some(list) = part.get_mut("logprobs") {
                    list.as_array_mut().unwrap().extend(more.unwrap().clone());
                }
            }
            "output_text.done" | "reasoning_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"]);
            }
            other => assert_eq!(other, ""),
        }
    }
    items
}

fn append(text: &mut Value, more: &Value) {
    *text = format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap()).into();
}

/// Requests a response as a whole and as a stream, which must agree.
async fn both(server: &Server, text: &str, end: End, fields: Value) -> (Value, Vec<Value>) {
    let mut sent = body(fields);
    play(server, text, end.clone());
    let reply = server.post(PATH, sent.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.headers["content-type"], "application/json");
    let whole = reply.json();
    sent["stream"] = json!(true);
    play(server, text, end);
    let events = numbered_events(&server.post(PATH, sent).await.text());
    let (last, before) = events.split_last().unwrap();
    assert_eq!(json!(summed(before)), last["response"]["output"]);
    assert_eq!(timeless(&last["response"]), timeless(&whole));
    assert_eq!(
        last["type"].as_str().unwrap(),
        format!("response.{}", whole["status"].as_str().unwrap())
    );
    (whole, events)
}

#[tokio::test]
async fn reasoning_text_and_calls_are_items() {
    let server = server();
    let text = format!("<think>hm</think>So: {CALL}{CALL}");
    let (answer, events) = both(&server, &text, End::StopToken, json!({"tools": [tool()]})).await;
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(answer["object"], "response");
    assert_eq!(answer["status"], "completed");
    let output = answer["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(
        kinds,
        ["reasoning", "message", "function_call", "function_call"]
    );
    assert_eq!(
        output[0]["content"],
        json!([{"type": "reasoning_text", "text": "hm"}])
    );
    assert_eq!(output[0]["summary"], json!([]));
    let said = json!([{"type": "output_text", "annotations": [], "text": "So:", "logprobs": []}]);
    assert_eq!(
        (&output[1]["role"], &output[1]["content"]),
        (&json!("assistant"), &said)
    );
    for call in &output[2..] {
        assert_eq!(
            (&call["name"], &call["arguments"]),
            (&json!("f"), &json!(ARGUMENTS))
        );
        assert_eq!(call["status"], "completed");
    }
    assert_ne!(output[2]["call_id"], output[3]["call_id"]);
    let usage = &answer["usage"];
    assert_eq!(usage["input_tokens"], prompt(&server).len());
    assert_eq!(usage["output_tokens"], text.len() + 1);
    assert_eq!(
        usage["output_tokens_details"]["reasoning_tokens"],
        "<think>hm</think>".len()
    );
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta");
    assert!(deltas.count() > 4);
}

/// Text, end and fields of a request; the statuses of the response and its item, and its text.
type Ended = (
    &'static str,
    End,
    Value,
    (&'static str, &'static str),
    &'static str,
);

fn endings() -> Vec<Ended> {
    let tools = json!({"tools": [tool()]});
    let (whole, cut) = (("completed", "completed"), ("incomplete", "incomplete"));
    let stop = json!({"stop": "STOP"});
    vec![
        ("ab", End::StopToken, json!({}), whole, "ab"),
        ("ab", End::Length, json!({}), cut, "ab"),
        ("aSTOPx", End::Length, stop, whole, "a"),
        ("", End::StopToken, json!({}), whole, ""),
        ("<think>hm", End::Length, json!({}), cut, "hm"),
        (&CALL[..40], End::Length, tools.clone(), cut, "{\"a\":"),
        (
            CALL,
            End::Length,
            tools,
            ("incomplete", "completed"),
            ARGUMENTS,
        ),
    ]
}

#[tokio::test]
async fn finish_reason_is_reported() {
    let server = server();
    for (text, end, fields, (status, last), shown) in endings() {
        let (answer, _) = both(&server, text, end, fields).await;
        assert_eq!(answer["status"], status, "{text}");
        let details = match status {
            "completed" => Value::Null,
            _ => json!({"reason": "max_output_tokens"}),
        };
        assert_eq!(answer["incomplete_details"], details);
        assert_eq!(answer["completed_at"].is_null(), status != "completed");
        let item = &answer["output"][0];
        assert_eq!(item["status"], last, "{text}");
        let text = item.get("arguments").unwrap_or(&item["content"][0]["text"]);
        assert_eq!(text, shown);
    }
}

#[tokio::test]
async fn request_fields_are_echoed() {
    let server = server();
    let format = json!({"type": "json_schema", "name": "x", "schema": {"type": "object"}});
    let fields = json!({
        "instructions": "be \"nice\"", "metadata": {"b": "1", "a": "2"}, "max_output_tokens": 9,
        "temperature": 0.7, "top_p": 0.9, "parallel_tool_calls": false, "tools": [tool()],
        "tool_choice": {"type": "function", "name": "f"}, "text": {"format": format},
        "chat_template_kwargs": {"enable_thinking": false}, "store": false,
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "top_logprobs": 2,
    });
    let (answer, _) = both(&server, CALL, End::StopToken, fields.clone()).await;
    for field in [
        "instructions",
        "metadata",
        "max_output_tokens",
        "temperature",
        "top_p",
        "parallel_tool_calls",
        "tools",
        "tool_choice",
        "top_logprobs",
        "store",
    ] {
        assert_eq!(answer[field], fields[field], "{field}");
    }
    assert_eq!(answer["text"]["format"], format);
    assert!(prompt(&server).ends_with("/>False"), "{}", prompt(&server));
    let grammar = server.backend.last().grammar.unwrap();
    assert_eq!(grammar.constraint.kind, GrammarFormat::ToolCalls);
    // The response has all members in the description and no others.
    let api: Value = serde_json::from_str(&openapi_json()).unwrap();
    let said: BTreeSet<&String> = ["ResponseState", "RequestEcho"]
        .into_iter()
        .flat_map(|name| {
            let fields = &api["components"]["schemas"][name]["properties"];
            fields.as_object().unwrap().keys()
        })
        .collect();
    assert_eq!(said, answer.as_object().unwrap().keys().collect());
}

#[tokio::test]
async fn echoed_fields_have_defaults() {
    let server = server();
    let (answer, _) = both(&server, "a", End::StopToken, json!({})).await;
    for (field, value) in [
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("max_output_tokens", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("store", json!(true)),
        ("temperature", json!(1.0)),
        (
            "text",
            json!({"format": {"type": "text"}, "verbosity": "medium"}),
        ),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("truncation", json!("disabled")),
    ] {
        assert_eq!(answer[field], value, "{field}");
    }
}

#[tokio::test]
async fn logprobs_cover_only_the_message_text() {
    let server = server();
    let include_logprobs = "message.output_text.logprobs";
    let fields = json!({"include": [include_logprobs], "top_logprobs": 1, "tools": [tool()]});
    let text = format!("<think>hm</think>So{CALL}");
    let (answer, _) = both(&server, &text, End::StopToken, fields.clone()).await;
    let tokens = answer["output"][1]["content"][0]["logprobs"]
        .as_array()
        .unwrap();
    let texts: String = tokens
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert!(texts.ends_with("So"), "{texts}");
    assert!(!texts.contains("hm"), "{texts}");
    assert!(tokens[0]["top_logprobs"].is_array());
    // The same with all tokens in one event.
    server.backend.play(&[&text], End::StopToken);
    let at_once = server.post(PATH, body(fields)).await.json();
    assert_eq!(timeless(&at_once), timeless(&answer));
}

#[tokio::test]
async fn text_after_a_tool_call_is_a_separate_item() {
    let server = server();
    let text = format!("So{CALL}and so");
    let fields = json!({"tools": [tool()]});
    let (answer, _) = both(&server, &text, End::StopToken, fields).await;
    let output = answer["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "message"]);
    let mut input = output.clone();
    input.push(json!({"role": "user", "content": "ok"}));
    server.backend.play(&["ok"], End::StopToken);
    let reply = server.post(PATH, body(json!({"input": input}))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = prompt(&server);
    assert!(prompt.starts_with("assistant:Soand so[{"), "{prompt}");
}

#[tokio::test]
async fn a_failure_during_generation_is_reported() {
    let server = server();
    server.backend.play(&["a", ""], End::Failed("lost".into()));
    let events = numbered_events(
        &server
            .post(PATH, body(json!({"stream": true})))
            .await
            .text(),
    );
    let last = &events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    let response = &last["response"];
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"]["code"], "server_error");
    assert_eq!(response["output"][0]["content"][0]["text"], "a");
    assert_eq!(response["output"][0]["status"], "incomplete");
}
