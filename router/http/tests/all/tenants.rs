//! Tenants by key: their limits, and on whose behalf a request runs.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use penstock_http::{KeyHash, KeyedTenant, Tenants};
use penstock_request::tenant::Tenant;
use penstock_request::types::End;
use serde_json::json;
use tower::ServiceExt;

use crate::scripted::{Reply, Server, chat, event};

fn tenant(name: &str, change: impl FnOnce(&mut Tenant)) -> KeyedTenant {
    let mut tenant = Tenant::new(name);
    change(&mut tenant);
    KeyedTenant {
        keys: vec![KeyHash::of(&format!("key-of-{name}"))],
        tenant: Arc::new(tenant),
    }
}

/// Returns a server, and its tenants.
fn server(list: Vec<KeyedTenant>) -> (Server, Tenants) {
    let tenants = Tenants::default();
    tenants.replace(list);
    let server = Server::with(None, |config| {
        config.access.tenants = tenants.clone();
        config.access.keys = vec![KeyHash::of("plain")];
    });
    (server, tenants)
}

fn request(key: &str, headers: &[(&str, &str)], path: &str) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.header("x-api-key", key);
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    request
        .body(Body::from(json!({"inputs": "hi"}).to_string()))
        .unwrap()
}

async fn generate(server: &Server, key: &str, headers: &[(&str, &str)]) -> Reply {
    server.backend.play(&["abcd"], End::Length);
    server.request(request(key, headers, "/generate")).await
}

#[tokio::test]
async fn a_key_decides_the_tenant_and_a_header_only_without_one() {
    let (server, _) = server(vec![tenant("alice", |_| ()), tenant("bob", |_| ())]);
    let flow = [
        ("x-llm-d-inference-fairness-id", "team"),
        ("x-slo-ttft-ms", "200"),
    ];
    for name in ["alice", "bob"] {
        let key = format!("key-of-{name}");
        assert_eq!(generate(&server, &key, &flow).await.status, 200);
        let caller = server.backend.last_caller();
        assert_eq!(caller.tenant.as_ref().unwrap().name, name);
        assert!(caller.share(None).isolated);
        assert_eq!(caller.first_token_within, Some(Duration::from_millis(200)));
    }
    assert_eq!(generate(&server, "plain", &flow).await.status, 200);
    let caller = server.backend.last_caller();
    assert!(caller.tenant.is_none());
    assert_eq!(caller.flow.as_deref(), Some("team"));
    let wrong = server
        .request(request("key-of-carol", &[], "/generate"))
        .await;
    assert_eq!(wrong.status, 401);
    let late = server
        .request(request("plain", &[("x-slo-ttft-ms", "soon")], "/generate"))
        .await;
    assert_eq!(late.status, 422);
    assert!(late.message().contains("x-slo-ttft-ms"));
}

#[tokio::test]
async fn requests_beyond_the_limit_get_429_until_a_stream_ends() {
    let (server, _) = server(vec![tenant("alice", |alice| {
        alice.max_concurrent = Some(1);
    })]);
    let tokens = server.backend.follow();
    let stream = request("key-of-alice", &[], "/generate_stream");
    let stream = server.router.clone().oneshot(stream).await.unwrap();
    let refused = server
        .request(request("key-of-alice", &[], "/generate"))
        .await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(
        refused.message().contains("`alice`"),
        "{}",
        refused.message()
    );
    assert_eq!(
        server.backend.requests().len(),
        1,
        "it was refused before any work"
    );
    // Others, and reads, are not affected.
    assert_eq!(generate(&server, "plain", &[]).await.status, 200);
    let read = Request::get("/info").header("x-api-key", "key-of-alice");
    assert_eq!(
        server
            .request(read.body(Body::empty()).unwrap())
            .await
            .status,
        200
    );
    let mut last = event("a");
    last.end = Some(End::Length);
    tokens.send(last).unwrap();
    stream.into_body().collect().await.unwrap();
    assert_eq!(generate(&server, "key-of-alice", &[]).await.status, 200);
}

#[tokio::test]
async fn tokens_of_prompt_and_answer_count_and_outlive_a_reload() {
    let limited = |most| {
        vec![tenant("alice", |alice| {
            alice.tokens_per_minute = Some(most);
        })]
    };
    let (server, tenants) = server(limited(5));
    // Two prompt tokens, four generated ones.
    assert_eq!(generate(&server, "key-of-alice", &[]).await.status, 200);
    let refused = server
        .request(request("key-of-alice", &[], "/v1/chat/completions"))
        .await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let wait: u64 = refused.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    tenants.replace(limited(4));
    let refused = server
        .request(request("key-of-alice", &[], "/generate"))
        .await;
    assert_eq!(refused.status, 429);
    tenants.replace(limited(1_000));
    assert_eq!(generate(&server, "key-of-alice", &[]).await.status, 200);
}

#[tokio::test]
async fn priority_reaches_the_engine() {
    let server = Server::new();
    server.backend.play(&["a"], End::Length);
    let reply = server
        .post("/v1/chat/completions", chat(json!({"priority": -3})))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(server.backend.last().priority, -3);
}
