//! Who may use the server: API keys, the admin token, host names, origins of web pages.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{sync::Arc, time::Duration};

use axum::body::Body;
use axum::http::Request;
use penstock_http::{Access, Cors, KeyHash, Reload};
use penstock_request::types::End;
use serde_json::json;

use crate::scripted::{Reply, Server};

const KEY: &str = "sk-first";

fn guarded() -> Server {
    Server::with(None, |config| {
        config.access.keys = vec![KeyHash::of(KEY), KeyHash::of("sk-second")];
    })
}

async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    let body = json!({"inputs": "hi"}).to_string();
    server
        .request(request.body(Body::from(body)).unwrap())
        .await
}

#[tokio::test]
async fn every_route_but_probes_and_metrics_needs_a_key() {
    let server = guarded();
    let open = [
        "/health",
        "/ready",
        "/ping",
        "/metrics",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{model}/ready",
        "/v2/models/{model}/versions/{version}/ready",
    ];
    let paths = server.paths();
    assert!(paths.len() > 40, "{paths:?}");
    for route in &paths {
        let path = route.replace("{model}", "brook").replace("{version}", "1");
        let status = ask(&server, "GET", &path, &[]).await.status;
        let is_open = open.contains(&route.as_str()) || route == "/";
        assert_eq!(status == 200, is_open, "GET {route}: {status}");
        assert_eq!(status == 401, !is_open, "GET {route}: {status}");
        // `/` generates by POST.
        let status = ask(&server, "POST", &path, &[]).await.status;
        assert_eq!(status, 401, "POST {route}");
    }
    assert_eq!(ask(&server, "GET", "/nowhere", &[]).await.status, 401);
    assert!(server.backend.requests().is_empty());
}

#[tokio::test]
async fn a_key_is_taken_from_either_header() {
    let server = guarded();
    for (name, value) in [
        ("authorization", "Bearer sk-first"),
        ("authorization", "bearer sk-second"),
        ("x-api-key", "sk-first"),
    ] {
        server.backend.play(&["a"], End::StopToken);
        let reply = ask(&server, "POST", "/generate", &[(name, value)]).await;
        assert_eq!(reply.status, 200, "{name}: {value}: {}", reply.text());
    }
    for (name, value) in [
        ("authorization", "Bearer sk-firs"),
        ("authorization", "Bearer "),
        ("authorization", "Basic sk-first"),
        ("authorization", "sk-first"),
        ("x-api-key", "sk-third"),
    ] {
        let reply = ask(&server, "POST", "/generate", &[(name, value)]).await;
        assert_eq!(reply.status, 401, "{name}: {value}");
    }
}

#[tokio::test]
async fn a_refusal_has_the_shape_of_its_api() {
    let server = guarded();
    let native = ask(&server, "POST", "/generate", &[]).await;
    assert_eq!(native.headers["www-authenticate"], "Bearer");
    assert_eq!(native.json()["error_type"], "unauthorized");
    assert!(native.message().contains("is missing"));
    let wrong = [("authorization", "Bearer no")];
    let openai = ask(&server, "POST", "/v1/chat/completions", &wrong)
        .await
        .json();
    assert_eq!(openai["error"]["code"], "invalid_api_key");
    assert!(
        openai["error"]["message"]
            .as_str()
            .unwrap()
            .contains("is wrong")
    );
    let anthropic = ask(&server, "POST", "/v1/messages", &[]).await.json();
    assert_eq!(anthropic["error"]["type"], "authentication_error");
}

#[tokio::test]
async fn admin_routes_have_a_token_of_their_own() {
    let server = guarded();
    let key = [("authorization", "Bearer sk-first")];
    assert_eq!(
        ask(&server, "POST", "/admin/reload", &key).await.status,
        404
    );

    let reloads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reloads);
    let server = Server::with(None, |config| {
        config.access.keys = vec![KeyHash::of(KEY)];
        config.access.admin = Some(KeyHash::of("root"));
        config.reload = Reload::new(move || match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err("tenants.toml: line 3".into()),
        });
    });
    for path in ["/admin/reload", "/admin/nowhere"] {
        assert_eq!(ask(&server, "POST", path, &key).await.status, 401, "{path}");
    }
    let token = [("authorization", "Bearer root")];
    assert_eq!(ask(&server, "POST", "/generate", &token).await.status, 401);
    assert_eq!(
        ask(&server, "POST", "/admin/nowhere", &token).await.status,
        404
    );
    assert_eq!(
        ask(&server, "POST", "/admin/reload", &token).await.status,
        200
    );
    let failed = ask(&server, "POST", "/admin/reload", &token).await;
    assert_eq!(failed.status, 422);
    assert!(failed.message().contains("line 3"));
    assert_eq!(reloads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn requests_for_other_hosts_are_refused_on_every_route() {
    let server = Server::with(None, |config| {
        config.access = Access {
            hosts: Some(vec!["llm.example".into()]),
            ..Access::default()
        };
    });
    for path in ["/metrics", "/v1/models", "/nowhere"] {
        let reply = ask(&server, "GET", path, &[("host", "evil.example:3000")]).await;
        assert_eq!(reply.status, 403, "{path}");
        assert!(reply.message().contains("--allowed-host evil.example"));
    }
    for host in ["llm.example", "127.0.0.1:3000", "localhost"] {
        let reply = ask(&server, "GET", "/v1/models", &[("host", host)]).await;
        assert_eq!(reply.status, 200, "{host}");
    }
}

#[tokio::test]
async fn web_pages_are_kept_out_unless_their_origin_is_allowed() {
    let page = ("origin", "https://chat.example");
    let ask_first = [page, ("access-control-request-method", "POST")];
    let closed = Server::new();
    let reply = ask(&closed, "OPTIONS", "/generate", &ask_first).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"));
    let opened = Server::with(None, |config| {
        config.cors = Cors::Origins(vec!["https://chat.example".into()]);
        config.access.keys = vec![KeyHash::of(KEY)];
    });
    // A preflight request cannot have a key. A page must be able to read why it was refused.
    for (method, status) in [("OPTIONS", 200), ("POST", 401)] {
        let reply = ask(&opened, method, "/generate", &ask_first).await;
        assert_eq!(reply.status, status);
        let allowed = &reply.headers["access-control-allow-origin"];
        assert_eq!(allowed, "https://chat.example");
    }
    let other = [("origin", "https://evil.example")];
    let reply = ask(&opened, "POST", "/generate", &other).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn responses_have_the_id_of_the_request() {
    let server = guarded();
    let own = ask(&server, "GET", "/health", &[("x-request-id", "abc-1")]).await;
    assert_eq!(own.headers["x-request-id"], "abc-1");
    let long = "x".repeat(129);
    for unusable in ["", "two words", &long] {
        let reply = ask(&server, "POST", "/generate", &[("x-request-id", unusable)]).await;
        let id = reply.headers["x-request-id"].to_str().unwrap();
        assert_eq!(id.len(), 32, "{unusable}: {id}");
    }
}

#[tokio::test]
async fn the_first_byte_of_a_body_has_a_deadline_of_its_own() {
    let server = Server::with(None, |config| {
        config.first_byte_timeout = Duration::from_millis(50);
        config.body_timeout = Duration::from_secs(60);
    });
    let body = futures_util::stream::pending::<Result<&[u8], std::convert::Infallible>>();
    let reply = server
        .send("POST", "/generate", Body::from_stream(body))
        .await;
    assert_eq!(reply.status, 408);
    assert!(reply.message().contains("no byte"), "{}", reply.message());
}
