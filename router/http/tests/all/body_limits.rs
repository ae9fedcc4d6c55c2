//! Limits that apply before the queue: bytes of bodies and lengths of texts.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::Request,
};
use futures_util::stream;
use penstock_request::types::End;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::scripted::{Reply, Server, invalid};

const MIB: usize = 1 << 20;

/// Returns a server with 8 MiB for bodies, 6 of them for large ones.
fn server() -> Server {
    Server::with(Some(crate::scripted::TEMPLATE), |config| {
        config.max_body_bytes = 2 * MIB;
        config.max_held_body_bytes = 8 * MIB;
    })
}

async fn held(server: &Server) -> usize {
    let metrics = server.get("/metrics").await.text();
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("penstock_http_body_bytes "));
    line.unwrap().parse().unwrap()
}

/// Sends all of a body but its last byte, and does not end it until `sender` is dropped.
fn unfinished(server: &Server, bytes: usize) -> (mpsc::Sender<()>, tokio::task::JoinHandle<u16>) {
    let (sender, ended) = mpsc::channel::<()>(1);
    let part = Bytes::from(vec![b' '; bytes]);
    let body = stream::unfold((Some(part), ended), |(part, mut ended)| async move {
        match part {
            Some(part) => Some((Ok::<_, Infallible>(part), (None, ended))),
            None => {
                ended.recv().await;
                None
            }
        }
    });
    let request = Request::post("/generate")
        .header("content-type", "application/json")
        .body(Body::from_stream(body))
        .unwrap();
    let router = server.router.clone();
    let reply = tokio::spawn(async move {
        let response = tower::ServiceExt::oneshot(router, request).await.unwrap();
        response.status().as_u16()
    });
    (sender, reply)
}

async fn until_held(server: &Server, bytes: usize) {
    let waiting = async {
        while held(server).await != bytes {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap();
}

#[tokio::test]
async fn request_bodies_share_one_memory_budget() {
    let server = server();
    let open: Vec<_> = (0..3).map(|_| unfinished(&server, 2 * MIB)).collect();
    until_held(&server, 6 * MIB).await;
    // A large body is refused with and without a declared length.
    for length in [true, false] {
        let body = format!("{{\"inputs\": \"{}\"}}", "a".repeat(MIB));
        let mut request = Request::post("/generate").header("content-type", "application/json");
        if length {
            request = request.header("content-length", body.len());
        }
        let reply = server
            .request(request.body(Body::from(body)).unwrap())
            .await;
        assert_eq!(reply.status, 429);
        assert_eq!(reply.json()["error_type"], "overloaded");
        assert_eq!(reply.headers["retry-after"], "1");
        assert!(
            reply.message().contains("8388608 bytes"),
            "{}",
            reply.message()
        );
    }
    // A share is reserved for small bodies.
    server.backend.play(&["x"], End::Length);
    assert_eq!(
        server
            .post("/generate", json!({"inputs": "hi"}))
            .await
            .status,
        200
    );
    let (senders, replies): (Vec<_>, Vec<_>) = open.into_iter().unzip();
    drop(senders);
    for reply in replies {
        assert_eq!(reply.await.unwrap(), 400, "blanks are no JSON");
    }
    assert_eq!(held(&server).await, 0);
}

#[tokio::test]
async fn disconnected_client_releases_its_body_memory() {
    let server = server();
    let (_open, reply) = unfinished(&server, MIB);
    until_held(&server, MIB).await;
    reply.abort();
    until_held(&server, 0).await;
}

#[tokio::test]
async fn body_bytes_are_charged_until_tokenized_and_longer_only_for_echoed_text() {
    let server = server();
    let bodies = [
        ("/generate_stream", json!({"inputs": "a".repeat(80)}), false),
        (
            "/generate_stream",
            json!({"inputs": "a".repeat(80), "parameters": {"return_full_text": true}}),
            true,
        ),
        (
            "/v1/responses",
            json!({"input": "a", "metadata": {"a": "a"}}),
            true,
        ),
    ];
    for (path, mut body, keeps) in bodies {
        let tokens = server.backend.follow();
        body["stream"] = json!(true);
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let answer = tower::ServiceExt::oneshot(server.router.clone(), request)
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(held(&server).await > 0, keeps, "{body}");
        drop((tokens, answer));
        assert_eq!(held(&server).await, 0);
    }
}

async fn refused(server: &Server, path: &str, body: Value) -> Reply {
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, invalid(path), "{path}: {}", reply.text());
    // A prompt beside the refused one may still be in the tokenizer.
    until_held(server, 0).await;
    reply
}

#[tokio::test]
async fn far_too_long_text_is_refused_before_tokenization() {
    let server = server();
    let text = "a".repeat(MIB);
    let message = json!([{"role": "user", "content": &text}]);
    for (path, body, name) in [
        ("/generate", json!({"inputs": &text}), "inputs"),
        ("/tokenize", json!({"inputs": &text}), "inputs"),
        ("/v1/completions", json!({"prompt": ["a", &text]}), "prompt"),
        (
            "/v1/chat/completions",
            json!({"messages": message}),
            "messages",
        ),
        ("/v1/responses", json!({"input": message}), "input"),
    ] {
        let reply = refused(&server, path, body).await;
        let message = reply.message();
        // A token of this tokenizer has at most five bytes: `<end>`.
        assert!(message.contains(&format!("`{name}` m")), "{message}");
        assert!(message.contains("Given: at least 209"), "{message}");
    }
    let text = "a".repeat(101);
    let reply = refused(&server, "/tokenize", json!({"inputs": text})).await;
    assert!(
        reply.message().ends_with("Given: 101"),
        "{}",
        reply.message()
    );
}

#[tokio::test]
async fn a_grammar_that_is_too_large_is_refused_before_compilation() {
    let server = server();
    let text = "a".repeat(256 << 10);
    let schema = json!({"type": "string", "description": text});
    let grammar = json!({"type": "json", "value": schema});
    for (path, body, name) in [
        (
            "/generate",
            json!({"inputs": "a", "parameters": {"grammar": grammar}}),
            "grammar",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "guided_json": schema}),
            "guided_json",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "guided_regex": text}),
            "guided_regex",
        ),
    ] {
        let message = refused(&server, path, body).await.message();
        let rule = format!("`{name}` must have at most ");
        assert!(message.contains(&rule), "{message}");
        assert!(server.backend.requests().is_empty());
    }
}

#[tokio::test]
async fn truncate_keeps_the_end_of_any_text() {
    let server = server();
    server.backend.play(&["x"], End::Length);
    let text = format!("{}b", "a".repeat(100_000));
    let body = json!({"inputs": text, "parameters": {"truncate": 2, "max_new_tokens": 1}});
    let reply = server.post("/generate", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(server.backend.last().prompt, [97, 98]);
}

#[tokio::test]
async fn a_large_body_is_parsed_like_a_small_one() {
    let server = server();
    server.backend.play(&["x"], End::Length);
    let padded = format!("{{\"inputs\": \"hi\"{}}}", " ".repeat(MIB));
    assert_eq!(server.send("POST", "/generate", padded).await.status, 200);
    let broken = format!("{{\"inputs\": \"hi\"{}", " ".repeat(MIB));
    let reply = server.send("POST", "/generate", broken).await;
    assert_eq!(reply.status, 400);
    assert!(reply.message().contains("not JSON"), "{}", reply.message());
}

/// Fields without effect are skipped when a body is parsed.
#[tokio::test]
async fn all_of_a_body_is_utf8_and_not_nested_too_deep() {
    let server = server();
    let mut body = br#"{"model": "brook", "prompt": "hi", "user": "a"}"#.to_vec();
    let place = body.len() - 3;
    body[place] = 0xff;
    let reply = server.send("POST", "/v1/completions", body).await;
    assert_eq!(reply.status, 400);
    let wanted = format!("byte {place} (from 0 on) is not UTF-8");
    assert!(reply.message().contains(&wanted), "{}", reply.message());
    let nested = format!("{}1{}", "{\"a\": ".repeat(200), "}".repeat(200));
    let body = format!(r#"{{"model": "brook", "prompt": "hi", "guided_json": {nested}}}"#);
    let reply = server.send("POST", "/v1/completions", body).await;
    assert_eq!(reply.status, 400);
    let message = reply.message();
    assert!(
        message.contains("127 levels") && !message.contains("not JSON"),
        "{message}"
    );
}
