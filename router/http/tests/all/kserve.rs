//! KServe's routes: fields of requests, and information about the model.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::{BTreeMap, BTreeSet};

use penstock_http::openapi_json;
use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::Server;

const GENERATE: &str = "/v2/models/penstock/generate";

/// Fields of completions that are refused: tensors have inputs and outputs of their own for them.
const REFUSED: [&str; 11] = [
    "echo",
    "logprob_token_ids",
    "logprobs",
    "model",
    "prompt",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "stream_options",
    "suffix",
    "user",
];
/// Fields that reach the generation, or have no effect on completions either.
const TAKEN: &str = "add_special_tokens allowed_token_ids bad_words bad_words_ids beam_width \
    best_of cache_salt early_stopping ebnf frequency_penalty guided_choice guided_complete \
    guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern \
    ignore_eos include_stop_str_in_output json_schema length_penalty logit_bias max_tokens min_p \
    min_tokens n presence_penalty priority regex repetition_penalty request_id response_format \
    seed skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream \
    structured_outputs temperature thinking_token_budget timeout top_k top_p \
    truncate_prompt_tokens truncation_side typical_p use_beam_search vllm_xargs watermark";

#[tokio::test]
async fn every_completion_field_is_accepted_or_refused_by_name() {
    let api: Value = serde_json::from_str(&openapi_json()).unwrap();
    let fields = &api["components"]["schemas"]["CompletionRequest"]["properties"];
    let fields: BTreeSet<&str> = fields
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let known: BTreeSet<&str> = REFUSED.into_iter().chain(TAKEN.split(' ')).collect();
    assert_eq!(fields, known, "add the field to REFUSED or TAKEN");
    let server = Server::new();
    for name in REFUSED {
        let body = json!({"text_input": "a", "parameters": {name: true}});
        for path in [GENERATE.to_owned(), format!("{GENERATE}_stream")] {
            let reply = server.post(&path, body.clone()).await;
            assert_eq!(reply.status, 422, "{path} {name}");
            let message = reply.text();
            let rule = format!("`{name}` is not a sampling parameter");
            assert!(message.contains(&rule), "{message}");
        }
    }
}

#[tokio::test]
async fn statistics_have_every_duration_of_triton() {
    let server = Server::new();
    server.backend.play(&["a"], End::StopToken);
    let reply = server.post(GENERATE, json!({"text_input": "a"})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let stats = server.get("/v2/models/penstock/stats").await.json();
    let times = stats["model_stats"][0]["inference_stats"]
        .as_object()
        .unwrap();
    let counts: BTreeMap<_, _> = times
        .iter()
        .map(|(name, time)| (name.as_str(), time["count"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("cache_hit", 0),
        ("cache_miss", 0),
        ("compute_infer", 1),
        ("compute_input", 1),
        ("compute_output", 0),
        ("fail", 0),
        ("queue", 1),
        ("success", 1),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
    assert_eq!(times["cache_hit"]["ns"], 0);
}

#[tokio::test]
async fn repository_index_accepts_an_empty_or_short_body() {
    let index = "/v2/repository/index";
    let server = Server::new();
    let long = format!("{{\"ready\": {}true}}", " ".repeat(4096));
    for (body, status) in [
        (String::new(), 200),
        ("{\"ready\": true}".to_owned(), 200),
        (long, 413),
    ] {
        let reply = server.send("POST", index, body).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        assert_eq!(status == 413, reply.text().contains("at most 4096 bytes"));
    }
    let api: Value = serde_json::from_str(&openapi_json()).unwrap();
    let body = &api["paths"][index]["post"]["requestBody"];
    assert_eq!(body["required"], false);
}

#[tokio::test]
async fn unsupported_extensions_are_not_listed() {
    let server = Server::new();
    let extensions = server.get("/v2").await.json()["extensions"].clone();
    let expected = [
        "binary_tensor_data",
        "generate",
        "model_configuration",
        "statistics",
    ];
    assert_eq!(extensions, json!(expected));
    for what in ["load", "unload"] {
        let path = format!("/v2/repository/models/penstock/{what}");
        let reply = server.post(&path, json!({})).await;
        assert_eq!(reply.status, 404);
        let rule = "models cannot be loaded or unloaded by request";
        assert!(reply.text().contains(rule), "{}", reply.text());
    }
}
