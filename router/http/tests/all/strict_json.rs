//! Strict JSON: objects only where objects are expected, bounded lists, and short excerpts of
//! values in errors.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use serde_json::{Value, json};

use crate::scripted::{Reply, Server, invalid};

const CHAT: &str = "/v1/chat/completions";
/// Maximum bytes of an error response.
const LONGEST: usize = 2500;

async fn refused(server: &Server, path: &str, body: Value) -> Reply {
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, invalid(path), "{path}: {}", reply.text());
    reply
}

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[tokio::test]
async fn a_list_in_place_of_an_object_is_refused() {
    let server = Server::new();
    let options = json!({"stream": true, "stream_options": [true]});
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, ["text", "b"]]}]);
    for (path, body, at) in [
        ("/generate", json!(["hi"]), "object"),
        (
            "/generate",
            json!({"inputs": "hi", "parameters": []}),
            "`parameters`",
        ),
        (
            "/tokenize",
            json!({"inputs": "hi", "parameters": [1]}),
            "`parameters`",
        ),
        ("/v1/completions", json!(["hi"]), "object"),
        (CHAT, chat(options), "`stream_options`"),
        (
            CHAT,
            chat(json!({"messages": [["user", "hi"]]})),
            "`messages[0]`",
        ),
        (
            CHAT,
            chat(json!({"messages": parts})),
            "`messages[0].content[1]`",
        ),
    ] {
        let message = refused(&server, path, body).await.message();
        assert!(
            message.contains("sequence") && message.contains(at),
            "{message}"
        );
    }
}

#[tokio::test]
async fn unknown_fields_are_named_with_their_path() {
    let server = Server::new();
    let call = json!([{"role": "assistant", "content": "a", "tool_calls": {"id": "1"}}]);
    for (fields, at) in [
        (json!({"colour": 1}), "colour"),
        (json!({"colour": null, "kind": false}), "kind"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"stream": true, "stream_options": {"colour": 1}}),
            "stream_options.colour",
        ),
        (json!({"messages": call}), "messages[0].tool_calls"),
    ] {
        let reply = refused(&server, CHAT, chat(fields)).await;
        assert_eq!(reply.json()["error"]["param"], at, "{}", reply.text());
    }
}

#[tokio::test]
async fn duplicate_and_missing_fields_are_named_with_their_path() {
    let server = Server::new();
    for (body, at) in [
        (r#"{"messages":[],"model":"a","model":"b"}"#, "model"),
        ("{}", "messages"),
        (r#"{"messages":[{"content":"a"}]}"#, "messages[0].role"),
        (
            r#"{"messages":[{"role":"user","role":"user"}]}"#,
            "messages[0].role",
        ),
    ] {
        let reply = server.send("POST", CHAT, body).await;
        assert_eq!(reply.json()["error"]["param"], at, "{}", reply.text());
    }
}

#[tokio::test]
async fn an_unknown_field_gets_a_suggestion() {
    let server = Server::new();
    for (field, said) in [
        ("max_token", ": did you mean `max_tokens`? /docs"),
        ("colour", "unknown field `colour` at line"),
    ] {
        let message = refused(&server, CHAT, chat(json!({field: 1})))
            .await
            .message();
        assert!(message.contains(said), "{message}");
        assert!(message.ends_with("/docs lists all fields"), "{message}");
    }
}

#[tokio::test]
async fn list_lengths_are_bounded() {
    let server = Server::with(Some(crate::scripted::TEMPLATE), |config| {
        config.max_body_bytes = 8 << 20;
    });
    let many = |entry: Value, count: usize| Value::Array(vec![entry; count]);
    let message = json!({"role": "user", "content": "a"});
    for (path, body) in [
        (
            "/generate",
            json!({"inputs": "hi", "parameters": {"stop": many(json!("a"), 2000)}}),
        ),
        ("/v1/completions", json!({"prompt": many(json!("a"), 2000)})),
        ("/v1/completions", json!({"prompt": many(json!([1]), 2000)})),
        (CHAT, chat(json!({"stop": many(json!("a"), 2000)}))),
        (CHAT, chat(json!({"messages": many(message, 70_000)}))),
    ] {
        let message = refused(&server, path, body).await.message();
        assert!(message.contains("must have at most"), "{message}");
    }
}

#[tokio::test]
async fn given_values_are_quoted_as_excerpts() {
    let server = Server::new();
    let long = "\", expected `x`\u{e9}".repeat(3000);
    let field: Value = [(long.clone(), json!(1))].into_iter().collect();
    let wizard = json!([{"role": "wizard", "content": &long}]);
    let kind = json!([{"role": "user", "content": [{"type": &long}]}]);
    for (path, body) in [
        ("/generate", json!({"inputs": "hi", "stream": &long})),
        (
            "/generate",
            json!({"inputs": "hi", "parameters": {"top_k": &long}}),
        ),
        ("/generate", field.clone()),
        ("/generate", json!({"inputs": "hi", "parameters": &field})),
        ("/v1/completions", json!({"prompt": "hi", "seed": &long})),
        ("/v1/completions", json!({"prompt": "hi", "n": &long})),
        (CHAT, chat(json!({"messages": &long}))),
        (CHAT, chat(json!({"messages": wizard}))),
        (CHAT, chat(json!({"messages": kind}))),
    ] {
        let reply = refused(&server, path, body).await;
        assert!(reply.body.len() < LONGEST, "{}", reply.text());
    }
    let missing = chat(json!({"model": &long}));
    let reply = server.post(CHAT, missing).await;
    assert_eq!(reply.status, 404);
    assert!(reply.body.len() < LONGEST, "{}", reply.text());
    assert!(reply.message().contains("in all)"), "{}", reply.message());
    let lost = server.get(&format!("/{}", "x".repeat(60_000))).await;
    assert_eq!(lost.status, 404);
    assert!(lost.body.len() < LONGEST, "{}", lost.text());
}

#[tokio::test]
async fn error_excerpt_keeps_the_rule_and_the_start_of_the_value() {
    let server = Server::new();
    let body = json!({"inputs": "hi", "parameters": {"top_k": "k".repeat(1000)}});
    let message = refused(&server, "/generate", body).await.message();
    let expected = format!(
        "`parameters.top_k`: invalid type: string \"{}... (1000 bytes in all)\", expected a whole number",
        "k".repeat(64)
    );
    assert!(message.contains(&expected), "{message}");
}
