//! A model that is served under several names.

#![allow(clippy::unwrap_used)]

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::{Server, TEMPLATE};

const NAMES: [&str; 3] = ["brook", "team/brook", "gpt-4o-mini"];

fn server() -> Server {
    Server::with(Some(TEMPLATE), |config| {
        config.more_model_ids = NAMES[1..].iter().map(|name| (*name).to_owned()).collect();
    })
}

fn strings(list: &Value, field: &str) -> Vec<String> {
    let entries = list.as_array().unwrap().iter();
    let name = |entry: &Value| entry[field].as_str().unwrap().to_owned();
    entries.map(name).collect()
}

#[tokio::test]
async fn every_model_name_is_listed() {
    let server = server();
    let models = server.get("/v1/models").await.json();
    assert_eq!(strings(&models["data"], "id"), NAMES);
    for model in models["data"].as_array().unwrap() {
        assert_eq!(model["max_model_len"], crate::scripted::MAX_TOTAL);
    }
    let index = server.post("/v2/repository/index", json!({})).await.json();
    assert_eq!(strings(&index, "name"), NAMES);
    // Statistics are listed once, not once per name.
    let stats = server.get("/v2/models/stats").await.json();
    assert_eq!(strings(&stats["model_stats"], "name"), NAMES[..1]);
    assert_eq!(server.get("/info").await.json()["model_id"], "brook");
}

#[tokio::test]
async fn each_name_is_accepted_and_answers_carry_the_first() {
    let server = server();
    let turns = json!([{"role": "user", "content": "hi"}]);
    let routes = [
        ("/v1/completions", json!({"prompt": "hi"})),
        ("/v1/chat/completions", json!({"messages": turns})),
        ("/v1/responses", json!({"input": "hi"})),
        ("/v1/messages", json!({"messages": turns, "max_tokens": 9})),
    ];
    for (path, body) in routes {
        for name in NAMES {
            server.backend.play(&["a"], End::StopToken);
            let mut body = body.clone();
            body["model"] = name.into();
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, 200, "{path} {name}: {}", reply.text());
            assert_eq!(reply.json()["model"], "brook");
        }
        let mut body = body;
        body["model"] = "gpt-4o".into();
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 404);
        let message = reply.message();
        assert!(
            message.contains("`brook`, `team/brook`, `gpt-4o-mini` are served here"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_model_in_a_path_keeps_the_requested_name() {
    let server = server();
    for name in NAMES {
        let model = server.get(&format!("/v1/models/{name}")).await.json();
        assert_eq!(model["id"], name);
        let encoded = name.replace('/', "%2F");
        for (path, field) in [("", "name"), ("/config", "name")] {
            let metadata = server.get(&format!("/v2/models/{encoded}{path}")).await;
            assert_eq!(metadata.json()[field], name, "{path}");
        }
        let stats = server.get(&format!("/v2/models/{encoded}/stats")).await;
        assert_eq!(strings(&stats.json()["model_stats"], "name"), [name]);
    }
    // An alias is not a served name.
    assert_eq!(server.get("/v1/models/tgi").await.json()["id"], "brook");
    assert_eq!(
        server.get("/v2/models/penstock").await.json()["name"],
        "brook"
    );
    assert_eq!(server.get("/v1/models/other").await.status, 404);
    assert_eq!(server.get("/v2/models/other").await.status, 404);
}
