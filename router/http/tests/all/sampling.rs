//! Sampling parameters and logits processors reach the engine unchanged, or are refused by name.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::grammar_spec::GrammarFormat;
use penstock_request::sampling_params::{SamplingParams, Watermark};
use penstock_request::types::End;
use penstock_text::config::Format;
use penstock_text::tool_parsers::ReasoningFormat;
use serde_json::{Value, json};

use crate::scripted::{CHAT, EOS, Server, TEMPLATE, chat, with};

fn everything() -> Value {
    json!({
        "temperature": 0.5, "top_k": 9, "top_p": 0.25, "seed": 3, "min_p": 0.125, "typical_p": 0.75, "repetition_penalty": 1.5, "frequency_penalty": -0.5,
        "presence_penalty": 2, "logit_bias": {"65": -100, "07": 2.5}, "bad_words": ["xy"],
        "allowed_token_ids": [65, 66, 256], "bad_words_ids": [[66], [67, 68]], "watermark": true,
        "stop_token_ids": [67, 256],
    })
}

#[tokio::test]
async fn openai_sampling_parameters_reach_the_engine() {
    let server = Server::new();
    let expected = SamplingParams {
        temperature: 0.5,
        top_k: 9,
        top_p: 0.25,
        seed: 3,
        min_p: 0.125,
        typical_p: 0.75,
        repetition_penalty: 1.5,
        frequency_penalty: -0.5,
        presence_penalty: 2.0,
        logit_bias: vec![(65, -100.0), (7, 2.5)],
        allowed_token_ids: Some(vec![65, 66, 256]),
        banned_token_ids: vec![66],
        bad_words: vec![vec![67, 68], vec![120, 121], vec![32, 120, 121]],
        watermark: Some(Watermark::default()),
        ..SamplingParams::default()
    };
    for (path, body) in [
        ("/v1/chat/completions", chat(everything())),
        (
            "/v1/completions",
            with(json!({"prompt": "hi"}), everything()),
        ),
    ] {
        server.backend.play(&["A"], End::Length);
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let seen = server.backend.last();
        assert_eq!(seen.sampling, expected);
        assert_eq!(seen.stopping.stop_token_ids, [EOS, 67]);
    }
}

#[tokio::test]
async fn null_means_the_default() {
    let server = Server::new();
    server.backend.play(&["A"], End::Length);
    let fields = everything();
    let null = fields
        .as_object()
        .unwrap()
        .keys()
        .map(|k| (k.clone(), Value::Null));
    let reply = server
        .post("/v1/chat/completions", chat(Value::Object(null.collect())))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let seen = server.backend.last();
    let expected = SamplingParams {
        seed: seen.sampling.seed,
        ..SamplingParams::default()
    };
    assert_eq!(seen.sampling, expected);
    assert_eq!(seen.stopping.stop_token_ids, [EOS]);
}

#[tokio::test]
async fn cache_salt_reaches_the_engine_within_its_length_limit() {
    let server = Server::new();
    server.backend.play(&["A"], End::Length);
    let salted = |salt: &str| chat(json!({"cache_salt": salt}));
    let reply = server.post("/v1/chat/completions", salted("mine")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(&*server.backend.last().cache_salt, "mine");
    for wrong in [String::new(), "é".repeat(129)] {
        let reply = server.post("/v1/chat/completions", salted(&wrong)).await;
        let text = reply.text();
        assert_eq!(reply.status, 400, "{text}");
        let length = format!("Given: {}", wrong.len());
        assert!(
            text.contains("cache_salt") && text.contains(&length),
            "{text}"
        );
    }
}

#[tokio::test]
async fn native_sampling_parameters_reach_the_engine() {
    let servers = Watermark {
        gamma: 0.25,
        delta: 3.0,
        key: 7,
    };
    let server = Server::with(None, |config| config.text.limits.watermark = servers);
    server
        .backend
        .play(&["A"], End::Length)
        .play(&["A"], End::Length);
    let parameters = json!({
        "typical_p": 0.75, "repetition_penalty": 1.5, "frequency_penalty": -0.5, "watermark": true,
    });
    let body = json!({"inputs": "hi", "parameters": parameters});
    assert_eq!(server.post("/generate", body).await.status, 200);
    let seen = server.backend.last().sampling;
    assert_eq!(seen.temperature, 1.0, "typical_p alone enables sampling");
    let expected = SamplingParams {
        seed: seen.seed,
        typical_p: 0.75,
        repetition_penalty: 1.5,
        frequency_penalty: -0.5,
        watermark: Some(servers),
        ..SamplingParams::default()
    };
    assert_eq!(seen, expected);
    let greedy = json!({"inputs": "hi", "parameters": {"repetition_penalty": 1.5}});
    assert_eq!(server.post("/generate", greedy).await.status, 200);
    assert_eq!(server.backend.last().sampling.temperature, 0.0);
}

/// Fields, the field at fault, and a part of the message.
type Case = (Value, &'static str, &'static str);

fn numbers() -> Vec<Case> {
    let repetition = "repetition_penalty";
    vec![
        (json!({"min_p": 1.5}), "min_p", "Given: 1.5"),
        (json!({"min_p": -0.1}), "min_p", ">= 0.0"),
        (json!({"typical_p": 0}), "typical_p", "> 0.0"),
        (json!({"typical_p": 1.1}), "typical_p", "Given: 1.1"),
        (json!({repetition: 0}), repetition, "strictly positive"),
        (json!({repetition: 1e39}), repetition, "<= 1000000"),
        (
            json!({repetition: 1e-38}),
            repetition,
            ">= 1e-6 and <= 1000000.0. Given: ",
        ),
        (
            json!({"seed": 1_u64 << 63}),
            "seed",
            "a whole number from -9223372036854775808 to 9223372036854775807",
        ),
        (
            json!({"frequency_penalty": 2.5}),
            "frequency_penalty",
            "<= 2.0. Given: 2.5",
        ),
        (
            json!({"presence_penalty": -3}),
            "presence_penalty",
            ">= -2.0",
        ),
    ]
}

fn biases() -> Vec<Case> {
    let many: serde_json::Map<_, _> = (0..1025).map(|i| (i.to_string(), json!(1))).collect();
    [
        (json!({"5": 100.5}), "100.5 for token 5"),
        (json!({"300": 1}), "<= 256. Given: 300"),
        (json!({"5": 1, "05": 2}), "5 twice"),
        (json!({"a": 1}), "`a` is not a token id"),
        (json!({"-1": 1}), "`-1` is not a token id"),
        (json!([1.0]), "an object from token ids"),
        (Value::Object(many), "at most 1024"),
    ]
    .map(|(bias, part)| (json!({"logit_bias": bias}), "logit_bias", part))
    .to_vec()
}

fn words() -> Vec<Case> {
    let (allowed, bad) = ("allowed_token_ids", "bad_words_ids");
    vec![
        (
            json!({bad: [vec![1; 17]]}),
            "bad_words_ids[0]",
            "at most 16",
        ),
        (
            json!({bad: [[]]}),
            "bad_words_ids[0]",
            "a word must have a token",
        ),
        (json!({bad: [5]}), "bad_words_ids[0]", ""),
        (json!({bad: [[1, 999]]}), bad, "Given: 999"),
        (
            json!({bad: vec![[1, 2]; 257]}),
            bad,
            "at most 256 words of several",
        ),
        (
            json!({allowed: [5], bad: [[6, 5]]}),
            allowed,
            "neither in `bad_words_ids`",
        ),
        (
            json!({"bad_words": ["a".repeat(17)]}),
            "bad_words",
            "words of at most 16 tokens",
        ),
        (
            json!({"bad_words": ["a".repeat(300)]}),
            "bad_words",
            "at most 256 bytes",
        ),
        (
            json!({"truncate_prompt_tokens": -2}),
            "truncate_prompt_tokens",
            "or -1 to keep what fits the context",
        ),
        (
            json!({"truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
            "strictly positive",
        ),
    ]
}

fn lists() -> Vec<Case> {
    let many = |count: usize| (0..count).map(|i| i % 200).collect::<Vec<_>>();
    let (allowed, bad, stops) = ("allowed_token_ids", "bad_words_ids", "stop_token_ids");
    vec![
        (json!({allowed: []}), allowed, "must leave a token"),
        (json!({allowed: [999]}), allowed, "Given: 999"),
        (json!({allowed: many(8193)}), allowed, "at most 8192"),
        (
            json!({allowed: [5], bad: [[5]]}),
            allowed,
            "neither in `bad_words_ids`",
        ),
        (
            json!({allowed: [256], "min_tokens": 3}),
            allowed,
            "below `min_tokens`",
        ),
        (json!({stops: [257]}), stops, "Given: 257"),
        (json!({stops: many(129)}), stops, "at most 128"),
    ]
}

#[tokio::test]
async fn invalid_sampling_parameters_are_refused_by_name() {
    let server = Server::new();
    for (fields, param, part) in [numbers(), biases(), words(), lists()].concat() {
        let body = chat(fields.clone());
        println!("{fields}");
        let reply = server.post("/v1/chat/completions", body).await;
        assert_eq!(reply.status, 400, "{fields}: {}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{fields}: {error}");
        assert!(reply.message().contains(part), "{part} not in {error}");
    }
    for (parameters, part) in [
        (
            json!({"repetition_penalty": 0}),
            "must be strictly positive",
        ),
        (
            json!({"frequency_penalty": 3}),
            "must be >= -2.0 and <= 2.0",
        ),
        (json!({"typical_p": 1.0}), "must be > 0.0 and < 1.0"),
    ] {
        let body = json!({"inputs": "hi", "parameters": parameters});
        let reply = server.post("/generate", body).await;
        assert_eq!(reply.status, 422);
        assert!(reply.message().contains(part), "{}", reply.message());
    }
    assert!(server.backend.requests().is_empty());
}

#[tokio::test]
async fn thinking_token_budget_reaches_the_engine_where_reasoning_is_recognized() {
    let fields = json!({"thinking_token_budget": 7});
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.reasoning_format = Format::Fixed(ReasoningFormat::Think);
    });
    for stream in [false, true] {
        server
            .backend
            .play(&["<think>Hm.</think>Hi."], End::StopToken);
        let fields = json!({"thinking_token_budget": 7, "stream": stream});
        let reply = server.post(CHAT, chat(fields)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let request = server.backend.last();
        assert_eq!(request.sampling.thinking_token_budget, Some(7));
        let grammar = request.grammar.unwrap();
        assert_eq!(grammar.constraint.kind, GrammarFormat::Text);
        assert!(grammar.reasoning.is_some());
    }
    for (more, param) in [
        (json!({"allowed_token_ids": [65]}), "allowed_token_ids"),
        (json!({"use_beam_search": true}), "thinking_token_budget"),
        (
            json!({"thinking_token_budget": -2}),
            "thinking_token_budget",
        ),
    ] {
        let mut wrong = fields.clone();
        let more = more.as_object().unwrap().clone();
        wrong.as_object_mut().unwrap().extend(more);
        let reply = server.post(CHAT, chat(wrong)).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.text());
    }
    server.backend.play(&["Hi."], End::StopToken);
    let off = chat(json!({"thinking_token_budget": -1}));
    assert_eq!(server.post(CHAT, off).await.status, 200);
    assert_eq!(server.backend.last().grammar, None);
    let plain = Server::with(Some(TEMPLATE), |_| {});
    for (path, wrong) in [
        (CHAT, chat(fields.clone())),
        (
            "/v1/completions",
            json!({"prompt": "hi", "thinking_token_budget": 7}),
        ),
    ] {
        let reply = plain.post(path, wrong).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["param"], "thinking_token_budget");
        assert!(reply.message().contains("--reasoning-parser"));
    }
}
