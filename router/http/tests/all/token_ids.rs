//! Token ids in responses (`return_token_ids`), in the fields where vLLM has them.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::{EOS, Server};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";

fn chat(fields: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "hi"}], "return_token_ids": true});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Returns the ids of a choice's chunks together, and how often each kind of id was sent.
fn gathered(events: &[Value], index: usize) -> (Vec<u32>, usize) {
    let choices = events.iter().flat_map(|e| e["choices"].as_array().unwrap());
    let own: Vec<_> = choices.filter(|choice| choice["index"] == index).collect();
    let ids = own.iter().flat_map(|choice| {
        let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
        ids
    });
    let prompts = own
        .iter()
        .filter(|choice| choice.get("prompt_token_ids").is_some());
    (ids.collect(), prompts.count())
}

#[tokio::test]
async fn completions_return_token_ids_in_choices() {
    let server = Server::new();
    server
        .backend
        .play(&["a", "bc"], End::StopToken)
        .play(&["d"], End::Length);
    let body = json!({"prompt": ["hi", "you"], "return_token_ids": true});
    let answer = server.post(COMPLETIONS, body).await.json();
    assert!(answer.get("prompt_token_ids").is_none());
    for (index, (prompt, mut ids)) in [("hi", bytes("abc")), ("you", bytes("d"))]
        .into_iter()
        .enumerate()
    {
        let choice = &answer["choices"][index];
        assert_eq!(choice["prompt_token_ids"], json!(bytes(prompt)));
        if index == 0 {
            ids.push(EOS);
        }
        assert_eq!(choice["token_ids"], json!(ids));
    }
}

#[tokio::test]
async fn chats_return_prompt_token_ids_beside_choices() {
    let server = Server::new();
    server.backend.play(&["ab"], End::StopToken);
    let answer = server.post(CHAT, chat(json!({}))).await.json();
    assert_eq!(
        answer["prompt_token_ids"],
        json!(bytes("user:hi\nassistant:"))
    );
    let choice = &answer["choices"][0];
    assert_eq!(choice["token_ids"], json!([97, 98, EOS]));
    assert!(choice.get("prompt_token_ids").is_none());
}

#[tokio::test]
async fn each_chat_choice_has_its_token_ids_and_each_stream_begins_with_the_prompt_ids() {
    for stream in [false, true] {
        let server = Server::new();
        server
            .backend
            .play(&["ab"], End::StopToken)
            .play(&["c"], End::Length);
        let reply = server
            .post(CHAT, chat(json!({"n": 2, "stream": stream})))
            .await;
        let expected = [vec![97, 98, EOS], vec![99]];
        let answers = if stream {
            reply.events()
        } else {
            vec![reply.json()]
        };
        let prompts: Vec<_> = answers
            .iter()
            .filter_map(|answer| answer.get("prompt_token_ids"))
            .collect();
        // As in vLLM's streams: in the first chunk of each choice.
        let copies = if stream { 2 } else { 1 };
        assert_eq!(prompts, vec![&json!(bytes("user:hi\nassistant:")); copies]);
        for (index, ids) in expected.into_iter().enumerate() {
            if stream {
                assert_eq!(gathered(&answers, index), (ids, 0));
            } else {
                assert_eq!(answers[0]["choices"][index]["token_ids"], json!(ids));
            }
        }
    }
}

#[tokio::test]
async fn token_ids_are_returned_only_on_request() {
    let server = Server::new();
    for fields in [
        json!({"return_token_ids": false}),
        json!({"return_token_ids": null}),
    ] {
        server
            .backend
            .play(&["ab"], End::StopToken)
            .play(&["ab"], End::StopToken);
        let reply = server.post(CHAT, chat(fields.clone())).await;
        assert!(!reply.text().contains("token_ids"));
        let mut body = fields;
        body["prompt"] = json!("hi");
        body["stream"] = json!(true);
        let reply = server.post(COMPLETIONS, body).await;
        assert!(!reply.text().contains("token_ids"));
    }
}

#[tokio::test]
async fn a_stream_returns_prompt_ids_once_and_answer_ids_in_chunks() {
    for beside in [
        json!({}),
        json!({"logprobs": true}),
        json!({"stop": ["zz"]}),
    ] {
        let server = Server::new();
        server.backend.play(&["é", "z", "b"], End::StopToken);
        let mut fields = beside.clone();
        fields["stream"] = json!(true);
        let events = server.post(CHAT, chat(fields)).await.events();
        let first = &events[0]["prompt_token_ids"];
        assert_eq!(first, &json!(bytes("user:hi\nassistant:")));
        assert!(
            events[1..]
                .iter()
                .all(|e| e.get("prompt_token_ids").is_none())
        );
        let mut expected = bytes("ézb");
        expected.push(EOS);
        assert_eq!(gathered(&events, 0), (expected, 0), "{beside}");
    }
}

#[tokio::test]
async fn each_streamed_choice_returns_its_own_token_ids() {
    let server = Server::new();
    server
        .backend
        .play(&["a", "b"], End::Length)
        .play(&["c"], End::StopToken);
    let body =
        json!({"prompt": ["hi", "you"], "stream": true, "return_token_ids": true, "echo": true});
    let events = server.post(COMPLETIONS, body).await.events();
    assert!(events.iter().all(|e| e.get("prompt_token_ids").is_none()));
    assert_eq!(gathered(&events, 0), (bytes("ab"), 1));
    assert_eq!(gathered(&events, 1), (vec![99, EOS], 1));
}

#[tokio::test]
async fn tool_calls_have_token_ids() {
    let template = "{% if tools %}<tool_call>{\"name\":{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for stream in [false, true] {
        let server = Server::with(Some(template), |_| {});
        server.backend.set_length(2000);
        server.backend.play(&["x", CALL], End::StopToken);
        let reply = server
            .post(CHAT, chat(json!({"tools": tools, "stream": stream})))
            .await;
        let mut expected = bytes("x");
        expected.extend(bytes(CALL));
        expected.push(EOS);
        if stream {
            assert_eq!(gathered(&reply.events(), 0), (expected, 0));
        } else {
            assert_eq!(reply.json()["choices"][0]["token_ids"], json!(expected));
        }
    }
}

#[tokio::test]
async fn responses_refuse_return_token_ids() {
    let server = Server::new();
    let body = json!({"input": "hi", "return_token_ids": true});
    let reply = server.post("/v1/responses", body).await;
    assert_eq!(reply.status, 400);
    assert!(reply.message().contains("`return_token_ids`"));
}
