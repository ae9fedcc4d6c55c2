//! The defaults of a model's generation_config.json on every route.

#![allow(clippy::unwrap_used)]

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::Server;

fn server() -> Server {
    Server::with_defaults(
        &json!({"temperature": 0.25, "top_p": 0.5, "top_k": 20, "min_p": 0.125,
        "repetition_penalty": 1.5, "max_new_tokens": 7, "eos_token_id": 1}),
    )
}

/// Temperature, `top_p`, `top_k`, `min_p`, repetition penalty and maximum tokens.
type Parameters = (f32, f32, u32, f32, f32, u32);

/// Returns the parameters that a request gets.
async fn effective(server: &Server, path: &str, fields: Value) -> Parameters {
    let mut body = match path {
        "/v1/completions" => json!({"model": "brook", "prompt": "hi"}),
        "/v1/responses" => json!({"model": "brook", "input": "hi"}),
        "/generate" => json!({"inputs": "hi", "parameters": {}}),
        _ => json!({"model": "brook", "messages": [{"role": "user", "content": "hi"}]}),
    };
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    server.backend.play(&["ok"], End::StopToken);
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    let request = server.backend.last();
    let sampling = &request.sampling;
    (
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repetition_penalty,
        request.stopping.max_new_tokens,
    )
}

const OPENAI: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];

#[tokio::test]
async fn a_request_without_parameters_gets_the_models_defaults() {
    let server = server();
    for path in OPENAI {
        let found = effective(&server, path, json!({})).await;
        assert_eq!(found, (0.25, 0.5, 20, 0.125, 1.5, 7), "{path}");
    }
    let found = effective(&server, "/v1/messages", json!({"max_tokens": 9})).await;
    assert_eq!(found, (0.25, 0.5, 20, 0.125, 1.5, 9));
}

#[tokio::test]
async fn a_requests_own_values_win() {
    let server = server();
    let fields = json!({"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1,
        "max_tokens": 9});
    for path in OPENAI {
        let found = effective(&server, path, fields.clone()).await;
        assert_eq!(found, (1.0, 1.0, 0, 0.0, 1.0, 9), "{path}");
    }
    let fields = json!({"max_tokens": 9, "temperature": 1, "top_p": 0.75, "top_k": 0});
    let found = effective(&server, "/v1/messages", fields).await;
    assert_eq!(found, (1.0, 0.75, 0, 0.125, 1.5, 9));
}

#[tokio::test]
async fn native_routes_and_beam_search_keep_their_own_defaults() {
    let server = server();
    let beam = json!({"use_beam_search": true, "n": 2, "max_tokens": 3});
    server.backend.play(&["ok"], End::StopToken); // the beam search has two choices
    for (path, fields) in [("/v1/completions", beam), ("/generate", json!({}))] {
        let (temperature, top_p, top_k, min_p, penalty, _) = effective(&server, path, fields).await;
        let found = (temperature, top_p, top_k, min_p, penalty);
        assert_eq!(found, (0.0, 1.0, 0, 0.0, 1.0), "{path}");
    }
}

#[tokio::test]
async fn info_shows_the_defaults() {
    let info = server().get("/info").await.json();
    assert_eq!(info["generation_config"]["temperature"], 0.25);
    assert_eq!(info["generation_config"]["max_new_tokens"], 7);
    let none = Server::new().get("/info").await.json();
    assert_eq!(none["generation_config"], json!({}));
}
