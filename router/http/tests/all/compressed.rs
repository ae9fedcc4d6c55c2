//! Compressed bodies are inflated within the limits of plain ones; other encodings are refused.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::io::Write;
use std::time::Duration;

use axum::{body::Body, http::Request};
use flate2::{Compression, write::GzEncoder};
use penstock_request::types::End;
use serde_json::json;

use crate::scripted::{Reply, Server};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn post(server: &Server, path: &str, coding: &str, body: Vec<u8>) -> Reply {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .header("content-encoding", coding)
        .header("content-length", body.len())
        .body(Body::from(body));
    server.request(request.unwrap()).await
}

fn bodies() -> [(&'static str, String); 5] {
    let hi = json!([{"role": "user", "content": "hi"}]);
    [
        ("/generate", json!({"inputs": "hi"}).to_string()),
        ("/invocations", json!({"prompt": "hi"}).to_string()),
        ("/v1/chat/completions", json!({"messages": hi}).to_string()),
        (
            "/v1/messages",
            json!({"model": "brook", "max_tokens": 5, "messages": hi}).to_string(),
        ),
        (
            "/v2/models/penstock/generate",
            json!({"text_input": "hi"}).to_string(),
        ),
    ]
}

#[tokio::test]
async fn compressed_body_is_read_like_an_uncompressed_one() {
    let server = Server::new();
    for (path, body) in bodies() {
        server.backend.play(&["ok"], End::StopToken);
        let plain = server.send("POST", path, body.clone()).await;
        assert_eq!(plain.status, 200, "{path}: {}", plain.text());
        let expected = server.backend.last().prompt;
        // Two gzip members form one text, as `cat a.gz b.gz` makes them.
        let (start, end) = body.as_bytes().split_at(9);
        let members = [gzip(start), gzip(end)].concat();
        for (coding, bytes) in [
            ("gzip", gzip(body.as_bytes())),
            ("x-GZip", members),
            ("identity", body.clone().into_bytes()),
        ] {
            server.backend.play(&["ok"], End::StopToken);
            let reply = post(&server, path, coding, bytes).await;
            assert_eq!(reply.status, 200, "{path} {coding}: {}", reply.text());
            assert_eq!(server.backend.last().prompt, expected, "{path} {coding}");
        }
    }
}

#[tokio::test]
async fn unsupported_content_encodings_are_refused_by_name() {
    let server = Server::new();
    for (path, body) in bodies() {
        for coding in ["br", "zstd", "deflate", "gzip, gzip"] {
            let reply = post(&server, path, coding, body.clone().into_bytes()).await;
            assert_eq!(reply.status, 415, "{path}: {}", reply.text());
            assert!(reply.message().contains(coding), "{}", reply.text());
        }
        for bytes in [
            body.clone().into_bytes(),
            gzip(body.as_bytes())[..12].to_vec(),
            [gzip(body.as_bytes()), b"x".to_vec()].concat(),
            Vec::new(),
        ] {
            let reply = post(&server, path, "gzip", bytes).await;
            assert_eq!(reply.status, 400, "{path}: {}", reply.text());
            assert!(reply.message().contains("must be gzip"), "{}", reply.text());
        }
    }
}

/// Returns the bytes that bodies hold now.
async fn held(server: &Server) -> f64 {
    let text = server.get("/metrics").await.text();
    let line = text
        .lines()
        .find(|line| line.starts_with("penstock_http_body_bytes") && !line.starts_with('#'));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn decompression_bomb_is_refused_at_the_size_limit() {
    const MIB: usize = 1 << 20;
    let server = Server::with(None, |config| {
        config.max_body_bytes = MIB;
        config.max_held_body_bytes = 4 * MIB;
    });
    let bomb = gzip(&vec![b' '; 64 * MIB]);
    assert!(bomb.len() < MIB / 8, "{}", bomb.len());
    for path in ["/generate", "/v1/completions"] {
        let reply = post(&server, path, "gzip", bomb.clone()).await;
        assert_eq!(reply.status, 413, "{path}: {}", reply.text());
        assert!(reply.message().contains("at most 1048576 bytes"));
        assert!(held(&server).await == 0.0);
    }
    // Inflated bytes count against the budget of all bodies.
    let server = Server::with(None, |config| {
        config.max_body_bytes = 8 * MIB;
        config.max_held_body_bytes = MIB;
        config.body_timeout = Duration::from_secs(5);
    });
    let reply = post(&server, "/generate", "gzip", gzip(&vec![b' '; 2 * MIB])).await;
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert!(held(&server).await == 0.0);
}
