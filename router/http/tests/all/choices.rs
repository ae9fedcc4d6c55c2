//! `n` and `best_of` on all routes that support them.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::{End, TokenEvent};
use serde_json::{Value, json};

use crate::scripted::{ScriptedReply, Server, event, invalid, script};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "brook", "messages": [{"role": "user", "content": "hi"}]});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// Returns a reply whose tokens have this logprob.
fn rated(text: &str, logprob: f32) -> ScriptedReply {
    let rate = |mut event: TokenEvent| {
        event.tokens.iter_mut().for_each(|t| t.logprob = logprob);
        event
    };
    ScriptedReply::Play(script(&[text], End::Length).into_iter().map(rate).collect())
}

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().unwrap();
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
    }
    let text = |c: &'_ Value| c.get("text").is_some();
    let pointer = |c| if text(c) { "/text" } else { "/message/content" };
    let texts = choices.iter().map(|c| c.pointer(pointer(c)).unwrap());
    texts.map(|text| text.as_str().unwrap()).collect()
}

/// Returns the usage of a prompt that is not cached.
fn usage(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": 0},
    })
}

#[tokio::test]
async fn n_choices_count_the_prompt_once_in_usage() {
    let server = Server::new();
    for text in ["a", "bb", "ccc"] {
        server.backend.play(&[text], End::Length);
    }
    let answer = server.post(CHAT, chat(json!({"n": 3}))).await.json();
    assert_eq!(texts(&answer), ["a", "bb", "ccc"]);
    let usage = usage(18, 6);
    assert_eq!(answer["usage"], usage);
    assert_eq!(server.backend.requests().len(), 1);
    assert_eq!(server.backend.last().choices, 3);
    let metrics = server.get("/metrics").await.text();
    assert!(metrics.contains("tgi_request_count 1\n"), "{metrics}");
    assert!(metrics.contains("tgi_request_success 1\n"), "{metrics}");
    assert!(metrics.contains("penstock_requests_open 0\n"), "{metrics}");
}

#[tokio::test]
async fn choice_indices_continue_across_prompts() {
    let server = Server::new();
    for text in ["1", "2", "3", "4"] {
        server.backend.play(&[text], End::Length);
    }
    let body = json!({"prompt": [[97], [98, 99]], "n": 2});
    let answer = server.post(COMPLETIONS, body).await.json();
    assert_eq!(texts(&answer), ["1", "2", "3", "4"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn n_choices_stream_concurrently() {
    let server = Server::new();
    let (first, second) = (server.backend.follow(), server.backend.follow());
    for (sender, text) in [(&second, "x"), (&first, "a"), (&second, "y"), (&first, "b")] {
        sender.send(event(text)).unwrap();
    }
    for sender in [first, second] {
        let end = Some(End::Length);
        sender
            .send(TokenEvent {
                end,
                ..TokenEvent::default()
            })
            .unwrap();
    }
    let options = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let events = server.post(CHAT, chat(options)).await.events();
    for (index, text) in [(0, "ab"), (1, "xy")] {
        let own = events.iter().map(|event| &event["choices"][0]);
        let own: Vec<_> = own.filter(|choice| choice["index"] == index).collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let said = own
            .iter()
            .filter_map(|choice| choice["delta"]["content"].as_str());
        assert_eq!(said.collect::<String>(), text);
        assert_eq!(own.last().unwrap()["finish_reason"], "length");
    }
    let usage = usage(18, 4);
    assert_eq!(events.last().unwrap()["usage"], usage);
}

#[tokio::test]
async fn best_of_returns_the_answers_with_the_best_mean_logprob() {
    let server = Server::new();
    for (text, logprob) in [("a", -3.0), ("bbbb", -1.0), ("c", -2.0)] {
        server.backend.act(rated(text, logprob));
    }
    let body = json!({"prompt": "hi", "n": 2, "best_of": 3});
    let answer = server.post(COMPLETIONS, body).await.json();
    // By the sum of logprobs, `c` would be first.
    assert_eq!(texts(&answer), ["bbbb", "c"]);
    let usage = usage(2, 6);
    assert_eq!(answer["usage"], usage, "all that were made");
    assert_eq!(server.backend.last().choices, 3);
}

#[tokio::test]
async fn native_best_of_has_the_response_format_of_tgi() {
    let server = Server::new();
    for (text, logprob) in [("a", -3.0), ("b", -1.0), ("c", -2.0)] {
        server.backend.act(rated(text, logprob));
    }
    let parameters = json!({"best_of": 3, "do_sample": true, "details": true});
    let body = json!({"inputs": "hi", "parameters": parameters});
    let answer = server.post("/generate", body).await.json();
    assert_eq!(answer["generated_text"], "b");
    let details = &answer["details"];
    let others = details["best_of_sequences"].as_array().unwrap();
    assert_eq!(others[0]["generated_text"], "c");
    assert_eq!(others[1]["generated_text"], "a");
    assert_eq!(others.len(), 2);
    let sampling = &server.backend.last().sampling;
    assert_eq!(details["seed"], sampling.choice_seed(1));
    assert_eq!(others[0]["seed"], sampling.choice_seed(2));
    assert_eq!(others[0]["tokens"][0]["logprob"], -2.0);
    for key in ["finish_reason", "generated_tokens", "prefill"] {
        assert!(others[0].get(key).is_some(), "{key}");
    }
    server.backend.act(rated("a", -3.0)).act(rated("b", -1.0));
    let parameters = json!({"best_of": 2, "temperature": 0.5});
    let body = json!({"inputs": "hi", "parameters": parameters});
    let answer = server.post("/generate", body).await.json();
    assert_eq!(answer, json!({"generated_text": "b"}));
    server.backend.play(&["x"], End::Length);
    let parameters = json!({"best_of": 1, "details": true});
    let body = json!({"inputs": "hi", "parameters": parameters});
    let answer = server.post("/generate", body).await.json();
    assert!(answer["details"].get("best_of_sequences").is_none());
    assert_eq!(server.get("/info").await.json()["max_best_of"], 32);
}

#[tokio::test]
async fn invalid_choice_counts_are_refused_by_field_name() {
    let server = Server::with(None, |config| config.text.limits.max_best_of = 4);
    let native = |parameters: Value| json!({"inputs": "hi", "parameters": parameters});
    let completion = |mut fields: Value| {
        fields["prompt"] = json!("hi");
        fields
    };
    for (path, body, part) in [
        (
            "/generate",
            native(json!({"best_of": 0, "do_sample": true})),
            "`best_of` must be > 0 and <= 4. Given: 0",
        ),
        (
            "/generate",
            native(json!({"best_of": 2})),
            "must use sampling when `best_of` is > 1",
        ),
        (
            "/generate",
            native(json!({"best_of": 2, "do_sample": true, "seed": 1})),
            "`seed` must not be set when `best_of` > 1",
        ),
        (
            "/generate_stream",
            native(json!({"best_of": 2, "do_sample": true})),
            "not supported when streaming tokens",
        ),
        (
            COMPLETIONS,
            completion(json!({"n": 5})),
            "`n` must be > 0 and <= 4. Given: 5",
        ),
        (
            COMPLETIONS,
            completion(json!({"best_of": 5})),
            "`best_of` must be > 0 and <= 4. Given: 5",
        ),
        (
            COMPLETIONS,
            completion(json!({"n": 3, "best_of": 2})),
            "`best_of` must be >= `n` (3). Given: 2",
        ),
        (
            COMPLETIONS,
            completion(json!({"best_of": 2, "stream": true})),
            "`best_of` must equal `n` when `stream` is true",
        ),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status, invalid(path), "{body}: {}", reply.text());
        assert!(
            reply.message().contains(part),
            "{part} not in {}",
            reply.message()
        );
    }
    assert!(server.backend.requests().is_empty());
}

#[tokio::test]
async fn best_of_is_refused_when_the_server_allows_one_answer() {
    let server = Server::with(None, |config| config.text.limits.max_best_of = 1);
    let native = json!({"inputs": "hi", "parameters": {"best_of": 2, "do_sample": true}});
    let completion = json!({"prompt": "hi", "best_of": 2});
    for (path, body) in [("/generate", native), ("/v1/completions", completion)] {
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, invalid(path));
        let text =
            "`best_of` != 1 is not allowed for this endpoint: it must be > 0 and <= 1. Given: 2";
        assert!(reply.message().contains(text), "{}", reply.message());
    }
}

#[tokio::test]
async fn failed_choice_fails_the_request_and_aborts_the_others() {
    let server = Server::new();
    server.backend.play(&["a"], End::Failed("it broke".into()));
    let _open = server.backend.follow();
    let reply = server.post(CHAT, chat(json!({"n": 2}))).await;
    assert_eq!(reply.status, 424, "{}", reply.text());
    assert!(reply.message().contains("it broke"));
    assert_eq!(server.backend.aborted(), 1);
}
