//! Invalid input is refused before anything runs, with field, rule and value, in the route's error
//! format.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::time::Duration;

use axum::{body::Body, http::Request};
use penstock_http::Cors;
use penstock_request::EngineState;
use penstock_request::types::SubmitError;
use serde_json::{Value, json};

use crate::scripted::{ScriptedReply, Server, invalid};

const NATIVE: [&str; 3] = ["/generate", "/generate_stream", "/"];

fn native(parameters: Value) -> Value {
    json!({"inputs": "hi", "parameters": parameters})
}

#[tokio::test]
async fn native_validation_errors_match_tgi() {
    let server = Server::new();
    let long = "x".repeat(100);
    for (body, message) in [
        (json!({"inputs": ""}), "`inputs` cannot be empty"),
        (
            json!({"inputs": long}),
            "`inputs` must have less than 100 tokens. Given: 100",
        ),
        (
            native(json!({"temperature": 0.0})),
            "`temperature` must be strictly positive",
        ),
        (
            native(json!({"top_k": 0})),
            "`top_k` must be strictly positive",
        ),
        (
            native(json!({"top_p": 0.0})),
            "`top_p` must be > 0.0 and < 1.0",
        ),
        (
            native(json!({"top_p": 1.0})),
            "`top_p` must be > 0.0 and < 1.0",
        ),
        (
            native(json!({"max_new_tokens": 0})),
            "`max_new_tokens` must be strictly positive",
        ),
        (
            native(json!({"max_new_tokens": 99})),
            "`inputs` tokens + `max_new_tokens` must be <= 100. \
            Given: 2 `inputs` tokens and 99 `max_new_tokens`",
        ),
        (
            native(json!({"stop": vec!["a"; 17]})),
            "`stop` supports up to 16 stop sequences. Given: 17",
        ),
        (
            native(json!({"stop": [""]})),
            "`stop` sequences cannot be empty strings",
        ),
        (
            native(json!({"truncate": 0})),
            "`truncate` must be strictly positive and less than 100. Given: 0",
        ),
    ] {
        for path in NATIVE {
            let reply = server.post(path, body.clone()).await;
            assert_eq!(reply.status, 422, "{path} {body}");
            let expected = json!({"error": format!("Input validation error: {message}"),
                                  "error_type": "validation"});
            assert_eq!(reply.json(), expected, "{path}");
        }
    }
    assert!(
        server.backend.requests().is_empty(),
        "nothing reached the engine"
    );
}

#[tokio::test]
async fn wrong_types_and_unknown_fields_are_named() {
    let server = Server::new();
    for (body, names) in [
        (json!({}), vec!["inputs"]),
        (json!({"inputs": 5}), vec!["inputs", "5"]),
        (json!({"inputs": "hi", "colour": 1}), vec!["colour"]),
        (native(json!({"colour": 1})), vec!["parameters", "colour"]),
        (
            native(json!({"max_new_tokens": -1})),
            vec!["max_new_tokens", "-1"],
        ),
        (
            native(json!({"max_new_tokens": 1e12 as u64})),
            vec!["max_new_tokens", "1000000000000"],
        ),
        (
            native(json!({"temperature": "hot"})),
            vec!["temperature", "hot"],
        ),
        (json!([1]), vec!["JSON object"]),
    ] {
        let reply = server.post("/generate", body.clone()).await;
        assert_eq!(reply.status, 422, "{body}");
        for name in names {
            assert!(
                reply.message().contains(name),
                "{name} not in {}",
                reply.message()
            );
        }
    }
}

/// Fields added to a valid request, the field at fault, and a part of the message.
type Case = (Value, &'static str, &'static str);

fn out_of_range() -> Vec<Case> {
    vec![
        (json!({"max_tokens": 0}), "max_tokens", "strictly positive"),
        (
            json!({"max_tokens": 1000}),
            "max_tokens",
            "1000 in `max_tokens`",
        ),
        (
            json!({"min_tokens": 9, "max_tokens": 5}),
            "min_tokens",
            "Given: 9",
        ),
        (json!({"temperature": -0.5}), "temperature", "-0.5"),
        (json!({"top_p": 0}), "top_p", "Given: 0"),
        (json!({"top_k": -3}), "top_k", "-3"),
        (json!({"stop": vec!["1"; 17]}), "stop", "Given: 17"),
        (
            json!({"stop": "x".repeat(5000)}),
            "stop",
            "4096 bytes. Given: 5000",
        ),
        (
            json!({"stream": false, "stream_options": {}}),
            "stream_options",
            "`stream`",
        ),
        (
            json!({"max_tokens": 4, "max_completion_tokens": 5}),
            "max_completion_tokens",
            "4 and 5",
        ),
    ]
}

fn unfit_messages() -> Vec<Case> {
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    let image = json!([{"role": "user", "content": image}]);
    let wizard = json!([{"role": "wizard", "content": "x"}]);
    let both = json!({"continue_final_message": true, "add_generation_prompt": true});
    vec![
        (json!({"messages": []}), "messages", "empty"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages",
            "`content`",
        ),
        (
            json!({"messages": wizard}),
            "messages",
            "unknown role wizard",
        ),
        (
            json!({"messages": image}),
            "messages[0].content[0]",
            "image_url",
        ),
        (both, "continue_final_message", "both"),
    ]
}

fn not_offered() -> Vec<Case> {
    let object = json!({"type": "json_object"});
    vec![
        (json!({"n": 0}), "n", "> 0 and <= 32. Given: 0"),
        (json!({"n": 33}), "n", "<= 32. Given: 33"),
        (json!({"tools": [{}]}), "tools[0].type", "missing field"),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
            "unknown value `xml`, expected one of `text`",
        ),
        (
            json!({"response_format": object, "guided_regex": "a"}),
            "guided_regex",
            "only one grammar",
        ),
        (
            json!({"response_format": object, "min_tokens": 2}),
            "min_tokens",
            "cannot go with `response_format`",
        ),
        (
            json!({"response_format": object, "ignore_eos": true}),
            "ignore_eos",
            "cannot go with `response_format`",
        ),
        (
            json!({"bad_words": ["x", ""]}),
            "bad_words",
            "cannot be empty",
        ),
    ]
}

#[tokio::test]
async fn openai_validation_errors_name_the_field() {
    let server = Server::new();
    let hi = json!([{"role": "user", "content": "hi"}]);
    for (fields, param, part) in [out_of_range(), unfit_messages(), not_offered()].concat() {
        let mut body = json!({"model": "brook", "messages": hi, "stream": true});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", body).await;
        assert_eq!(reply.status, 400, "{fields}: {}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], param, "{fields}: {error}");
        assert!(
            reply.message().contains(part),
            "{part} not in {}",
            reply.message()
        );
    }
    assert!(server.backend.requests().is_empty());
}

#[tokio::test]
async fn completion_prompts_are_validated() {
    let server = Server::with(None, |config| config.max_client_batch_size = 2);
    for (prompt, part) in [
        (json!(""), "empty"),
        (json!([]), "empty"),
        (json!([""]), "empty"),
        (json!([300]), "Given: 300"),
        (json!("a<far>b"), "token ids must be <= 256. Given: 257"),
        (json!(["a", "b", "c"]), "batch size of 2. Given: 3"),
        (json!(["a", 1]), "token ids beside prompts"),
        (json!(5), "`prompt`"),
    ] {
        let reply = server
            .post("/v1/completions", json!({"prompt": prompt}))
            .await;
        assert_eq!(reply.status, 400, "{prompt}");
        assert!(
            reply.message().contains(part),
            "{part} not in {}",
            reply.message()
        );
    }
    let messages = json!([{"role": "user", "content": "hi"}]);
    let reply = server
        .post("/v1/chat/completions", json!({"messages": messages}))
        .await;
    assert_eq!(reply.status, 400);
    assert!(
        reply.message().contains("no chat template"),
        "{}",
        reply.message()
    );
}

#[tokio::test]
async fn a_body_that_is_not_json_gets_a_json_error() {
    let server = Server::new();
    for path in [
        "/generate",
        "/generate_stream",
        "/v1/completions",
        "/v1/chat/completions",
    ] {
        for body in [
            &b"{\"inputs\": "[..],
            b"\xff\xfe",
            b"",
            b"{} x",
            &b"[".repeat(1000),
            b"{\"inputs\": NaN}",
        ] {
            let reply = server.send("POST", path, body.to_vec()).await;
            assert!(
                reply.status == 400 || reply.status == invalid(path),
                "{path} {body:?} {}",
                reply.status
            );
            assert!(!reply.message().is_empty());
        }
        let large = server.send("POST", path, vec![b' '; 100 << 10]).await;
        assert_eq!(large.status, 413);
        assert!(large.message().contains("65536"), "{}", large.message());
        let form = Request::post(path)
            .header("content-type", "text/plain")
            .body(Body::from("{}"));
        let reply = server.request(form.unwrap()).await;
        assert_eq!(reply.status, 415);
        assert!(reply.message().contains("application/json"));
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_refused() {
    let server = Server::new();
    let lost = server.get("/nothing").await;
    assert_eq!(
        (
            lost.status.as_u16(),
            lost.json()["error_type"].as_str().unwrap()
        ),
        (404, "not_found")
    );
    assert!(server.get("/v1/nothing").await.json()["error"]["message"].is_string());
    let method = server.get("/generate").await;
    assert_eq!(method.status, 405);
    assert!(method.message().contains("GET"));
}

#[tokio::test]
async fn overload_and_unavailability_send_retry_after() {
    let server = Server::new();
    let retry_after = Duration::from_millis(2500);
    let cases = [
        (
            SubmitError::Overloaded { retry_after },
            429,
            "3",
            "overloaded",
        ),
        (
            SubmitError::Unavailable {
                reason: "restarting".into(),
                retry_after,
            },
            503,
            "3",
            "unavailable",
        ),
        (SubmitError::Draining, 503, "5", "unavailable"),
    ];
    for (error, status, seconds, kind) in cases {
        for path in NATIVE {
            server.backend.act(ScriptedReply::Refuse(error.clone()));
            let body = json!({"inputs": "hi", "stream": path == "/" || path.ends_with("stream")});
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, status, "{path}");
            assert_eq!(reply.headers["retry-after"], seconds);
            assert_eq!(reply.json()["error_type"], kind);
        }
        server.backend.act(ScriptedReply::Refuse(error));
        let reply = server
            .post("/v1/completions", json!({"prompt": "hi", "stream": true}))
            .await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.headers["retry-after"], seconds);
    }
    let metrics = server.get("/metrics").await.text();
    assert!(
        metrics.contains("tgi_request_failure{err=\"overloaded\"} 4"),
        "{metrics}"
    );
}

#[tokio::test]
async fn requests_are_refused_while_the_model_loads() {
    let server = Server::new();
    let loading = EngineState::Loading {
        phase: "weights".into(),
        done: 1,
        total: 4,
    };
    server.backend.set_state(loading);
    for path in ["/health", "/ready"] {
        let refused = server.get(path).await;
        assert_eq!(refused.status, 503);
        let message = refused.message();
        assert!(message.contains("weights: 25%"), "{message}");
    }
    let reply = server.post("/generate", json!({"inputs": "hi"})).await;
    assert_eq!(reply.status, 503);
    assert!(reply.headers.contains_key("retry-after"));
    assert_eq!(
        server.get("/info").await.json()["max_total_tokens"],
        Value::Null
    );
    server.backend.set_state(EngineState::Stopped {
        reason: "no such file: /models/a".into(),
    });
    // The reason is for the operator only: it may contain file names.
    for path in ["/health", "/ready"] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 503);
        assert!(reply.message().ends_with("the server's log says why"));
    }
}

#[tokio::test]
async fn cross_origin_requests_are_allowed_where_configured() {
    let server = Server::with(None, |config| config.cors = Cors::Any);
    let preflight = Request::options("/generate")
        .header("origin", "https://example.org")
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "content-type,authorization",
        )
        .body(Body::empty());
    let reply = server.request(preflight.unwrap()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["access-control-allow-origin"], "*");
    // `*` would not allow Authorization.
    assert_eq!(
        reply.headers["access-control-allow-headers"],
        "content-type,authorization"
    );
}

#[tokio::test]
async fn unknown_tensor_names_are_reported_with_their_list() {
    let server = Server::new();
    let prompt = json!({"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]});
    let other = json!({"name": "colour", "shape": [1], "datatype": "BYTES", "data": ["a"]});
    for (body, words) in [
        (
            json!({"inputs": [prompt, other]}),
            "`inputs`: unknown input `colour`",
        ),
        (
            json!({"inputs": [prompt], "outputs": [{"name": "colour"}]}),
            "`outputs`: unknown output `colour`",
        ),
    ] {
        let reply = server.post("/v2/models/penstock/infer", body).await;
        assert_eq!(reply.status, 422);
        assert!(reply.message().contains(words), "{}", reply.message());
    }
}
