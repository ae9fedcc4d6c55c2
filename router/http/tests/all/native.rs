//! The native routes: requests and responses of TGI's clients.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::BTreeSet;

use penstock_request::types::{End, Stopping};
use serde_json::{Value, json};

use crate::scripted::{EOS, Server};

fn body(parameters: Value) -> Value {
    json!({"inputs": "hi", "parameters": parameters})
}

#[tokio::test]
async fn generate_with_details() {
    let server = Server::new();
    server.backend.play(&["A", "b"], End::StopToken);
    let reply = server
        .post("/generate", body(json!({"details": true})))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let token =
        |id: u32, text: &str| json!({"id": id, "text": text, "logprob": -0.5, "special": false});
    let expected = json!({"generated_text": "Ab", "details": {
        "finish_reason": "eos_token", "generated_tokens": 3, "seed": null, "input_length": 2,
        "prefill": [],
        "tokens": [token(65, "A"), token(98, "b"),
                   {"id": EOS, "text": "<end>", "logprob": -0.25, "special": true}],
    }});
    assert_eq!(reply.json(), expected);
    assert_eq!(reply.headers["x-prompt-tokens"], "2");
    assert_eq!(reply.headers["x-generated-tokens"], "3");
    assert_eq!(reply.headers["x-compute-type"], "script-1");
    assert!(reply.headers.contains_key("x-compute-time"));
}

#[tokio::test]
async fn a_stream_has_one_event_per_token() {
    let server = Server::new();
    server.backend.play(&["é", "b"], End::Length);
    let reply = server
        .post(
            "/generate_stream",
            body(json!({"details": true, "seed": 5, "top_k": 3})),
        )
        .await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert!(
        reply
            .text()
            .starts_with("data: {\"index\":1,\"token\":{\"id\":195,\"text\":\"\",")
    );
    let events = reply.events();
    let texts: Vec<_> = events
        .iter()
        .map(|e| e["token"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["", "é", "b"]);
    assert_eq!(events[1]["generated_text"], Value::Null);
    let details =
        json!({"finish_reason": "length", "generated_tokens": 3, "seed": 5, "input_length": 2});
    let last = json!({"index": 3, "token": {"id": 98, "text": "b", "logprob": -0.5, "special": false},
                      "generated_text": "éb", "details": details});
    assert_eq!(events[2], last);
}

#[tokio::test]
async fn root_route_answers_with_a_list_or_a_stream() {
    let server = Server::new();
    server
        .backend
        .play(&["x"], End::Length)
        .play(&["x"], End::Length);
    let whole = server
        .post("/", body(json!({"return_full_text": true})))
        .await;
    assert_eq!(whole.json(), json!([{"generated_text": "hix"}]));
    let stream = server
        .post("/", json!({"inputs": "hi", "stream": true}))
        .await;
    assert_eq!(stream.events()[0]["generated_text"], "x");
}

#[tokio::test]
async fn tokens_are_not_held_back_and_the_text_ends_after_the_stop_string() {
    for cut in [
        vec!["one END two"],
        vec!["one E", "ND two"],
        vec!["one", " ", "E", "N", "D", " two"],
    ] {
        let server = Server::new();
        server
            .backend
            .play(&cut, End::Length)
            .play(&cut, End::Length);
        let parameters = json!({"stop": ["nothing", "END"], "details": true});
        let whole = server
            .post("/generate", body(parameters.clone()))
            .await
            .json();
        assert_eq!(whole["generated_text"], "one END", "{cut:?}");
        assert_eq!(whole["details"]["finish_reason"], "stop_sequence");
        assert_eq!(whole["details"]["generated_tokens"], 7);
        let events = server
            .post("/generate_stream", body(parameters))
            .await
            .events();
        assert_eq!(events.len(), 7, "one event per token");
        assert_eq!(events[6]["generated_text"], "one END");
        assert_eq!(server.backend.finished(), 2, "ended, not aborted");
        assert_eq!(server.backend.aborted(), 0);
    }
}

#[tokio::test]
async fn sampling_follows_tgi() {
    let server = Server::new();
    let cases = [
        (json!({"inputs": "hi"}), 1.0),
        (body(json!({})), 0.0),
        (body(json!({"temperature": 1.0})), 0.0),
        (body(json!({"temperature": 0.5})), 0.5),
        (body(json!({"top_k": 4})), 1.0),
        (body(json!({"top_p": 0.9})), 1.0),
        (body(json!({"do_sample": true})), 1.0),
        (body(json!({"do_sample": true, "temperature": 0.25})), 0.25),
    ];
    for (body, temperature) in cases {
        server.backend.play(&["x"], End::Length);
        assert_eq!(server.post("/generate", body.clone()).await.status, 200);
        assert_eq!(
            server.backend.last().sampling.temperature,
            temperature,
            "{body}"
        );
    }
}

#[tokio::test]
async fn length_limits_reach_the_engine() {
    let server = Server::new();
    server
        .backend
        .play(&["x"], End::Length)
        .play(&["x"], End::Length);
    server.post("/generate", body(json!({"truncate": 1}))).await;
    let request = server.backend.last();
    assert_eq!(request.prompt, [u32::from(b'i')], "truncate keeps the end");
    let expected = Stopping {
        max_new_tokens: 99,
        min_new_tokens: 0,
        stop_token_ids: vec![EOS],
    };
    assert_eq!(
        request.stopping, expected,
        "no bound means the whole context"
    );
    let parameters = json!({"max_new_tokens": 7, "seed": 3, "top_p": 0.5, "top_k": 2});
    server.post("/generate", body(parameters)).await;
    let request = server.backend.last();
    assert_eq!(request.stopping.max_new_tokens, 7);
    assert_eq!((request.sampling.seed, request.sampling.top_k), (3, 2));
}

#[tokio::test]
async fn tokenize_returns_token_offsets() {
    let server = Server::new();
    let reply = server.post("/tokenize", json!({"inputs": "aé"})).await;
    let tokens = reply.json();
    assert_eq!(
        tokens[0],
        json!({"id": 97, "text": "a", "start": 0, "stop": 1})
    );
    assert_eq!(tokens[1]["id"], 195);
    assert_eq!(tokens[2]["stop"], 2);
}

#[tokio::test]
async fn a_failure_is_reported_by_status_or_in_the_stream() {
    let server = Server::new();
    let failed = || End::Failed("the worker was lost".into());
    server
        .backend
        .play(&["x"], failed())
        .play(&["xy"], failed());
    let whole = server.post("/generate", body(json!({}))).await;
    assert_eq!(whole.status, 424);
    let expected = json!({"error": "Request failed during generation: the worker was lost",
                          "error_type": "generation"});
    assert_eq!(whole.json(), expected);
    let events = server
        .post("/generate_stream", body(json!({})))
        .await
        .events();
    assert_eq!(events.len(), 3, "the tokens before it, then the error");
    assert_eq!(events[2], expected);
    let metrics = server.get("/metrics").await.text();
    assert!(metrics.contains("tgi_request_failure{err=\"generation\"} 2"));
}

#[tokio::test]
async fn info_health_and_metrics() {
    let server = Server::new();
    server.backend.play(&["xyz"], End::Length);
    server.post("/generate", body(json!({}))).await;
    let info = server.get("/info").await.json();
    assert_eq!(info["model_id"], "brook");
    assert_eq!(info["max_total_tokens"], 100);
    assert_eq!(info["max_input_tokens"], 99);
    assert_eq!(info["model_backend"], "transformers");
    assert_eq!(info["limitations"], json!(["no --ep"]));
    for path in ["/health", "/live", "/ready", "/"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let metrics = server.get("/metrics").await.text();
    for line in [
        "tgi_request_count 1",
        "tgi_request_success 1",
        "tgi_request_generated_tokens_sum 3.0",
        "penstock_inter_token_latency_seconds_count 2",
        "penstock_http_responses{route=\"/generate\",status=\"200\"} 1",
    ] {
        assert!(
            metrics.lines().any(|l| l == line),
            "{line} not in:\n{metrics}"
        );
    }
}

#[tokio::test]
async fn api_docs_describe_every_route_and_load_nothing_external() {
    let server = Server::new();
    let api = server.get("/openapi.json").await.json();
    let described = api["paths"].as_object().unwrap();
    let served: BTreeSet<String> = (server.paths().iter())
        .map(|path| path.replace("{*", "{"))
        .collect();
    assert!(served.contains("/generate"), "{served:?}");
    let documented: BTreeSet<String> = described.keys().cloned().collect();
    assert_eq!(served, documented);
    for (path, methods) in described {
        let url = path.replace("{model}", "brook").replace("{version}", "1");
        for method in ["GET", "POST"] {
            let taken = server.send(method, &url, "").await.status != 405;
            let documented = methods.get(method.to_lowercase()).is_some();
            assert_eq!(taken, documented, "{method} {path}");
        }
    }
    let parameters = &api["components"]["schemas"]["GenerateParameters"]["properties"];
    assert!(parameters["max_new_tokens"].is_object());
    let page = server.get("/docs").await.text();
    assert!(
        page.contains("/openapi.json") && !page.contains("http://") && !page.contains("https://")
    );
}

#[tokio::test]
async fn disabled_features_are_refused() {
    let server = Server::with(None, |config| {
        config.text.limits.structured_output = false;
        config.text.limits.max_top_tokens = 5;
    });
    for (parameters, words) in [
        (
            json!({"grammar": {"type": "regex", "value": "a"}}),
            "grammar is not supported",
        ),
        (
            json!({"top_n_tokens": 6}),
            "`top_n_tokens` must be >= 0 and <= 5. Given: 6",
        ),
    ] {
        let body = json!({"inputs": "hi", "parameters": parameters});
        let reply = server.post("/generate", body).await;
        assert_eq!(reply.status, 422);
        assert!(reply.message().contains(words), "{}", reply.text());
    }
    let chat = json!({"prompt": "hi", "response_format": {"type": "json_object"}});
    let reply = server.post("/v1/completions", chat).await;
    assert!(
        reply.message().contains("grammar is not supported"),
        "{}",
        reply.text()
    );
}
