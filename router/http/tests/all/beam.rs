//! Beam search on all routes that support it.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::{BeamParameters, EarlyStopping, End};
use serde_json::{Value, json};

use crate::scripted::{Server, invalid};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Returns a body of a route with these fields among its parameters.
fn body(path: &str, fields: &Value) -> Value {
    let mut body = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "hi"}]}),
        COMPLETIONS => json!({"prompt": "hi"}),
        _ => return json!({"inputs": "hi", "parameters": fields}),
    };
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[tokio::test]
async fn beam_search_fields_reach_the_engine() {
    let server = Server::new();
    for text in ["a", "b"] {
        server.backend.play(&[text], End::Length);
    }
    let fields = json!({"use_beam_search": true, "best_of": 4, "n": 2, "temperature": 0,
                        "early_stopping": "never", "length_penalty": 0.5, "top_k": -1});
    let answer = server.post(COMPLETIONS, body(COMPLETIONS, &fields)).await;
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["text"], "a");
    assert_eq!(answer["choices"][1]["text"], "b");
    let request = server.backend.last();
    let beam = BeamParameters {
        width: 4,
        length_penalty: 0.5,
        early_stopping: EarlyStopping::Never,
    };
    assert_eq!((request.beam, request.choices), (Some(beam), 2));
    assert_eq!(request.sampling.temperature, 0.0);
    let usual = BeamParameters {
        width: 3,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::WhenFull,
    };
    for path in [CHAT, COMPLETIONS, "/generate"] {
        server.backend.play(&["c"], End::Length);
        let fields = json!({"use_beam_search": true, "beam_width": 3, "early_stopping": true});
        let reply = server.post(path, body(path, &fields)).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(server.backend.last().beam, Some(usual), "{path}");
    }
    server.backend.play(&["d"], End::Length);
    let fields = json!({"use_beam_search": true, "n": 1});
    server.post(CHAT, body(CHAT, &fields)).await;
    assert_eq!(server.backend.last().beam.unwrap().width, 1);
}

#[tokio::test]
async fn beam_search_answers_are_streamed() {
    let server = Server::new();
    for path in [CHAT, COMPLETIONS] {
        server.backend.play(&["ab"], End::Length);
        let fields = json!({"use_beam_search": true, "beam_width": 3, "stream": true});
        let events = server.post(path, body(path, &fields)).await.events();
        let said = events.iter().map(|event| &event["choices"][0]);
        let said = said.filter_map(|c| c["text"].as_str().or(c["delta"]["content"].as_str()));
        assert_eq!(said.collect::<String>(), "ab", "{path}");
    }
    server.backend.play(&["ab"], End::Length);
    let fields = json!({"use_beam_search": true, "beam_width": 3});
    let path = "/generate_stream";
    let events = server.post(path, body(path, &fields)).await.events();
    assert_eq!(events.last().unwrap()["generated_text"], "ab");
}

/// Posts a beam search with one more field and returns the error message.
async fn refusal(server: &Server, path: &str, field: &str, value: &Value) -> String {
    let mut fields = json!({"use_beam_search": true, "length_penalty": 2});
    fields[field] = value.clone();
    let reply = server.post(path, body(path, &fields)).await;
    assert_eq!(
        reply.status,
        invalid(path),
        "{path} {field}: {}",
        reply.text()
    );
    assert!(reply.message().contains(field), "{}", reply.message());
    reply.message()
}

#[tokio::test]
async fn unsupported_beam_search_fields_are_refused_by_name() {
    let server = Server::new();
    for (field, value, part) in [
        ("beam_width", json!(0), "must be >= `n` (1). Given: 0"),
        ("n", json!(5), "must be >= `n` (5). Given: 3"),
        ("beam_width", json!(20), "must be > 0 and <= 19 for this"),
        ("length_penalty", json!(1e9), "`length_penalty` must be"),
        ("early_stopping", json!("soon"), "\"never\""),
        ("use_beam_search", json!(false), "is only allowed when"),
    ] {
        let mut fields = json!({"use_beam_search": true, "length_penalty": 2, "beam_width": 3});
        fields[field] = value;
        let reply = server.post(COMPLETIONS, body(COMPLETIONS, &fields)).await;
        assert_eq!(reply.status, 400, "{field}: {}", reply.text());
        let message = reply.message();
        assert!(message.contains(part), "{part} not in {message}");
    }
    let cannot = "cannot be combined with `use_beam_search`";
    for (field, value) in [
        ("temperature", json!(0.5)),
        ("top_k", json!(5)),
        ("min_p", json!(0.1)),
        ("logit_bias", json!({"5": 1})),
        ("bad_words_ids", json!([[5]])),
        ("stop", json!("x")),
        ("min_tokens", json!(5)),
        ("guided_regex", json!("[0-9]")),
        ("response_format", json!({"type": "json_object"})),
    ] {
        for path in [CHAT, COMPLETIONS] {
            let message = refusal(&server, path, field, &value).await;
            assert!(message.contains(cannot), "{message}");
        }
    }
    for (path, field, value) in [
        (
            "/generate",
            "grammar",
            json!({"type": "regex", "value": "a"}),
        ),
        ("/generate", "watermark", json!(true)),
    ] {
        let message = refusal(&server, path, field, &value).await;
        assert!(message.contains(cannot), "{message}");
    }
    assert!(server.backend.requests().is_empty());
}

#[tokio::test]
async fn beam_search_returns_logprobs() {
    let server = Server::new();
    for (path, fields, count, top) in [
        (COMPLETIONS, json!({"logprobs": 3}), 3, 4),
        (COMPLETIONS, json!({"logprobs": 0}), 0, 4),
        (CHAT, json!({"logprobs": true, "top_logprobs": 5}), 5, 5),
        (
            "/generate",
            json!({"top_n_tokens": 5, "details": true}),
            5,
            5,
        ),
    ] {
        server.backend.play(&["a"], End::Length);
        let mut wanted = json!({"use_beam_search": true, "beam_width": 3});
        let fields = fields.as_object().unwrap().clone();
        wanted.as_object_mut().unwrap().extend(fields);
        let reply = server.post(path, body(path, &wanted)).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let request = server.backend.last();
        assert_eq!(request.sampling.top_logprobs, count, "{path}");
        // The beam search itself needs these; the response has `top_logprobs` of them.
        assert_eq!(request.worker_top_logprobs(), top, "{path}");
    }
}
