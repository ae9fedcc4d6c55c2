//! The OpenAI routes: requests and responses of the official clients.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::{End, TokenEvent};
use serde_json::{Value, json};

use crate::scripted::{EOS, Server, event};

fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "brook", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body
}

fn text(events: &[Value], pointer: &str) -> String {
    events
        .iter()
        .filter_map(|e| e.pointer(pointer)?.as_str())
        .collect()
}

fn prompts(server: &Server) -> Vec<String> {
    let decode = |ids: &Vec<u32>| ids.iter().map(|&id| id as u8 as char).collect();
    server
        .backend
        .requests()
        .iter()
        .map(|r| decode(&r.prompt))
        .collect()
}

/// Returns the usage of a prompt that is not cached.
fn usage(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": 0},
    })
}

#[tokio::test]
async fn a_chat_answer() {
    let server = Server::new();
    server.backend.play(&["Hello"], End::StopToken);
    let answer = server
        .post("/v1/chat/completions", chat(json!({"temperature": 0})))
        .await
        .json();
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "brook");
    let message = json!({"role": "assistant", "content": "Hello"});
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(answer["choices"], json!([choice]));
    let usage = usage(18, 6);
    assert_eq!(answer["usage"], usage);
    assert_eq!(prompts(&server), ["user:hi\nassistant:"]);
    assert_eq!(server.backend.last().sampling.temperature, 0.0);
}

#[tokio::test]
async fn a_chat_stream() {
    let server = Server::new();
    server.backend.play(&["H", "i"], End::StopToken);
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let reply = server.post("/v1/chat/completions", chat(options)).await;
    assert_eq!(reply.data().last().unwrap(), "[DONE]");
    let events = reply.events();
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": "H"})
    );
    assert_eq!(events[1]["choices"][0]["delta"], json!({"content": "i"}));
    assert_eq!(events[1]["choices"][0]["finish_reason"], Value::Null);
    let end =
        json!({"index": 0, "delta": {"content": ""}, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(events[2]["choices"], json!([end]));
    assert_eq!(events[3]["choices"], json!([]));
    assert_eq!(events[3]["usage"]["completion_tokens"], 3);
    assert_eq!(events.len(), 4);
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
    }
    assert!(events[..3].iter().all(|e| e["usage"].is_null()));
}

#[tokio::test]
async fn deltas_never_show_a_part_of_a_stop_string() {
    for (cut, whole) in [
        (vec!["to STO", "P it"], "to "),
        (vec!["S", "T", "O", "O", "S", "T", "O", "P", "x"], "STOO"),
        (vec!["no stop: ST"], "no stop: ST"),
        (vec!["STOP"], ""),
    ] {
        let server = Server::new();
        server
            .backend
            .play(&cut, End::Length)
            .play(&cut, End::Length);
        let body = json!({"prompt": "hi", "stop": "STOP", "stream": true});
        let events = server.post("/v1/completions", body).await.events();
        assert_eq!(text(&events, "/choices/0/text"), whole, "{cut:?}");
        let reason = if cut[0].starts_with("no") {
            "length"
        } else {
            "stop"
        };
        assert_eq!(
            events.last().unwrap()["choices"][0]["finish_reason"],
            reason
        );
        let answer = server
            .post("/v1/completions", json!({"prompt": "hi", "stop": ["STOP"]}))
            .await;
        assert_eq!(answer.json()["choices"][0]["text"], whole);
    }
}

#[tokio::test]
async fn prompts_as_text_or_ids_are_answered_in_order() {
    let server = Server::new();
    for prompt in [json!(["a", "b"]), json!([[97], [98]])] {
        server
            .backend
            .play(&["1"], End::Length)
            .play(&["22"], End::StopToken);
        let answer = server
            .post("/v1/completions", json!({"prompt": prompt}))
            .await
            .json();
        assert_eq!(answer["choices"][0]["text"], "1");
        assert_eq!(answer["choices"][1]["text"], "22");
        assert_eq!(answer["choices"][1]["index"], 1);
        let usage = usage(2, 4);
        assert_eq!(answer["usage"], usage);
        assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    }
    assert_eq!(prompts(&server), ["a", "b", "a", "b"]);
    server.backend.play(&["x"], End::Length);
    assert_eq!(
        server
            .post("/v1/completions", json!({"prompt": [104, 105]}))
            .await
            .status,
        200
    );
    assert_eq!(prompts(&server).last().unwrap(), "hi");
    server
        .backend
        .play(&["1"], End::Length)
        .play(&["22"], End::Length);
    let body =
        json!({"prompt": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}});
    let events = server.post("/v1/completions", body).await.events();
    let of = |index: u64| {
        let own = events.iter().filter(|e| e["choices"][0]["index"] == index);
        own.filter_map(|e| e["choices"][0]["text"].as_str())
            .collect::<String>()
    };
    assert_eq!((of(0), of(1)), ("1".to_owned(), "22".to_owned()));
    assert_eq!(events.last().unwrap()["usage"]["total_tokens"], 5);
}

#[tokio::test]
async fn vllm_extensions_reach_the_engine() {
    let server = Server::new();
    server
        .backend
        .play(&["x"], End::Length)
        .play(&["aSbS"], End::Length);
    let fields =
        json!({"ignore_eos": true, "min_tokens": 2, "top_k": -1, "seed": -1, "max_tokens": 9});
    server.post("/v1/chat/completions", chat(fields)).await;
    let request = server.backend.last();
    assert!(request.stopping.stop_token_ids.is_empty());
    assert_eq!(request.stopping.min_new_tokens, 2);
    assert_eq!(
        (request.sampling.top_k, request.sampling.seed),
        (0, u64::MAX)
    );
    let body = json!({"prompt": "hi", "stop": "S", "min_tokens": 3});
    let answer = server.post("/v1/completions", body).await.json();
    assert_eq!(
        answer["choices"][0]["text"], "aSb",
        "a stop string before `min_tokens` counts not"
    );
}

#[tokio::test]
async fn neutral_values_and_fields_without_effect_are_accepted() {
    let server = Server::new();
    server
        .backend
        .play(&["x"], End::Length)
        .play(&["x"], End::Length);
    let fields = json!({
        "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": false,
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "user": "u",
        "metadata": {"a": "b"}, "store": true, "top_p": 1.0, "temperature": 0, "stop": null,
        "modalities": ["text"], "service_tier": "auto", "max_completion_tokens": 5,
        "parallel_tool_calls": true,
    });
    let reply = server.post("/v1/chat/completions", chat(fields)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(server.backend.last().stopping.max_new_tokens, 5);
    let body = json!({"prompt": "hi", "echo": false, "suffix": "", "best_of": 1, "logprobs": null});
    assert_eq!(server.post("/v1/completions", body).await.status, 200);
}

#[tokio::test]
async fn message_forms_of_all_clients_are_accepted() {
    let server = Server::new();
    server.backend.set_length(300);
    server.backend.play(&["x"], End::Length);
    let call =
        json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "tool_calls": call, "refusal": null, "annotations": []},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]);
    let reply = server
        .post("/v1/chat/completions", chat(json!({"messages": messages})))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(prompts(&server)[0].starts_with("user:ab\n"));
    // The template has no tools, so calls and results are described in the text.
    let last_prompt = &prompts(&server)[0];
    assert!(
        last_prompt.contains("assistant:<tool_call>\n{\"name\": \"f\""),
        "{last_prompt}"
    );
    assert!(
        last_prompt.ends_with("user:<tool_response>\n42\n</tool_response>\nassistant:"),
        "{last_prompt}"
    );
}

#[tokio::test]
async fn a_last_assistant_message_is_continued_by_default() {
    let server = Server::new();
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]);
    for fields in [
        json!({}),
        json!({"continue_final_message": false}),
        json!({"continue_final_message": false, "add_generation_prompt": false}),
    ] {
        server.backend.play(&["x"], End::Length);
        let mut body = chat(fields);
        body["messages"] = messages.clone();
        assert_eq!(server.post("/v1/chat/completions", body).await.status, 200);
    }
    let closed = "user:q\nassistant:a\n";
    let expected = [
        "user:q\nassistant:a",
        "user:q\nassistant:a\nassistant:",
        closed,
    ];
    assert_eq!(prompts(&server), expected);
}

#[tokio::test]
async fn an_answer_without_text_still_has_its_role() {
    let server = Server::new();
    server.backend.play(&[""], End::StopToken);
    let reply = server
        .post("/v1/chat/completions", chat(json!({"stream": true})))
        .await;
    let choice = &reply.events()[0]["choices"][0];
    assert_eq!(choice["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(choice["finish_reason"], "stop");
}

#[tokio::test]
async fn models_and_names() {
    let server = Server::new();
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "brook");
    assert_eq!(list["data"][0]["max_model_len"], 100);
    assert_eq!(
        server.get("/v1/models/brook").await.json()["object"],
        "model"
    );
    for name in ["brook", "penstock", "tgi", "dummy"] {
        server.backend.play(&["x"], End::Length);
        let reply = server
            .post("/v1/chat/completions", chat(json!({"model": name})))
            .await;
        assert_eq!(reply.status, 200, "{name}");
        assert_eq!(reply.json()["model"], "brook");
    }
    let reply = server
        .post("/v1/chat/completions", chat(json!({"model": "gpt-4"})))
        .await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    assert_eq!(reply.json()["error"]["param"], "model");
}

#[tokio::test]
async fn stream_failure_is_the_last_event() {
    let server = Server::new();
    let lost = TokenEvent {
        end: Some(End::Failed("lost".into())),
        ..event("")
    };
    server
        .backend
        .act(crate::scripted::ScriptedReply::Play(vec![
            event("ab"),
            lost,
        ]));
    let reply = server
        .post("/v1/completions", json!({"prompt": "hi", "stream": true}))
        .await;
    let events = reply.events();
    assert_eq!(text(&events, "/choices/0/text"), "ab");
    assert_eq!(
        events[2],
        json!({"error": {"message": "lost", "type": "server_error",
                                           "param": null, "code": null}})
    );
    assert_ne!(reply.data().last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn end_event_without_a_token_ends_the_answer() {
    let server = Server::new();
    let end = TokenEvent {
        end: Some(End::Length),
        ..event("")
    };
    let half = TokenEvent {
        tokens: event("é").tokens[..1].into(),
        ..TokenEvent::default()
    };
    for body in [
        json!({"prompt": "hi", "stream": true}),
        json!({"prompt": "hi"}),
    ] {
        server
            .backend
            .act(crate::scripted::ScriptedReply::Play(vec![
                half.clone(),
                end.clone(),
            ]));
        let reply = server.post("/v1/completions", body).await;
        assert!(reply.text().contains('\u{FFFD}'), "{}", reply.text());
        assert!(reply.text().contains("\"finish_reason\":\"length\""));
    }
    assert_eq!(server.backend.last().stopping.stop_token_ids, [EOS]);
}
