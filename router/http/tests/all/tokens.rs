//! The token routes of TGI and vLLM, and vLLM's routes about the server.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use penstock_http::{Metrics, RouterConfig};
use penstock_request::EngineState;
use penstock_request::types::End;
use penstock_text::{Generator, ModelText};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokenizers::processors::template::TemplateProcessing;

use crate::scripted::{EOS, MAX_TOTAL, ScriptedBackend, Server, byte_tokenizer, event};

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test]
async fn tokenize_returns_count_and_ids_of_a_prompt() {
    let server = Server::new();
    let body = json!({"model": "brook", "prompt": "aé", "mm_processor_kwargs": null});
    let reply = server.post("/tokenize", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let expected = json!({"count": 3, "max_model_len": MAX_TOTAL, "tokens": [97, 195, 169],
                          "token_strs": null});
    assert_eq!(reply.json(), expected);
    let body = json!({"prompt": "a <end>", "return_token_strs": true});
    let output = server.post("/tokenize", body).await.json();
    assert_eq!(output["tokens"], json!([97, 32, EOS]));
    // In the vocabulary's spelling: a byte-level vocabulary writes a space as a letter.
    assert_eq!(output["token_strs"], json!(["a", "Ġ", "<end>"]));
    let empty = server.post("/tokenize", json!({"prompt": ""})).await.json();
    assert_eq!((&empty["count"], &empty["tokens"]), (&json!(0), &json!([])));
}

#[tokio::test]
async fn tokenize_counts_a_conversation_as_its_prompt() {
    let server = Server::new();
    let turns = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]);
    let open = "user:hi\nassistant:yo\n";
    let cases = [
        (json!({}), format!("{open}assistant:")),
        (json!({"add_generation_prompt": false}), open.to_owned()),
        (
            json!({"continue_final_message": true}),
            "user:hi\nassistant:yo".to_owned(),
        ),
        (
            json!({"continue_final_message": true, "add_generation_prompt": false}),
            "user:hi\nassistant:yo".to_owned(),
        ),
    ];
    for (beside, prompt) in cases {
        let mut body = beside.clone();
        body["messages"] = turns.clone();
        let reply = server.post("/tokenize", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let output = reply.json();
        assert_eq!(output["tokens"], json!(ids(&prompt)), "{beside}");
        assert_eq!(output["count"], prompt.len());
    }
}

#[tokio::test]
async fn tgi_tokenize_request_gets_the_response_of_tgi() {
    let server = Server::new();
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 5}});
    let reply = server.post("/tokenize", body).await.json();
    assert_eq!(
        reply,
        json!([{"id": 97, "text": "a", "start": 0, "stop": 1}])
    );
}

#[tokio::test]
async fn tgi_tokenize_errors_have_the_format_of_tgi() {
    let server = Server::new();
    let long = "a".repeat(MAX_TOTAL as usize + 1);
    let tgi = [
        (json!({}), "exactly one of"),
        (json!({"inputs": ""}), "cannot be empty"),
        (json!({"inputs": 1}), "`inputs`"),
        (
            json!({"inputs": "a", "add_special_tokens": true}),
            "`add_special_tokens` goes with",
        ),
        (json!({"inputs": "a", "input": 1}), "unknown field `input`"),
        (json!({"inputs": long}), "`inputs` must have"),
    ];
    for (body, words) in tgi {
        let reply = server.post("/tokenize", body).await;
        assert_eq!(reply.status, 422, "{}", reply.text());
        assert_eq!(reply.json()["error_type"], "validation");
        assert!(reply.message().contains(words), "{}", reply.text());
    }
}

#[tokio::test]
async fn vllm_tokenize_errors_have_the_format_of_openai() {
    let server = Server::new();
    let turns = json!([{"role": "user", "content": "hi"}]);
    let long = "a".repeat(MAX_TOTAL as usize + 1);
    let vllm = [
        (
            json!({"prompt": "a", "inputs": "a"}),
            "inputs",
            "exactly one",
        ),
        (
            json!({"prompt": "a", "messages": turns}),
            "inputs",
            "exactly one",
        ),
        (json!({"prompt": 1}), "prompt", "expected a string"),
        (
            json!({"prompt": "a", "parameters": {}}),
            "parameters",
            "`inputs` only",
        ),
        (
            json!({"prompt": "a", "tools": []}),
            "tools",
            "`messages` only",
        ),
        (
            json!({"prompt": "a", "chat_template_kwargs": {}}),
            "chat_template_kwargs",
            "only",
        ),
        (
            json!({"prompt": "a", "mm_processor_kwargs": {"x": 1}}),
            "mm_processor_kwargs",
            "",
        ),
        (json!({"prompt": long}), "prompt", ""),
        (json!({"messages": []}), "messages", "cannot be empty"),
        (
            json!({"messages": turns, "chat_template": "{{ 1 }}"}),
            "chat_template",
            "",
        ),
        (
            json!({"messages": turns, "continue_final_message": true, "add_generation_prompt": true}),
            "continue_final_message",
            "cannot both be true",
        ),
    ];
    for (body, param, words) in vllm {
        let reply = server.post("/tokenize", body.clone()).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], param, "{error}");
        assert!(reply.message().contains(words), "{}", reply.text());
    }
    let body = json!({"prompt": "a", "model": "other"});
    let reply = server.post("/tokenize", body).await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn detokenize_restores_the_text() {
    let server = Server::new();
    let post = |body: Value| server.post("/detokenize", body);
    let tokens = json!([97, 195, 169, EOS]);
    let output = post(json!({"model": "brook", "tokens": tokens})).await;
    assert_eq!(output.json(), json!({"prompt": "aé<end>"}));
    assert_eq!(post(json!({"tokens": []})).await.json()["prompt"], "");
    let most = vec![97; MAX_TOTAL as usize];
    assert_eq!(post(json!({"tokens": most})).await.status, 200);
    let refused = [
        (
            json!({"tokens": vec![97; MAX_TOTAL as usize + 1]}),
            "tokens",
        ),
        (json!({"tokens": [97, 258]}), "tokens[1]"),
        (json!({"tokens": [-1]}), "tokens[0]"),
        (json!({"tokens": ["a"]}), "tokens[0]"),
        (json!({}), "tokens"),
        (json!({"tokens": [97], "text": "a"}), "text"),
    ];
    for (body, param) in refused {
        let reply = post(body.clone()).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.text());
    }
    // The highest id: `<far>`.
    let last = post(json!({"tokens": [EOS + 1]})).await.json();
    assert_eq!(last["prompt"], "<far>");
}

#[tokio::test]
async fn tokenize_fails_until_the_model_length_is_known() {
    let server = Server::new();
    server.backend.set_state(EngineState::Loading {
        phase: "weights".into(),
        done: 1,
        total: 2,
    });
    let reply = server.post("/tokenize", json!({"prompt": "a"})).await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_eq!(reply.json()["error"]["type"], "server_error");
}

#[tokio::test]
async fn version_and_load() {
    let server = Server::new();
    let version = server.get("/version").await.json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    let load = async || server.get("/load").await.json()["server_load"].clone();
    assert_eq!(load().await, 0);
    let events = server.backend.follow();
    let running = tokio::spawn(completion_status(server.router.clone()));
    while load().await != 1 {
        tokio::task::yield_now().await;
    }
    let mut last = event("b");
    last.end = Some(End::Length);
    events.send(last).unwrap();
    assert_eq!(running.await.unwrap(), 200);
    assert_eq!(load().await, 0);
}

/// Sends a completion request and returns the status of the response.
async fn completion_status(router: axum::Router) -> u16 {
    use tower::ServiceExt;
    let request = axum::http::Request::post("/v1/completions");
    let request = request.header("content-type", "application/json");
    let body = json!({"prompt": "a"}).to_string();
    let request = request.body(axum::body::Body::from(body)).unwrap();
    router.oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn tokenizer_info_has_the_configuration_and_no_file_names() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
    let folder = std::env::temp_dir().join(format!("penstock-info-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["tokenizer.json", "config.json"] {
        std::fs::copy(model.join(name), folder.join(name)).unwrap();
    }
    let config = json!({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
                        "eos_token": {"content": "</s>", "special": true},
                        "chat_template": "{{ messages }}", "vocab_file": "folder/vocab.json",
                        "name_or_path": "folder/model", "model_max_length": 2048});
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    let text = ModelText::load(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let server = Server::new();
    let config = RouterConfig::new("brook");
    let metrics = std::sync::Arc::new(Metrics::new(Registry::default()));
    let generator = Generator::new(
        ScriptedBackend::default(),
        text,
        &config.text,
        metrics.text(),
    );
    let router = penstock_http::router(generator, metrics, config).unwrap();
    let loaded = Server { router, ..server };
    let output = loaded.get("/tokenizer_info").await.json();
    let expected = json!({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
                          "eos_token": {"content": "</s>", "special": true},
                          "chat_template": "{{ messages }}", "model_max_length": 2048});
    assert_eq!(output, expected);
    // A model without `tokenizer_config.json`.
    let output = Server::new().get("/tokenizer_info").await.json();
    assert_eq!(output["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(output["chat_template"], crate::scripted::TEMPLATE);
}

#[tokio::test]
async fn add_special_tokens_is_respected() {
    let mut tokenizer = byte_tokenizer();
    let begun = TemplateProcessing::builder()
        .try_single("<end> $A")
        .unwrap()
        .special_tokens(vec![("<end>", EOS)])
        .build()
        .unwrap();
    tokenizer.with_post_processor(Some(begun));
    let server = Server::speaking(tokenizer, Some("{{ messages[0].content }}"), |_| {});
    let turns = json!([{"role": "user", "content": "a"}]);
    let cases = [
        (json!({"prompt": "a"}), json!([EOS, 97])),
        (
            json!({"prompt": "a", "add_special_tokens": false}),
            json!([97]),
        ),
        (json!({"messages": turns}), json!([97])),
        (
            json!({"messages": turns, "add_special_tokens": true}),
            json!([EOS, 97]),
        ),
    ];
    for (body, tokens) in cases {
        let output = server.post("/tokenize", body.clone()).await.json();
        assert_eq!(output["tokens"], tokens, "{body}");
    }
}
