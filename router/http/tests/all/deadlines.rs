//! Deadlines of requests, in the header and in bodies of all APIs.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use penstock_request::types::{End, SubmitError, TokenEvent};
use serde_json::{Value, json};

use crate::scripted::{Reply, ScriptedReply, Server, chat, completion, event, invalid, with};

const MESSAGES: &str = "/v1/messages";

/// A path of each API, and a body with the field.
fn bodies(timeout: &Value) -> Vec<(&'static str, Value)> {
    let field = json!({ "timeout": timeout });
    let message = json!({
        "model": "penstock", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]
    });
    vec![
        ("/v1/completions", completion(field.clone())),
        ("/v1/chat/completions", chat(field.clone())),
        ("/v1/responses", with(json!({"input": "hi"}), field.clone())),
        (MESSAGES, with(message, field.clone())),
        ("/generate", json!({"inputs": "hi", "parameters": field})),
    ]
}

async fn post(server: &Server, path: &str, header: &str, body: &Value) -> Reply {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .header("x-request-timeout", header)
        .body(Body::from(body.to_string()));
    server.request(request.unwrap()).await
}

#[tokio::test]
async fn the_earlier_deadline_of_header_and_body_counts() {
    let server = Server::with(Some("{{ messages[0].content }}"), |_| {});
    for (path, body) in bodies(&json!(7.5)) {
        for (header, expected) in [("3", 3.0), ("60", 7.5)] {
            server.backend.play(&["x"], End::Length);
            let reply = post(&server, path, header, &body).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            let deadline = server.backend.deadline().unwrap();
            assert_eq!(
                deadline.timeout,
                Duration::from_secs_f64(expected),
                "{path}"
            );
        }
        server.backend.play(&["x"], End::Length);
        server.post(path, body).await;
        assert!(server.backend.deadline().is_some(), "{path}");
    }
    server.backend.play(&["x"], End::Length);
    server.post("/generate", json!({"inputs": "hi"})).await;
    assert_eq!(server.backend.deadline(), None);
}

#[cfg(feature = "kserve")]
#[tokio::test]
async fn the_timeout_of_kserve_is_in_microseconds_as_in_triton() {
    let server = Server::new();
    for (micros, expected) in [(json!(1_500_000), Some(1.5)), (json!(0), None)] {
        server.backend.play(&["x"], End::Length);
        let body = json!({"text_input": "hi", "parameters": {"timeout": micros}});
        let reply = server.post("/v2/models/brook/generate", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let timeout = server.backend.deadline().map(|deadline| deadline.timeout);
        assert_eq!(timeout, expected.map(Duration::from_secs_f64));
    }
}

#[tokio::test]
async fn timeouts_out_of_range_are_refused_by_name() {
    let server = Server::with(Some("{{ messages[0].content }}"), |_| {});
    for timeout in [json!(0), json!(-1), json!(86_401)] {
        for (path, body) in bodies(&timeout) {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, invalid(path), "{path}");
            let message = reply.message();
            assert!(message.contains("`timeout` must be above 0"), "{message}");
        }
    }
    for header in ["0", "-1", "soon", "", "nan", "inf", "1e9"] {
        for (path, body) in bodies(&json!(1)) {
            let reply = post(&server, path, header, &body).await;
            assert_eq!(reply.status, invalid(path), "{path} {header}");
            assert!(
                reply.message().contains("x-request-timeout"),
                "{path} {header}"
            );
        }
    }
    assert!(server.backend.requests().is_empty());
}

#[tokio::test]
async fn a_request_that_cannot_meet_its_deadline_may_retry() {
    let server = Server::new();
    server
        .backend
        .act(ScriptedReply::Refuse(SubmitError::TooLate {
            timeout: Duration::from_secs(2),
            wait: Duration::from_secs(9),
            retry_after: Duration::from_secs(7),
        }));
    let reply = post(&server, "/v1/completions", "2", &completion(json!({}))).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.headers["retry-after"], "7");
    assert_eq!(
        reply.message(),
        "the request cannot meet its deadline of 2 s: requests before it take about 9 s"
    );
}

#[tokio::test]
async fn a_deadline_that_passes_is_a_504_or_the_last_event() {
    let server = Server::with(Some("{{ messages[0].content }}"), |_| {});
    let late = || {
        let message = "the request's deadline of 2 s has passed".to_owned();
        let end = TokenEvent {
            end: Some(End::DeadlinePassed(message)),
            ..TokenEvent::default()
        };
        server
            .backend
            .act(ScriptedReply::Play(vec![event("x"), end]));
    };
    for (path, body) in bodies(&json!(2)) {
        late();
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 504, "{path}");
        assert!(
            reply.message().contains("deadline of 2 s has passed"),
            "{path}"
        );
    }
    for (path, body) in bodies(&json!(2)) {
        late();
        let (path, body) = match path {
            "/generate" => ("/generate_stream", body),
            _ => (path, with(body, json!({"stream": true}))),
        };
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 200, "{path}");
        let text = reply.text();
        assert!(
            text.contains("deadline of 2 s has passed"),
            "{path}: {text}"
        );
    }
    let metrics = server.get("/metrics").await.text();
    assert!(
        metrics.contains("tgi_request_failure{err=\"deadline\"} 10"),
        "{metrics}"
    );
}
