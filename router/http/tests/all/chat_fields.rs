//! Chat fields about reasoning, variables of the chat template and continued messages.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use serde_json::json;

use crate::scripted::{CHAT, Server, chat, with};

#[tokio::test]
async fn reasoning_is_written_and_read_under_both_field_names() {
    let template = "{% for m in messages %}{{ m.role }}:<think>{{ m.reasoning_content }}</think>\
                    {{ m.content }};{% endfor %}";
    let server = Server::with(Some(template), |_| {});
    server
        .backend
        .play(&["<think>so</think>yes"], End::StopToken);
    let answer = server.post(CHAT, chat(json!({}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "so");
    assert_eq!(message["reasoning"], "so");
    let user = json!({"role": "user", "content": "go on"});
    for (thought, read) in [
        (json!({"reasoning": "so"}), "so"),
        (json!({"reasoning": "so", "reasoning_content": null}), "so"),
        (json!({"reasoning": "as", "reasoning_content": "so"}), "so"),
        (json!({"reasoning": null}), ""),
        (json!({"reasoning": {"effort": "low"}}), ""),
    ] {
        let said = with(json!({"role": "assistant", "content": "yes"}), thought);
        let body = json!({"messages": [said, user]});
        let output = server.post("/chat_tokenize", body).await.json();
        let expected = format!("assistant:<think>{read}</think>yes;user:<think></think>go on;");
        assert_eq!(output["templated_text"], expected);
    }
}

const THINKING: &str = "<think>{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";

/// Returns the content and the reasoning of a response, or of a stream's deltas together.
fn said(reply: &crate::scripted::Reply, stream: bool) -> (String, String) {
    let (answers, at) = if stream {
        (reply.events(), "delta")
    } else {
        (vec![reply.json()], "message")
    };
    let all = |name: &str| {
        let choices = answers
            .iter()
            .flat_map(|answer| answer["choices"].as_array().unwrap());
        choices
            .filter_map(|choice| choice[at][name].as_str())
            .collect::<String>()
    };
    (all("content"), all("reasoning_content"))
}

#[tokio::test]
async fn separate_reasoning_and_include_reasoning_are_followed() {
    let texts = ["<thi", "nk>\n so\n", "</think>\n", "\nyes"];
    let raw = texts.concat();
    let server = Server::with(Some(THINKING), |_| {});
    for (fields, content, thought) in [
        (json!({}), "yes", "so"),
        (json!({"separate_reasoning": true}), "yes", "so"),
        (json!({"separate_reasoning": null}), "yes", "so"),
        (json!({"separate_reasoning": false}), &raw, ""),
        (json!({"include_reasoning": false}), "yes", ""),
        (
            json!({"include_reasoning": false, "separate_reasoning": false}),
            "yes",
            "",
        ),
    ] {
        for stream in [false, true] {
            server.backend.play(&texts, End::StopToken);
            let body = with(chat(json!({"stream": stream})), fields.clone());
            let reply = server.post(CHAT, body).await;
            let output = said(&reply, stream);
            assert_eq!(output, (content.to_owned(), thought.to_owned()), "{fields}");
        }
    }
}

#[tokio::test]
async fn calls_after_inline_reasoning_are_parsed_and_calls_in_it_are_not() {
    let template = "{% if tools %}<tool_call>{\"name\":{% endif %}{% for m in messages %}\
                    {{ m.content }}{% endfor %}<think>";
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let server = Server::with(Some(template), |_| {});
    server.backend.set_length(1000);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for stream in [false, true] {
        let thought = format!(" I may say {call}.</think>");
        server
            .backend
            .play(&[&thought, " \n", call], End::StopToken);
        let fields = json!({"tools": tools, "stream": stream, "separate_reasoning": false});
        let reply = server.post(CHAT, chat(fields)).await;
        assert_eq!(said(&reply, stream), (thought, String::new()));
        let calls = reply.text().matches("\"name\":\"f\"").count();
        assert_eq!(calls, 1, "{}", reply.text());
    }
}

#[tokio::test]
async fn template_variables_are_request_fields() {
    let knows = "{{ enable_thinking }} {{ reasoning_effort }} {{ verbosity }}\
                 {% for m in messages %}{% endfor %}";
    let server = Server::with(Some(knows), |_| {});
    let fields = json!({"enable_thinking": false, "reasoning_effort": "none", "verbosity": "low"});
    let output = server.post("/chat_tokenize", chat(fields)).await.json();
    assert_eq!(output["templated_text"], "False none low");
    let body = json!({
        "input": "hi", "reasoning": {"effort": "high"}, "text": {"verbosity": "high"},
        "chat_template_kwargs": {"enable_thinking": 7},
    });
    server.backend.play(&["x"], End::Length);
    let response = server.post("/v1/responses", body).await.json();
    assert_eq!(response["text"]["verbosity"], "high");
    let prompt = server.backend.last().prompt.into_iter();
    let prompt = String::from_utf8(prompt.map(|id| id as u8).collect()).unwrap();
    assert_eq!(prompt, "7 high high");
}

#[tokio::test]
async fn reasoning_effort_none_sets_enable_thinking_false() {
    let knows = "{{ enable_thinking }}{% for m in messages %}{% endfor %}";
    let server = Server::with(Some(knows), |_| {});
    let none = chat(json!({"reasoning_effort": "none"}));
    let output = server.post("/chat_tokenize", none).await.json();
    assert_eq!(output["templated_text"], "False");
}

#[tokio::test]
async fn unknown_template_variables_are_refused_unless_neutral() {
    let plain = Server::new();
    let thinking = Server::with(Some(THINKING), |_| {});
    let effort = "reasoning_effort";
    let enable = "enable_thinking";
    for (server, field, neutral, wrong) in [
        (&plain, "verbosity", json!(["medium", null]), json!("low")),
        (
            &plain,
            effort,
            json!(["medium", "none", null]),
            json!("low"),
        ),
        (&thinking, effort, json!(["medium", null]), json!("none")),
        (&plain, enable, json!([false, null]), json!(true)),
        (&thinking, enable, json!([true, null]), json!(false)),
    ] {
        for value in neutral.as_array().unwrap() {
            let body = chat(json!({field: value}));
            let reply = server.post("/chat_tokenize", body).await;
            assert_eq!(reply.status, 200, "{field} {value}: {}", reply.text());
        }
        let reply = server.post(CHAT, chat(json!({field: wrong}))).await;
        assert!(reply.status.is_client_error(), "{field}");
        assert_eq!(reply.json()["error"]["param"], field);
    }
    let body = json!({"input": "hi", "text": {"verbosity": "low"}});
    let reply = plain.post("/v1/responses", body).await;
    assert_eq!(reply.json()["error"]["param"], "text.verbosity");
}

#[tokio::test]
async fn chat_can_echo_the_continued_message() {
    let messages = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "I say "},
    ]);
    for template in [crate::scripted::TEMPLATE, THINKING] {
        for (beside, echoed) in [
            (json!({"echo": true}), "I say "),
            (json!({"echo": true, "logprobs": true}), "I say "),
            (json!({"echo": true, "return_token_ids": true}), "I say "),
            (json!({"echo": false}), ""),
        ] {
            for stream in [false, true] {
                let server = Server::with(Some(template), |_| {});
                server.backend.play(&["y", "es"], End::StopToken);
                let fields = json!({"messages": messages, "stream": stream});
                let reply = server.post(CHAT, with(fields, beside.clone())).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                assert_eq!(said(&reply, stream).0, format!("{echoed}yes"), "{beside}");
                assert_eq!(server.backend.last().sampling.prompt_logprobs, None);
            }
        }
    }
    let server = Server::new();
    server.backend.play(&["yes"], End::StopToken);
    let reply = server.post(CHAT, chat(json!({"echo": true}))).await;
    assert_eq!(
        said(&reply, false).0,
        "yes",
        "a user's message is not echoed"
    );
}
