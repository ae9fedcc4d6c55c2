//! Unknown fields that clients send: outputs with the fields that a server or client added, hints
//! for other servers, and nulls.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use penstock_text::config::Format;
use penstock_text::tool_parsers::ReasoningFormat;
use serde_json::{Map, Value, json};

use crate::scripted::Server;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\":{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content or '' }}|{{ m.reasoning_content or '' }}\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ m.tool_call_id }}/{% endfor %}";
const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}</tool_call>";
/// The model's first output.
const ANSWER: [&str; 2] = ["<think>hm</think>So: ", CALL];

fn server() -> Server {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.reasoning_format = Format::Fixed(ReasoningFormat::Think);
    });
    server.backend.set_length(4000);
    server
}

/// Returns fields that LiteLLM, OpenRouter and others add.
fn extras() -> Map<String, Value> {
    let extras = json!({
        "provider_specific_fields": null,
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
        "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}],
        "cache_control": {"type": "ephemeral"},
        "annotations": [{"type": "url_citation", "url_citation": {"url": "x"}}],
        "citations": [{"type": "char_location"}],
        "audio": {"id": "audio_1"},
        "x-colour": [{"deep": [{"er": null}]}],
    });
    extras.as_object().unwrap().clone()
}

/// Adds these fields to each object, except schemas and arguments.
fn decorated(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(decorated).collect(),
        Value::Object(fields) => {
            let mut fields: Map<String, Value> = fields
                .iter()
                .map(|(name, value)| match name.as_str() {
                    "parameters" | "input_schema" | "input" | "arguments" => {
                        (name.clone(), value.clone())
                    }
                    _ => (name.clone(), decorated(value)),
                })
                .collect();
            for (name, value) in extras() {
                fields.entry(name).or_insert(value);
            }
            Value::Object(fields)
        }
        other => other.clone(),
    }
}

/// Returns the prompt that a body becomes.
async fn prompt(server: &Server, path: &str, body: &Value) -> String {
    server.backend.play(&["ok"], End::StopToken);
    let reply = server.post(path, body.clone()).await;
    assert_eq!(reply.status, 200, "{}: {body}", reply.text());
    let ids = server.backend.last().prompt;
    ids.iter().map(|&id| id as u8 as char).collect()
}

/// Sends `next` as it is and with decorated fields `names`: the prompts must be the same.
async fn same_prompt(server: &Server, path: &str, next: &Value, names: [&str; 2]) -> String {
    let plain = prompt(server, path, next).await;
    let mut more = next.clone();
    for name in names {
        more[name] = decorated(&next[name]);
    }
    assert_eq!(prompt(server, path, &more).await, plain);
    plain
}

#[tokio::test]
async fn chat_accepts_its_own_answer_with_fields_that_clients_add() {
    let server = server();
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let said = json!({"role": "user", "content": [{"type": "text", "text": "hi"}]});
    let body = json!({"messages": [said], "tools": tools});
    server.backend.play(&ANSWER, End::StopToken);
    let answer = server.post(CHAT, body.clone()).await.json();
    let mut answer = answer["choices"][0]["message"].clone();
    assert_eq!(answer["tool_calls"][0]["function"]["name"], "f", "{answer}");
    for name in ["function_call", "refusal", "audio", "annotations"] {
        answer[name] = Value::Null;
    }
    let id = answer["tool_calls"][0]["id"].clone();
    let result = json!({"role": "tool", "tool_call_id": id, "name": "f", "content": "7"});
    let next = json!({"messages": [said, answer, result], "tools": tools});
    let in_prompt = same_prompt(&server, CHAT, &next, ["messages", "tools"]).await;
    assert!(in_prompt.contains("assistant:So:|hm["), "{in_prompt}");
    let reply = server.post(
        "/chat_tokenize",
        json!({
            "messages": decorated(&next["messages"]), "tools": decorated(&tools),
        }),
    );
    assert_eq!(reply.await.status, 200);
}

/// The client `text-generation` has no field for the id.
#[tokio::test]
async fn tool_results_without_ids_match_the_calls_in_order() {
    let server = server();
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls = |ids: [&str; 2]| json!({"role": "assistant", "tool_calls": ids.map(call)});
    let result = |text: &str| json!({"role": "tool", "content": text});
    let named = json!({"role": "tool", "content": "C", "tool_call_id": "c"});
    let messages = json!([
        calls(["a", "b"]),
        result("A"),
        result("B"),
        calls(["c", "d"]),
        named,
        result("D")
    ]);
    let in_prompt = prompt(&server, CHAT, &json!({"messages": messages})).await;
    for answered in ["tool:A|a/", "tool:B|b/", "tool:C|c/", "tool:D|d/"] {
        assert!(in_prompt.contains(answered), "{answered}: {in_prompt}");
    }
    for orphans in [
        json!([result("A")]),
        json!([calls(["a", "b"]), result("A"), result("B"), result("C")]),
    ] {
        let reply = server.post(CHAT, json!({"messages": orphans})).await;
        assert_eq!(reply.status, 400);
        let text = reply.text();
        assert!(text.contains("must have a `tool_call_id`"), "{text}");
    }
}

#[tokio::test]
async fn responses_and_messages_accept_their_own_answers() {
    let server = server();
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let said = json!({"role": "user", "content": [{"type": "input_text", "text": "hi"}]});
    server.backend.play(&ANSWER, End::StopToken);
    let first = server.post(RESPONSES, json!({"input": [said], "tools": tools}));
    let mut items = first.await.json()["output"].as_array().unwrap().clone();
    let call = items.last().unwrap()["call_id"].clone();
    items.insert(0, said);
    items.push(json!({"type": "function_call_output", "call_id": call, "output": "7"}));
    let next = json!({"input": items, "tools": tools});
    // `input` is also a field of Anthropic's blocks, which are not decorated: decorate the list
    // here.
    let plain = prompt(&server, RESPONSES, &next).await;
    let more = json!({"input": decorated(&next["input"]), "tools": decorated(&tools)});
    assert_eq!(prompt(&server, RESPONSES, &more).await, plain);
    let count = server.post("/v1/responses/input_tokens", more).await;
    assert_eq!(
        count.json()["input_tokens"],
        plain.len(),
        "{}",
        count.text()
    );

    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let said = json!({"role": "user", "content": [{"type": "text", "text": "hi"}]});
    let mut body = json!({"model": "brook", "max_tokens": 50, "messages": [said], "tools": tools});
    server.backend.play(&ANSWER, End::StopToken);
    let content = server.post(MESSAGES, body.clone()).await.json()["content"].clone();
    let call = content.as_array().unwrap().last().unwrap()["id"].clone();
    let result = json!([{"type": "tool_result", "tool_use_id": call, "content": [{"type": "text", "text": "7"}]}]);
    body["messages"] = json!([said, {"role": "assistant", "content": content}, {"role": "user", "content": result}]);
    let in_prompt = same_prompt(&server, MESSAGES, &body, ["messages", "tools"]).await;
    body["messages"] = decorated(&body["messages"]);
    let count = server.post("/v1/messages/count_tokens", body).await;
    assert_eq!(
        count.json()["input_tokens"],
        in_prompt.len(),
        "{}",
        count.text()
    );
}

#[tokio::test]
async fn refusals_and_other_assistant_texts_reach_the_prompt() {
    let server = server();
    let refusal = json!([{"type": "refusal", "refusal": "no"}]);
    for (message, in_prompt) in [
        (json!({"content": null, "refusal": "no"}), "assistant:no|/"),
        (json!({"content": refusal}), "assistant:no|/"),
        (
            json!({"content": null, "reasoning": "hm"}),
            "assistant:|hm/",
        ),
        (
            json!({"content": "a", "reasoning": {"x": 1}}),
            "assistant:a|/",
        ),
        (
            json!({"content": "a", "reasoning": "x", "reasoning_content": "hm"}),
            "assistant:a|hm/",
        ),
    ] {
        let mut message = message;
        message["role"] = json!("assistant");
        let user = json!({"role": "user", "content": "hi"});
        let body = json!({"messages": [user, message, user]});
        let prompt = prompt(&server, CHAT, &body).await;
        assert!(prompt.contains(in_prompt), "{message}: {prompt}");
    }
    let item = json!({"role": "assistant", "content": refusal});
    let body = json!({"input": [item, {"role": "user", "content": "hi"}]});
    let prompt = prompt(&server, RESPONSES, &body).await;
    assert!(prompt.contains("assistant:no|/"), "{prompt}");
}

#[tokio::test]
async fn unsupported_content_parts_and_tools_are_refused() {
    let server = server();
    let user = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let message = |part: Value| {
        let mut body = user(part);
        body["model"] = json!("brook");
        body["max_tokens"] = json!(5);
        body
    };
    let item = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    let image = json!({"type": "image_url", "image_url": {"url": "x"}, "text": "a"});
    let source = json!({"type": "image", "source": {"type": "url", "url": "x"}, "text": "a"});
    let file = json!({"type": "input_file", "file_id": "x", "text": "a"});
    let search = json!([{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]);
    let mut searched = message(json!({"type": "text", "text": "a"}));
    searched["tools"] = search;
    for (path, body, word) in [
        (CHAT, user(image), "image_url"),
        (MESSAGES, message(source), "image"),
        (RESPONSES, item(file), "input_file"),
        (MESSAGES, searched, "web_search_20250305"),
        (CHAT, user(json!({"type": "refusal"})), "refusal"),
        (RESPONSES, item(json!({"type": "input_text"})), "text"),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        assert!(reply.message().contains(word), "{word}: {}", reply.text());
    }
}

#[tokio::test]
async fn an_unknown_null_is_ignored_and_an_unknown_value_refused_by_name() {
    let server = server();
    let hi = json!([{"role": "user", "content": "hi"}]);
    for (path, body) in [
        (CHAT, json!({"messages": hi})),
        ("/chat_tokenize", json!({"messages": hi})),
        ("/v1/completions", json!({"prompt": "hi"})),
        (RESPONSES, json!({"input": "hi"})),
        (
            MESSAGES,
            json!({"model": "brook", "max_tokens": 5, "messages": hi}),
        ),
        ("/generate", json!({"inputs": "hi"})),
    ] {
        server.backend.play(&["ok"], End::StopToken);
        let mut with_null = body.clone();
        with_null["colour"] = Value::Null;
        let reply = server.post(path, with_null).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        for value in [json!(1), json!(false), json!([null]), json!({})] {
            let mut with_value = body.clone();
            with_value["colour"] = value;
            let reply = server.post(path, with_value).await;
            assert!(reply.status.is_client_error(), "{path}: {}", reply.text());
            assert!(reply.text().contains("`colour`"), "{}", reply.text());
        }
    }
}
