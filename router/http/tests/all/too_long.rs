//! Requests longer than the context: each API has its own message and code, the numbers are true,
//! and the error names the field that was sent.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::{Reply, Server, TEMPLATE};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
/// Maximum number of prompt and output tokens together.
const CONTEXT: usize = 100;

/// Returns a server where each character of a prompt is a token.
fn server() -> Server {
    Server::with(Some("{{ messages[0].content }}"), |_| {})
}

/// Returns the response to a request; the backend has a reply for it.
async fn post(server: &Server, path: &str, body: Value) -> Reply {
    server.backend.play(&["ok"], End::StopToken);
    server.post(path, body).await
}

/// Returns a body whose prompt has `length` tokens.
fn body(path: &str, length: usize, fields: Value) -> Value {
    let text = "x".repeat(length);
    let messages = json!([{"role": "user", "content": text}]);
    let mut body = match path {
        CHAT => json!({"messages": messages}),
        COMPLETIONS => json!({"prompt": text}),
        RESPONSES => json!({"input": text}),
        MESSAGES => json!({"model": "brook", "messages": messages, "max_tokens": 1}),
        "/v2/models/penstock/generate" => json!({"text_input": text, "request_output_len": 1}),
        _ => json!({"inputs": text}),
    };
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[tokio::test]
async fn the_longest_prompt_passes_and_a_longer_one_gets_the_limit() {
    let server = server();
    let openai = "This model's maximum context length is 100 tokens, and the prompt is too long: `";
    for (path, words) in [
        (CHAT, openai),
        (COMPLETIONS, openai),
        (RESPONSES, openai),
        (MESSAGES, "prompt is too long: 100 tokens > 99 maximum"),
        ("/generate", "must have less than 100 tokens. Given: 100"),
        (
            "/v2/models/penstock/generate",
            "less than 100 tokens. Given: 100",
        ),
    ] {
        let reply = post(&server, path, body(path, CONTEXT - 1, json!({}))).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let reply = post(&server, path, body(path, CONTEXT, json!({}))).await;
        assert_eq!(
            reply.status,
            crate::scripted::invalid(path),
            "{path}: {}",
            reply.text()
        );
        assert!(reply.message().contains(words), "{words}: {}", reply.text());
        let openai = matches!(path, CHAT | COMPLETIONS | RESPONSES);
        if openai {
            assert!(
                reply.message().contains("at most 99. Given: 100"),
                "{}",
                reply.text()
            );
            assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
        }
        if path.starts_with("/v1/") {
            assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        }
    }
}

#[tokio::test]
async fn length_errors_name_the_field_that_was_sent() {
    let server = server();
    for (path, field) in [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (COMPLETIONS, "max_tokens"),
        (RESPONSES, "max_output_tokens"),
        (RESPONSES, "max_tokens"),
    ] {
        let reply = post(&server, path, body(path, 90, json!({field: 10}))).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let reply = post(&server, path, body(path, 90, json!({field: 11}))).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["param"], field);
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().unwrap();
        let start = "This model's maximum context length is 100 tokens. However, you requested 101 tokens: 90 in `";
        assert!(message.starts_with(start), "{message}");
        let end = format!("11 in `{field}`, so the prompt is too long.");
        assert!(message.contains(&end), "{message}");
        assert!(
            message.ends_with(&format!("`{field}` of at most 10")),
            "{message}"
        );
        // A shorter prompt would not help.
        for (wanted, prompt) in [(CONTEXT - 1, true), (CONTEXT, false)] {
            let reply = post(&server, path, body(path, 2, json!({field: wanted}))).await;
            let message = reply.message();
            assert_eq!(message.contains("prompt is too long"), prompt, "{message}");
        }
        let reply = post(&server, path, body(path, 5, json!({field: 0}))).await;
        assert_eq!(reply.json()["error"]["param"], field, "{}", reply.text());
    }
    let reply = post(
        &server,
        MESSAGES,
        body(MESSAGES, 90, json!({"max_tokens": 11})),
    )
    .await;
    let words = "input length and `max_tokens` exceed context limit: 90 + 11 > 100";
    assert_eq!(reply.status, 400);
    assert!(reply.message().starts_with(words), "{}", reply.text());
    let path = "/v2/models/penstock/generate";
    let fields = json!({"request_output_len": 11});
    let reply = post(&server, path, body(path, 90, fields)).await;
    assert_eq!(reply.status, 422);
    assert!(
        reply.message().contains("11 `request_output_len`"),
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn token_counting_routes_accept_the_whole_context() {
    let server = server();
    let openai = "maximum context length is 100 tokens";
    for (path, like, words) in [
        ("/v1/responses/input_tokens", RESPONSES, openai),
        (
            "/v1/messages/count_tokens",
            MESSAGES,
            "prompt is too long: 101 tokens > 100",
        ),
        ("/chat_tokenize", CHAT, "less than 101 tokens. Given: 101"),
        ("/tokenize", "/generate", "less than 101 tokens. Given: 101"),
    ] {
        let reply = post(&server, path, body(like, CONTEXT, json!({}))).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let reply = post(&server, path, body(like, CONTEXT + 1, json!({}))).await;
        assert_eq!(
            reply.status,
            crate::scripted::invalid(path),
            "{path}: {}",
            reply.text()
        );
        assert!(reply.message().contains(words), "{words}: {}", reply.text());
    }
}

#[tokio::test]
async fn an_input_limit_below_the_context_is_reported() {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.limits.max_input_tokens = Some(50);
    });
    let passes = post(&server, COMPLETIONS, body(COMPLETIONS, 50, json!({}))).await;
    assert_eq!(passes.status, 200);
    let reply = post(&server, COMPLETIONS, body(COMPLETIONS, 51, json!({}))).await;
    let words =
        "is 100 tokens, and the prompt is too long: `prompt` may have at most 50. Given: 51";
    assert!(reply.message().contains(words), "{}", reply.text());
    let truncated = json!({"inputs": "x", "parameters": {"truncate": 51}});
    let reply = post(&server, "/generate", truncated).await;
    assert!(
        reply.message().contains("less than 51. Given: 51"),
        "{}",
        reply.text()
    );
}
