//! Fields of the clients of vLLM, SGLang and llama.cpp that OpenAI does not have.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::grammar_spec::GrammarFormat;
use penstock_request::sampling_params::WHOLE_VOCABULARY;
use penstock_request::types::{Candidate, End, Logprobs, PromptToken, TokenEvent};
use serde_json::{Value, json};

use crate::scripted::{
    CHAT, COMPLETIONS, MAX_TOTAL, ScriptedReply, Server, chat, completion, event, with,
};

/// Returns (prompt tokens, output tokens) of each chunk of a choice.
fn usages(events: &[Value], index: usize) -> Vec<(u64, u64)> {
    let own = events.iter().filter(|e| e["choices"][0]["index"] == index);
    own.map(|event| {
        let usage = &event["usage"];
        let [prompt, completion, total] = ["prompt_tokens", "completion_tokens", "total_tokens"]
            .map(|name| usage[name].as_u64().unwrap());
        assert_eq!(prompt + completion, total);
        (prompt, completion)
    })
    .collect()
}

#[tokio::test]
async fn continuous_usage_stats_in_each_chunk() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    for beside in [json!({}), json!({"return_token_ids": true})] {
        let server = Server::new();
        server
            .backend
            .play(&["ab", "c"], End::StopToken)
            .play(&["d"], End::Length);
        let fields = json!({"prompt": ["hi", "you"], "stream": true, "stream_options": options});
        let events = server
            .post(COMPLETIONS, with(fields, beside))
            .await
            .events();
        assert_eq!(usages(&events, 0), [(2, 1), (2, 2), (2, 3), (2, 4)]);
        assert_eq!(usages(&events, 1), [(3, 1), (3, 1)]);
        let last = &events.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], 10);
    }
}

#[tokio::test]
async fn continuous_usage_stats_in_reasoning_and_call_chunks() {
    let template = "<think>{% for m in messages %}{{ m.content }}{% endfor %}";
    let server = Server::with(Some(template), |_| {});
    server
        .backend
        .play(&["<think>", "a</think>", "b"], End::StopToken);
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = chat(json!({"stream": true, "stream_options": options}));
    let events = server.post(CHAT, body).await.events();
    assert_eq!(usages(&events, 0), [(9, 16), (9, 18), (9, 18)]);
    assert_eq!(events[0]["choices"][0]["delta"]["reasoning"], "a");
}

#[tokio::test]
async fn continuous_usage_stats_require_include_usage() {
    let server = Server::new();
    for options in [
        json!({"continuous_usage_stats": true}),
        json!({"include_usage": false, "continuous_usage_stats": true}),
        json!({"include_usage": true, "continuous_usage_stats": false}),
    ] {
        server.backend.play(&["a"], End::Length);
        let body = chat(json!({"stream": true, "stream_options": options}));
        let events = server.post(CHAT, body).await.events();
        assert!(events[0]["usage"].is_null(), "{options}");
    }
}

#[tokio::test]
async fn grammar_fields_of_other_servers() {
    let schema = r#"{"type":"object","properties":{"b":{},"a":{}}}"#;
    let parsed: Value = serde_json::from_str(schema).unwrap();
    let object = |kind: &str| json!({"response_format": {"type": kind, "schema": parsed}});
    let server = Server::with(Some(crate::scripted::TEMPLATE), |config| {
        config.text.limits.structured_output = true;
    });
    for (fields, name, kind, text) in [
        (json!({"regex": "a+"}), "regex", GrammarFormat::Regex, "a+"),
        (
            json!({"ebnf": "root ::= \"a\""}),
            "ebnf",
            GrammarFormat::Ebnf,
            "root ::= \"a\"",
        ),
        (
            json!({"json_schema": schema}),
            "json_schema",
            GrammarFormat::JsonSchema,
            schema,
        ),
        (
            json!({"json_schema": parsed}),
            "json_schema",
            GrammarFormat::JsonSchema,
            schema,
        ),
        (
            object("json_object"),
            "response_format",
            GrammarFormat::JsonSchema,
            schema,
        ),
        (
            object("json_schema"),
            "response_format",
            GrammarFormat::JsonSchema,
            schema,
        ),
    ] {
        for (path, body) in [
            (CHAT, chat(fields.clone())),
            (COMPLETIONS, completion(fields.clone())),
        ] {
            server.backend.play(&["a"], End::StopToken);
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let grammar = server.backend.last().grammar.unwrap().constraint;
            assert_eq!((grammar.field, grammar.kind), (name, kind));
            let same = match kind {
                GrammarFormat::JsonSchema => {
                    serde_json::from_str::<Value>(&grammar.text).unwrap() == parsed
                }
                _ => grammar.text == text,
            };
            assert!(same, "{}", grammar.text);
        }
    }
}

#[tokio::test]
async fn schema_beside_another_response_format_is_refused() {
    let server = Server::with(Some(crate::scripted::TEMPLATE), |config| {
        config.text.limits.structured_output = true;
    });
    for format in [
        json!({"type": "text", "schema": {}}),
        json!({"type": "regex", "value": "a", "schema": {}}),
        json!({"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}),
    ] {
        let reply = server
            .post(CHAT, chat(json!({"response_format": format})))
            .await;
        assert!(reply.status.is_client_error(), "{}", reply.text());
        assert!(
            reply.message().contains("response_format.schema"),
            "{}",
            reply.text()
        );
    }
    let both = chat(json!({"regex": "a", "ebnf": "root ::= \"a\""}));
    let reply = server.post(CHAT, both).await;
    assert!(reply.message().contains("only one"), "{}", reply.text());
}

#[tokio::test]
async fn return_tokens_as_token_ids_in_logprobs() {
    let server = Server::new();
    let sent = json!({"return_tokens_as_token_ids": true});
    server.backend.play(&["ab"], End::Length);
    let body = with(chat(json!({"logprobs": true})), sent.clone());
    let answer = server.post(CHAT, body).await.json();
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["token"], "token_id:97");
    assert_eq!(content[1]["token"], "token_id:98");
    assert_eq!(content[1]["bytes"], json!([98]));
    for stream in [false, true] {
        server.backend.play(&["a"], End::Length);
        let fields = json!({"logprobs": 0, "stream": stream});
        let reply = server
            .post(COMPLETIONS, completion(with(fields, sent.clone())))
            .await;
        let answer = if stream {
            reply.events().swap_remove(0)
        } else {
            reply.json()
        };
        let lists = &answer["choices"][0]["logprobs"];
        assert_eq!(lists["tokens"], json!(["token_id:97"]));
        assert_eq!(lists["top_logprobs"], json!([{"token_id:97": -0.5}]));
        assert_eq!(answer["choices"][0]["text"], "a");
    }
}

#[tokio::test]
async fn a_stream_with_token_ids_has_no_prompt_logprobs() {
    let server = Server::new();
    server.backend.play(&["a"], End::Length);
    let fields = json!({"logprobs": 1, "return_token_ids": true, "stream": true});
    let events = server.post(COMPLETIONS, completion(fields)).await.events();
    let lists = &events[0]["choices"][0]["logprobs"];
    assert_eq!(lists["tokens"], json!(["a"]));
    assert_eq!(lists["text_offset"], json!([0]));
}

async fn prompt_of(server: &Server, path: &str, body: Value) -> String {
    server.backend.play(&["x"], End::Length);
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = server.backend.last().prompt;
    String::from_utf8(prompt.into_iter().map(|id| id as u8).collect()).unwrap()
}

#[tokio::test]
async fn truncation_side_selects_which_end_is_kept() {
    let server = Server::new();
    for (fields, kept) in [
        (json!({"truncate_prompt_tokens": 3}), "def"),
        (
            json!({"truncate_prompt_tokens": 3, "truncation_side": "left"}),
            "def",
        ),
        (
            json!({"truncate_prompt_tokens": 3, "truncation_side": "right"}),
            "abc",
        ),
        (
            json!({"truncate_prompt_tokens": 3, "truncation_side": null}),
            "def",
        ),
        (
            json!({"truncate_prompt_tokens": 9, "truncation_side": "right"}),
            "abcdef",
        ),
        (json!({"truncation_side": "right"}), "abcdef"),
    ] {
        for prompt in [json!("abcdef"), json!([97, 98, 99, 100, 101, 102])] {
            let body = with(json!({"prompt": prompt}), fields.clone());
            assert_eq!(
                prompt_of(&server, COMPLETIONS, body).await,
                kept,
                "{fields}"
            );
        }
    }
    let wrong = completion(json!({"truncation_side": "middle"}));
    let reply = server.post(COMPLETIONS, wrong).await;
    assert!(reply.status.is_client_error());
    assert!(
        reply.message().contains("truncation_side"),
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn truncate_prompt_tokens_minus_one_leaves_room_for_the_answer() {
    let server = Server::new();
    let total = MAX_TOTAL as usize;
    let text = "abcdefghij".repeat(20);
    for (fields, kept) in [
        (json!({"max_tokens": 10}), total - 10),
        (json!({"max_tokens": null}), total - 1),
        (json!({"max_tokens": null, "min_tokens": 7}), total - 7),
        (json!({"max_tokens": MAX_TOTAL - 1}), 1),
    ] {
        let sent = json!({"prompt": text, "truncate_prompt_tokens": -1});
        let prompt = prompt_of(&server, COMPLETIONS, with(sent, fields)).await;
        assert_eq!(prompt, text[text.len() - kept..]);
    }
    let message = json!({"role": "user", "content": text});
    let fields = json!({"messages": [message], "truncate_prompt_tokens": -1, "max_tokens": 5});
    let prompt = prompt_of(&server, CHAT, fields).await;
    assert_eq!(prompt.len(), total - 5);
    assert!(prompt.ends_with("assistant:"));
    let all = with(
        json!({"prompt": text, "truncate_prompt_tokens": -1}),
        json!({"max_tokens": MAX_TOTAL}),
    );
    let reply = server.post(COMPLETIONS, all).await;
    assert!(reply.status.is_client_error(), "{}", reply.text());
}

#[tokio::test]
async fn usage_has_cached_tokens_on_every_route() {
    let server = Server::new();
    server.backend.set_cached(4);
    let details = "/usage/prompt_tokens_details/cached_tokens";
    let message = json!([{"role": "user", "content": "hi"}]);
    let anthropic = json!({"model": "brook", "messages": message, "max_tokens": 4});
    for (path, body, place) in [
        (CHAT, chat(json!({})), details),
        (COMPLETIONS, completion(json!({})), details),
        (
            "/v1/responses",
            json!({"input": "hi"}),
            "/usage/input_tokens_details/cached_tokens",
        ),
        (
            "/v1/messages",
            anthropic.clone(),
            "/usage/cache_read_input_tokens",
        ),
    ] {
        server.backend.play(&["a"], End::Length);
        let answer = server.post(path, body).await.json();
        assert_eq!(answer.pointer(place), Some(&json!(4)), "{path}: {answer}");
    }
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let streamed = json!({"stream": true, "stream_options": options});
    for (path, body) in [
        (CHAT, chat(streamed.clone())),
        (COMPLETIONS, completion(streamed)),
    ] {
        server.backend.play(&["a"], End::Length);
        for event in server.post(path, body).await.events() {
            assert_eq!(event.pointer(details), Some(&json!(4)), "{path}: {event}");
        }
    }
}

#[tokio::test]
async fn cached_tokens_of_several_choices_are_counted_once() {
    let server = Server::new();
    server.backend.set_cached(2);
    for prompts in [1_u64, 2] {
        for _ in 0..3 * prompts {
            server.backend.play(&["a"], End::Length);
        }
        let prompt = vec!["abc"; prompts as usize];
        let answer = server
            .post(COMPLETIONS, json!({"prompt": prompt, "n": 3}))
            .await
            .json();
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens"], 3 * prompts);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 2 * prompts);
    }
}

#[tokio::test]
async fn streams_of_messages_and_responses_end_with_cached_tokens() {
    let server = Server::new();
    server.backend.set_cached(4);
    server
        .backend
        .play(&["a"], End::Length)
        .play(&["a"], End::Length);
    let message = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "brook", "messages": message, "max_tokens": 4, "stream": true});
    let text = server.post("/v1/messages", body).await.text();
    let prompt = server.backend.last().prompt.len();
    let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let last = data.find(|data| data.contains("\"message_delta\""));
    let last: Value = serde_json::from_str(last.unwrap()).unwrap();
    let usage = json!({
        "input_tokens": prompt - 4, "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0, "output_tokens": 1,
    });
    assert_eq!(last["usage"], usage);
    let body = json!({"input": "hi", "stream": true});
    let text = server.post("/v1/responses", body).await.text();
    assert!(
        text.contains("\"input_tokens_details\":{\"cached_tokens\":4"),
        "{text}"
    );
}

#[tokio::test]
async fn logprob_token_ids_reach_the_engine() {
    let server = Server::new();
    let ids = json!({"logprob_token_ids": [7, 66, 7]});
    for (path, body, top) in [
        (CHAT, chat(json!({})), 0),
        (CHAT, chat(json!({"logprobs": true, "top_logprobs": 3})), 3),
        (COMPLETIONS, completion(json!({})), 0),
        (COMPLETIONS, completion(json!({"logprobs": 2})), 2),
        ("/v1/responses", json!({"input": "hi"}), 0),
    ] {
        let logprobs = Logprobs {
            top_logprobs: vec![vec![candidate(66, -3.0), candidate(7, -9.5)]],
            prompt: Vec::new(),
        };
        let event = TokenEvent {
            logprobs: Some(Box::new(logprobs)),
            end: Some(End::Length),
            ..event("a")
        };
        server.backend.act(ScriptedReply::Play(vec![event]));
        let reply = server.post(path, with(body, ids.clone())).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let sampling = server.backend.last().sampling;
        assert_eq!(sampling.logprob_token_ids, [7, 66], "each once");
        assert_eq!(
            (sampling.top_logprobs, sampling.prompt_logprobs),
            (top, None)
        );
        assert!(reply.text().contains("-9.5"), "{}", reply.text());
    }
    server.backend.play(&["a"], End::Length);
    let none = completion(json!({"logprob_token_ids": []}));
    let answer = server.post(COMPLETIONS, none).await.json();
    assert!(answer["choices"][0]["logprobs"].is_null());
}

fn candidate(id: u32, logprob: f32) -> Candidate {
    Candidate { id, logprob }
}

#[tokio::test]
async fn invalid_logprob_token_ids_are_refused() {
    let server = Server::new();
    for (fields, word) in [
        (json!({"logprob_token_ids": [257]}), "must be <= 256"),
        (
            json!({"logprob_token_ids": (0..129).collect::<Vec<u32>>()}),
            "at most 128",
        ),
        (
            json!({"logprob_token_ids": [1], "use_beam_search": true}),
            "use_beam_search",
        ),
    ] {
        let reply = server.post(COMPLETIONS, completion(fields)).await;
        assert!(reply.status.is_client_error(), "{}", reply.text());
        let message = reply.message();
        assert!(message.contains("`logprob_token_ids`"), "{message}");
        assert!(message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn prompt_logprobs_of_the_whole_vocabulary_are_bounded() {
    let server = Server::new();
    server.backend.set_length(10_000);
    let sent = |prompt: &str, n: u32| json!({"prompt": prompt, "prompt_logprobs": -1, "n": n});
    let logprobs = Logprobs {
        top_logprobs: Vec::new(),
        prompt: vec![PromptToken {
            logprob: -0.5,
            rank: 1,
            top: vec![candidate(105, -0.5), candidate(7, -1.5), candidate(9, -2.5)],
        }],
    };
    let event = TokenEvent {
        logprobs: Some(Box::new(logprobs)),
        end: Some(End::Length),
        ..event("a")
    };
    server.backend.act(ScriptedReply::Play(vec![event]));
    let answer = server.post(COMPLETIONS, sent("hi", 1)).await.json();
    assert_eq!(
        server.backend.last().sampling.prompt_logprobs,
        Some(WHOLE_VOCABULARY)
    );
    let prompt_logprobs = answer["choices"][0]["prompt_logprobs"][1].as_object();
    assert_eq!(prompt_logprobs.unwrap().len(), 3);
    // Of the 1,048,576 logprobs, each token takes 258: its own and those of 257 tokens.
    server.backend.play(&["a"], End::Length);
    let reply = server.post(COMPLETIONS, sent(&"a".repeat(4064), 1)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    for (body, word) in [
        (sent(&"a".repeat(4065), 1), "at most 4064 tokens"),
        (sent(&"a".repeat(2033), 2), "at most 2032 tokens"),
        (completion(json!({"prompt_logprobs": -2})), "or -1 for"),
        (
            completion(json!({"prompt_logprobs": WHOLE_VOCABULARY})),
            "or -1 for",
        ),
        (
            completion(json!({"prompt_logprobs": -1, "stream": true})),
            "`stream`",
        ),
    ] {
        let reply = server.post(COMPLETIONS, body).await;
        assert!(reply.status.is_client_error(), "{}", reply.text());
        assert!(reply.message().contains(word), "{}", reply.message());
    }
}
