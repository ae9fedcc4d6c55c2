//! Stop strings beside tool calls, on the OpenAI chat route.

#![allow(clippy::unwrap_used)]

mod scripted;

use penstock_router::engine::End;
use scripted::Server;
use serde_json::{Value, json};

const TEMPLATE: &str =
    "{{ tools }}<tool_call>{\"name\":{% for m in messages %}{{ m.content }}{% endfor %}";
const CALL: &str = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}\n</tool_call>";

/// Of the answer: the content, the arguments of its calls, and why it ended.
fn told(answer: &Value) -> (String, Vec<String>, String) {
    let choice = &answer["choices"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = choice["message"]["tool_calls"].as_array();
    let arguments = calls.into_iter().flatten();
    (
        text(&choice["message"]["content"]),
        arguments
            .map(|call| text(&call["function"]["arguments"]))
            .collect(),
        text(&choice["finish_reason"]),
    )
}

#[tokio::test]
async fn stop_strings_are_for_the_text_around_calls() {
    let server = Server::with(Some(TEMPLATE), |_| {});
    server.stage.set_length(2000);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    for (text, stop, wanted) in [
        // Also on the line between the tag and the call, and before its closing tag.
        (
            format!("So: {CALL}"),
            json!(["\n", "b"]),
            ("So:", 1, "tool_calls"),
        ),
        (
            format!("So: {CALL} x, y"),
            json!(["b", ","]),
            ("So: x", 1, "tool_calls"),
        ),
        (format!("So:\n{CALL}"), json!("\n"), ("So:", 0, "stop")),
        (
            format!("So: {CALL}"),
            json!("<tool_call>"),
            ("So: ", 0, "stop"),
        ),
        (format!("{CALL}{CALL}"), json!("\n{"), ("", 2, "tool_calls")),
    ] {
        let pieces: Vec<&str> = text
            .split_inclusive(|c: char| !c.is_alphanumeric())
            .collect();
        for parts in [&pieces[..], &[text.as_str()]] {
            server.stage.play(parts, End::StopToken);
            let body = json!({
                "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "stop": stop
            });
            let answer = server.post("/v1/chat/completions", body).await.json();
            let (content, calls, reason) = told(&answer);
            assert_eq!(
                (content.as_str(), calls.len(), reason.as_str()),
                wanted,
                "{text}"
            );
            assert!(
                calls.iter().all(|given| given == "{\"a\": \"b\"}"),
                "{text}"
            );
        }
    }
}
