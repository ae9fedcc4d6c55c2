//! Stored responses: continuing, retrieving and deleting them, and the store's limits.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::BTreeSet;

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::response_server::{ARGUMENTS, CALL, PATH, body, prompt, server, tool};
use crate::scripted::{Reply, Server};

const SMALL: usize = 64 << 10;

fn server_of(bytes: usize) -> Server {
    let server = crate::response_server::server_with(|config| config.response_store = bytes);
    server.backend.set_length(1 << 20);
    server
}

/// Sends a request, plays `text` as the output, and returns the response.
async fn ask(server: &Server, text: &str, fields: Value) -> Value {
    server.backend.play(&[text], End::StopToken);
    let reply = server.post(PATH, body(fields)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn id(response: &Value) -> &str {
    response["id"].as_str().unwrap()
}

async fn get(server: &Server, response: &Value) -> Reply {
    server.get(&format!("{PATH}/{}", id(response))).await
}

async fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").await.text();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn previous_response_id_continues_a_conversation() {
    let server = server();
    let first = ask(
        &server,
        "yo",
        json!({"instructions": "be brief", "input": "one"}),
    )
    .await;
    assert_eq!(prompt(&server), "system:be brief/user:one/>");
    assert_eq!(first["store"], true);
    assert_eq!(first["previous_response_id"], Value::Null);
    // The instructions of the first request do not apply.
    let next = json!({"previous_response_id": id(&first), "input": "two"});
    let second = ask(&server, "yes", next.clone()).await;
    assert_eq!(prompt(&server), "user:one/assistant:yo/user:two/>");
    assert_eq!(second["previous_response_id"], first["id"]);
    let next = json!({"previous_response_id": id(&second), "instructions": "sing",
                      "input": [{"role": "user", "content": "three"}]});
    ask(&server, "no", next).await;
    let expected = "system:sing/user:one/assistant:yo/user:two/assistant:yes/user:three/>";
    assert_eq!(prompt(&server), expected);
    // Several responses may continue the same one.
    ask(
        &server,
        "or",
        json!({"previous_response_id": id(&first), "input": "four"}),
    )
    .await;
    assert_eq!(prompt(&server), "user:one/assistant:yo/user:four/>");
    let counted = json!({"model": "brook", "previous_response_id": id(&first), "input": "four"});
    let counted = server.post(&format!("{PATH}/input_tokens"), counted).await;
    assert_eq!(counted.json()["input_tokens"], prompt(&server).len());
}

#[tokio::test]
async fn reasoning_calls_and_results_are_continued_too() {
    let server = server();
    let sent = json!({"tools": [tool()], "input": "call"});
    let first = ask(&server, &format!("<think>hm</think>{CALL}"), sent).await;
    let call = first["output"].as_array().unwrap().last().unwrap();
    assert_eq!(call["type"], "function_call");
    let result =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "42"});
    let next = json!({"previous_response_id": id(&first), "input": [result.clone()]});
    ask(&server, "it is 42", next).await;
    let stored = prompt(&server);
    // The prompt must be the same as if the client had sent all items.
    let mut items = vec![json!({"role": "user", "content": "call"})];
    items.extend(first["output"].as_array().unwrap().iter().cloned());
    items.push(result);
    ask(&server, "it is 42", json!({"input": items, "store": false})).await;
    assert_eq!(stored, prompt(&server));
    assert!(
        stored.contains(&ARGUMENTS.replace(": ", ":")) || stored.contains(ARGUMENTS),
        "{stored}"
    );
}

#[tokio::test]
async fn streamed_response_is_stored_at_its_end() {
    let server = server();
    server.backend.play(&["a", "b"], End::Length);
    let sent = body(json!({"stream": true, "metadata": {"k": "v"}}));
    let text = server.post(PATH, sent).await.text();
    let event = |kind: &str| -> Value {
        let found = text
            .split("\n\n")
            .find(|event| event.contains(&format!("event: {kind}\n")));
        let data = found.unwrap().split_once("data: ").unwrap().1;
        serde_json::from_str::<Value>(data).unwrap()["response"].clone()
    };
    let (begun, whole) = (event("response.created"), event("response.incomplete"));
    assert_eq!(
        (&begun["store"], &whole["store"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(begun["id"], whole["id"]);
    let kept = get(&server, &whole).await;
    assert_eq!(kept.status, 200);
    assert_eq!(kept.headers["content-type"], "application/json");
    assert_eq!(kept.json(), whole);
    // A failed response is not stored.
    server
        .backend
        .play(&["a"], End::Failed("the worker was lost".into()));
    let text = server
        .post(PATH, body(json!({"stream": true})))
        .await
        .text();
    let failed = text
        .split("\n\n")
        .find(|event| event.contains("event: response.failed\n"));
    let failed: Value =
        serde_json::from_str(failed.unwrap().split_once("data: ").unwrap().1).unwrap();
    assert_eq!(failed["response"]["store"], false);
    assert_eq!(get(&server, &failed["response"]).await.status, 404);
    assert_eq!(metric(&server, "penstock_stored_responses").await, 1);
}

#[tokio::test]
async fn a_stored_response_is_returned_and_deleted() {
    let server = server();
    let first = ask(&server, "yo", json!({})).await;
    let second = ask(&server, "yes", json!({"previous_response_id": id(&first)})).await;
    assert_eq!(get(&server, &first).await.json(), first);
    let streamed = server
        .get(&format!("{PATH}/{}?stream=true", id(&first)))
        .await;
    assert_eq!(streamed.status, 400, "{}", streamed.text());
    assert_eq!(streamed.json()["error"]["param"], "stream");
    let path = format!("{PATH}/{}", id(&first));
    let gone = server.send("DELETE", &path, "").await;
    let expected = json!({"id": id(&first), "object": "response", "deleted": true});
    assert_eq!((gone.status.as_u16(), gone.json()), (200, expected));
    for method in ["GET", "DELETE"] {
        let reply = server.send(method, &path, "").await;
        assert_eq!(reply.status, 404);
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        assert!(reply.message().contains(id(&first)), "{}", reply.text());
    }
    let sent = body(json!({"previous_response_id": id(&first)}));
    let reply = server.post(PATH, sent).await;
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "previous_response_not_found");
    assert_eq!(error["param"], "previous_response_id");
    // A response that continues it keeps its conversation.
    ask(
        &server,
        "so",
        json!({"previous_response_id": id(&second), "input": "three"}),
    )
    .await;
    assert_eq!(
        prompt(&server),
        "user:hi/assistant:yo/user:hi/assistant:yes/user:three/>"
    );
}

/// Returns a conversation of two responses.
async fn two(server: &Server) -> (Value, Value) {
    let first = ask(server, "yo", json!({"input": "one"})).await;
    let items = json!([
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
    ]);
    let next = json!({"previous_response_id": id(&first), "input": items});
    let second = ask(server, "yes", next).await;
    (first, second)
}

async fn list(server: &Server, response: &Value, query: &str) -> Reply {
    let path = format!("{PATH}/{}/input_items{query}", id(response));
    server.get(&path).await
}

#[tokio::test]
async fn input_items_of_a_response_are_listed() {
    let server = server();
    let (first, second) = two(&server).await;
    let all = list(&server, &second, "?order=asc").await.json();
    let items = all["data"].as_array().unwrap();
    let kinds: Vec<&str> = items.iter().map(|i| i["type"].as_str().unwrap()).collect();
    let expected = [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ];
    assert_eq!(kinds, expected);
    let text = json!([{"type": "input_text", "text": "one"}]);
    assert_eq!(items[0]["content"], text);
    assert_eq!(items[1], first["output"][0]);
    assert_eq!(items[3]["output"], "42");
    assert_eq!(
        (&all["object"], &all["has_more"]),
        (&json!("list"), &json!(false))
    );
    let ids: BTreeSet<&str> = items.iter().map(id).collect();
    assert_eq!(ids.len(), 5);
    let unknown = server.get(&format!("{PATH}/resp_1/input_items")).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn input_items_are_paginated_newest_first() {
    let server = server();
    let (_, second) = two(&server).await;
    let all = list(&server, &second, "?order=asc").await.json();
    let mut newest: Vec<Value> = all["data"].as_array().unwrap().clone();
    newest.reverse();
    let page = async |query: String| list(&server, &second, &query).await;
    assert_eq!(page(String::new()).await.json()["data"], json!(newest));
    let some = page(format!("?limit=2&after={}", id(&newest[1])))
        .await
        .json();
    assert_eq!(some["data"], json!(newest[2..4]));
    assert_eq!(
        (&some["first_id"], &some["last_id"]),
        (&newest[2]["id"], &newest[3]["id"])
    );
    assert_eq!(some["has_more"], true);
    let end = page(format!("?after={}", id(&newest[4]))).await.json();
    let none = json!({"object": "list", "data": [], "first_id": null, "last_id": null,
                      "has_more": false});
    assert_eq!(end, none);
    for (query, word) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?after=x", "after"),
        ("?order=up", "order"),
        ("?limit=a", "limit"),
    ] {
        let reply = page(query.to_owned()).await;
        assert_eq!(reply.status, 400, "{query}");
        assert!(reply.message().contains(word), "{}", reply.text());
    }
}

#[tokio::test]
async fn disabled_store_keeps_nothing_and_accepts_the_default() {
    let server = server_of(0);
    let response = ask(&server, "yo", json!({})).await;
    assert_eq!(response["store"], false);
    assert_eq!(get(&server, &response).await.status, 404);
    let refused = [
        (json!({"store": true}), "store"),
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
    ];
    for (fields, param) in refused {
        let reply = server.post(PATH, body(fields)).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!("unsupported_parameter"))
        );
        assert!(
            reply.message().contains("--response-store"),
            "{}",
            reply.text()
        );
    }
    // Clients may decline storage.
    let server = server_of(SMALL);
    let response = ask(&server, "yo", json!({"store": false})).await;
    assert_eq!(response["store"], false);
    assert_eq!(get(&server, &response).await.status, 404);
    assert_eq!(metric(&server, "penstock_stored_responses").await, 0);
}

#[tokio::test]
async fn the_least_recently_used_is_evicted_first_and_bytes_stay_bounded() {
    let server = server_of(SMALL);
    let first = ask(&server, "yo", json!({})).await;
    let second = ask(&server, "yo", json!({})).await;
    let long = "x".repeat(1000);
    let mut ids = BTreeSet::new();
    for _ in 0..100 {
        // The first response is used again and again, the second is not.
        assert_eq!(get(&server, &first).await.status, 200);
        let response = ask(&server, "yo", json!({"input": long})).await;
        assert_eq!(get(&server, &response).await.status, 200);
        assert!(ids.insert(id(&response).to_owned()));
        let bytes = metric(&server, "penstock_stored_response_bytes").await;
        assert!((1000..=SMALL as u64).contains(&bytes), "{bytes}");
    }
    assert_eq!(get(&server, &second).await.status, 404);
    let stored = metric(&server, "penstock_stored_responses").await;
    let evicted = metric(&server, "penstock_responses_evicted").await;
    assert_eq!(stored + evicted, 102);
    assert!(stored > 5, "{stored}");
}

#[tokio::test]
async fn shared_history_is_stored_once_and_freed() {
    let server = server_of(1 << 20);
    let long = "x".repeat(10_000);
    let mut last = ask(&server, "yo", json!({"input": long})).await;
    let mut all = vec![last.clone()];
    for _ in 0..20 {
        last = ask(&server, "yo", json!({"previous_response_id": id(&last)})).await;
        all.push(last.clone());
    }
    // Shared turns count once, not once per response.
    let bytes = metric(&server, "penstock_stored_response_bytes").await;
    assert!((10_000..100_000).contains(&bytes), "{bytes}");
    for response in &all[..20] {
        server
            .send("DELETE", &format!("{PATH}/{}", id(response)), "")
            .await;
    }
    // The last response still uses them.
    let bytes = metric(&server, "penstock_stored_response_bytes").await;
    assert!(bytes > 10_000, "{bytes}");
    server
        .send("DELETE", &format!("{PATH}/{}", id(&last)), "")
        .await;
    assert_eq!(metric(&server, "penstock_stored_response_bytes").await, 0);
}

#[tokio::test]
async fn one_response_uses_at_most_an_eighth_of_the_store() {
    let server = server_of(SMALL);
    let long = "x".repeat(SMALL / 8);
    let reply = server
        .post(PATH, body(json!({"store": true, "input": long})))
        .await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["param"], "store");
    // Without `store`, the request succeeds without being stored.
    let response = ask(&server, "yo", json!({"input": long})).await;
    assert_eq!(response["store"], false);
    // The output may exceed the limit, which is known only at its end.
    let small = ask(&server, "yo", json!({})).await;
    let response = ask(&server, &long, json!({"store": true})).await;
    assert_eq!(response["store"], false);
    assert_eq!(get(&server, &response).await.status, 404);
    assert_eq!(metric(&server, "penstock_responses_too_large").await, 1);
    assert_eq!(
        get(&server, &small).await.status,
        200,
        "it pushes nothing out"
    );
}

#[tokio::test]
async fn response_ids_are_random() {
    let server = server();
    let mut ids = Vec::new();
    for _ in 0..20 {
        let response = ask(&server, "a", json!({})).await;
        let hex = id(&response).strip_prefix("resp_").unwrap().to_owned();
        ids.push(u128::from_str_radix(&hex, 16).unwrap());
        assert_eq!(hex.len(), 32);
    }
    let distances = ids.windows(2).map(|pair| (pair[0] ^ pair[1]).count_ones());
    assert!(
        distances.clone().all(|bits| (30..=98).contains(&bits)),
        "{distances:?}"
    );
}
