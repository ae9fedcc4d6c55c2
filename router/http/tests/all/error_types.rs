//! The status, type and code of each kind of failure in each API.

#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value)]

use std::{convert::Infallible, time::Duration};

use axum::{body::Body, http::Request};
use futures_util::stream;
use penstock_request::types::{End, SubmitError};
use serde_json::{Value, json};

use crate::scripted::{Reply, ScriptedReply, Server, script};

/// A route of each API.
const NATIVE: &str = "/generate";
const OPENAI: &str = "/v1/chat/completions";
const ANTHROPIC: &str = "/v1/messages";

/// A failure.
#[derive(Clone, Debug)]
enum Failure {
    /// The request itself is invalid.
    Sent(&'static str, Sending),
    /// The engine refuses a valid request.
    Refused(SubmitError),
    /// The generation fails after two tokens.
    Broken,
}

/// The body of a request.
#[derive(Clone, Copy, Debug)]
enum Sending {
    Right,
    NoJson,
    WrongField,
    OtherModel,
    TooLong,
    TooLarge,
    Unfinished,
    Text,
}

/// Status and type in the three APIs, and the code in OpenAI's.
struct Row {
    failure: Failure,
    native: Option<(u16, &'static str)>,
    openai: (u16, &'static str, Option<&'static str>),
    anthropic: (u16, &'static str),
}

fn right(path: &str) -> Value {
    match path {
        NATIVE => json!({"inputs": "hi"}),
        _ => {
            json!({"model": "brook", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]})
        }
    }
}

fn sent(path: &str, body: Sending) -> Body {
    let long = "x".repeat(200);
    let mut value = right(path);
    match body {
        Sending::Right | Sending::Text => {}
        Sending::NoJson => return Body::from("{"),
        Sending::WrongField => value["colour"] = json!(1),
        Sending::OtherModel => value["model"] = json!("nobody"),
        Sending::TooLong if path == NATIVE => value["inputs"] = json!(long),
        Sending::TooLong => value["messages"][0]["content"] = json!(long),
        Sending::TooLarge => return Body::from(vec![b' '; 64 << 10 | 1]),
        Sending::Unfinished => {
            return Body::from_stream(stream::pending::<Result<&'static [u8], Infallible>>());
        }
    }
    Body::from(value.to_string())
}

async fn provoked(server: &Server, path: &str, failure: &Failure) -> Reply {
    let (method, body) = match failure {
        Failure::Sent(method, body) => (*method, *body),
        Failure::Refused(error) => {
            server.backend.act(ScriptedReply::Refuse(error.clone()));
            ("POST", Sending::Right)
        }
        Failure::Broken => {
            let broken = End::Failed("it broke".into());
            server
                .backend
                .act(ScriptedReply::Play(script(&["a", "b"], broken)));
            ("POST", Sending::Right)
        }
    };
    let media = match body {
        Sending::Text => "text/plain",
        _ => "application/json",
    };
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", media);
    server
        .request(request.body(sent(path, body)).unwrap())
        .await
}

fn server() -> Server {
    Server::with(Some(crate::scripted::TEMPLATE), |config| {
        config.body_timeout = Duration::from_millis(100);
    })
}

/// Returns a field of an error that is a text or null.
fn text(value: &Value) -> Option<&str> {
    assert!(value.is_string() || value.is_null(), "{value}");
    value.as_str()
}

#[tokio::test]
async fn each_error_has_its_status_and_type_in_each_api() {
    let server = server();
    for row in rows() {
        let what = format!("{:?}", row.failure);
        if let Some((status, kind)) = row.native {
            let reply = provoked(&server, NATIVE, &row.failure).await;
            let error = reply.json();
            assert_eq!(
                (reply.status.as_u16(), text(&error["error_type"])),
                (status, Some(kind)),
                "{what}"
            );
            assert!(!error["error"].as_str().unwrap().is_empty());
        }
        let reply = provoked(&server, OPENAI, &row.failure).await;
        let error = &reply.json()["error"];
        let found = (
            reply.status.as_u16(),
            text(&error["type"]).unwrap(),
            text(&error["code"]),
        );
        assert_eq!(found, row.openai, "{what}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        let reply = provoked(&server, ANTHROPIC, &row.failure).await;
        let whole = reply.json();
        let error = &whole["error"];
        let found = (reply.status.as_u16(), text(&error["type"]).unwrap());
        assert_eq!(found, row.anthropic, "{what}");
        assert_eq!(whole["type"], "error");
        assert!(!error["message"].as_str().unwrap().is_empty());
        let retry_after = matches!(row.anthropic.0, 429 | 503);
        assert_eq!(
            reply.headers.contains_key("retry-after"),
            retry_after,
            "{what}"
        );
    }
}

const INVALID: &str = "invalid_request_error";

/// Returns the expected rows. Anthropic documents its types by status: 400 and other 4xx
/// `invalid_request_error`, 404 `not_found_error`, 413 `request_too_large`, 429 `rate_limit_error`,
/// 500 `api_error`, and `overloaded_error` for temporary failures, with the status 529 there and
/// 503 here.
fn rows() -> Vec<Row> {
    [invalid_rows(), other_rows(), coded_rows()]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the rows of invalid requests.
fn invalid_rows() -> Vec<Row> {
    let row = |failure, native, status, code| Row {
        failure,
        native: Some(native),
        openai: (status, INVALID, code),
        anthropic: (status, INVALID),
    };
    let sent = |sending| Failure::Sent("POST", sending);
    let invalid = (422, "validation");
    let method = (405, "method_not_allowed");
    let too_long = Some("context_length_exceeded");
    let refused = SubmitError::Invalid("no such grammar".into());
    vec![
        row(sent(Sending::NoJson), (400, "validation"), 400, None),
        row(sent(Sending::WrongField), invalid, 400, None),
        row(sent(Sending::TooLong), invalid, 400, too_long),
        row(Failure::Refused(refused), invalid, 400, None),
        row(Failure::Sent("GET", Sending::Right), method, 405, None),
        row(sent(Sending::Unfinished), (408, "timeout"), 408, None),
        row(
            sent(Sending::Text),
            (415, "unsupported_media_type"),
            415,
            None,
        ),
    ]
}

fn other_rows() -> Vec<Row> {
    let row = |failure, native: &'static str, status, openai: &'static str, anthropic| Row {
        failure,
        native: Some((status, native)),
        openai: (status, openai, None),
        anthropic: (status, anthropic),
    };
    let retry_after = Duration::from_secs(2);
    let reason = "the workers are restarting".into();
    let (unavailable, fault) = (
        SubmitError::Unavailable {
            reason,
            retry_after,
        },
        SubmitError::Internal("our fault".into()),
    );
    let down = |error| {
        let failure = Failure::Refused(error);
        row(
            failure,
            "unavailable",
            503,
            "server_error",
            "overloaded_error",
        )
    };
    let large = Failure::Sent("POST", Sending::TooLarge);
    vec![
        down(unavailable),
        down(SubmitError::Draining),
        row(
            large,
            "payload_too_large",
            413,
            INVALID,
            "request_too_large",
        ),
        row(
            Failure::Broken,
            "generation",
            424,
            "server_error",
            "api_error",
        ),
        row(
            Failure::Refused(fault),
            "internal",
            500,
            "server_error",
            "api_error",
        ),
    ]
}

/// Returns the rows of failures that have a code.
fn coded_rows() -> Vec<Row> {
    let retry_after = Duration::from_secs(2);
    vec![
        Row {
            failure: Failure::Sent("POST", Sending::OtherModel),
            native: None,
            openai: (404, INVALID, Some("model_not_found")),
            anthropic: (404, "not_found_error"),
        },
        Row {
            failure: Failure::Refused(SubmitError::Overloaded { retry_after }),
            native: Some((429, "overloaded")),
            openai: (429, "rate_limit_error", Some("rate_limit_exceeded")),
            anthropic: (429, "rate_limit_error"),
        },
    ]
}

#[tokio::test]
async fn unknown_path_error_has_the_format_of_its_api() {
    let server = server();
    let native = server.get("/nothing").await;
    assert_eq!(
        (native.status.as_u16(), native.json()["error_type"].clone()),
        (404, json!("not_found"))
    );
    for (path, kind) in [
        ("/v1/nothing", "invalid_request_error"),
        ("/v1/messages/nothing", "not_found_error"),
    ] {
        let reply = server.get(path).await;
        let error = reply.json()["error"]["type"].clone();
        assert_eq!((reply.status.as_u16(), error), (404, json!(kind)), "{path}");
    }
}

#[tokio::test]
async fn stream_errors_have_the_same_types() {
    let server = server();
    for (path, field, kind) in [
        (OPENAI, "/error/type", "server_error"),
        (ANTHROPIC, "/error/type", "api_error"),
    ] {
        let broken = End::Failed("it broke".into());
        server
            .backend
            .act(ScriptedReply::Play(script(&["a", "b"], broken)));
        let mut body = right(path);
        body["stream"] = json!(true);
        let reply = server.post(path, body).await;
        let output = reply.text();
        assert_eq!(reply.status, 200, "{output}");
        let mut last = output
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let last = last.rfind(|data| *data != "[DONE]").unwrap();
        let error: Value = serde_json::from_str(last).unwrap();
        assert_eq!(error.pointer(field), Some(&json!(kind)), "{output}");
    }
}
