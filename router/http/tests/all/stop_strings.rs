//! Stop strings and tool calls on the OpenAI chat route.

#![allow(clippy::unwrap_used)]

use penstock_request::types::End;
use serde_json::{Value, json};

use crate::scripted::Server;

const TEMPLATE: &str =
    "{{ tools }}<tool_call>{\"name\":{% for m in messages %}{{ m.content }}{% endfor %}";
const CALL: &str = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}\n</tool_call>";

/// Returns the content, the arguments of the calls and the finish reason.
fn content_calls_reason(answer: &Value) -> (String, Vec<String>, String) {
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
async fn stop_strings_apply_only_outside_tool_calls() {
    let server = Server::with(Some(TEMPLATE), |_| {});
    server.backend.set_length(2000);
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
            server.backend.play(parts, End::StopToken);
            let body = json!({
                "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "stop": stop
            });
            let answer = server.post("/v1/chat/completions", body).await.json();
            let (content, calls, reason) = content_calls_reason(&answer);
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

/// Returns content, number of calls and finish reason; checks that the text as one event and by
/// characters gives the same.
async fn answered(server: &Server, text: &str, fields: Value) -> (String, usize, String) {
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    let mut answers = Vec::new();
    for parts in [&[text][..], &characters] {
        server.backend.play(parts, End::StopToken);
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", body).await.json();
        let (content, calls, reason) = content_calls_reason(&answer);
        answers.push((content, calls.len(), reason));
    }
    assert_eq!(answers[0], answers[1], "{text}");
    answers.remove(0)
}

/// Returns a server whose model writes calls in the format of `template`.
fn calling(template: &str) -> Server {
    let server = Server::with(Some(template), |_| {});
    server.backend.set_length(2000);
    server
}

#[tokio::test]
async fn stop_string_within_a_call_does_not_hide_a_later_one() {
    let server = calling(TEMPLATE);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for (text, stop, wanted) in [
        // The match begins in the call, and another stop string overlaps it or ends with it.
        (format!("{CALL} x, y"), json!(["> x", " x"]), ("", 1)),
        (format!("{CALL} x, y"), json!(["> x", "x, "]), (" ", 1)),
        (format!("{CALL}aab"), json!([">aa", "aab"]), ("", 1)),
    ] {
        let fields = json!({"tools": tools, "stop": stop});
        let (content, calls, reason) = answered(&server, &text, fields).await;
        assert_eq!(
            (content.trim_start(), calls),
            (wanted.0.trim_start(), wanted.1),
            "{text} {stop}"
        );
        assert_eq!(reason, "tool_calls");
    }
}

#[tokio::test]
async fn stop_string_before_min_tokens_does_not_hide_a_later_one() {
    let server = calling(TEMPLATE);
    // Each character is a token.
    for (text, stop, min_tokens, wanted) in [
        ("abcd", json!(["ab", "bc"]), 2, ("", "stop")),
        ("abcd", json!(["ab", "bc"]), 3, ("a", "stop")),
        ("aaab", json!(["aa"]), 3, ("a", "stop")),
        ("abab", json!(["ab"]), 3, ("ab", "stop")),
        ("abcb", json!(["bc", "cb"]), 4, ("ab", "stop")),
        ("abcb", json!(["abc"]), 4, ("abcb", "stop")),
    ] {
        let fields = json!({"stop": stop, "min_tokens": min_tokens, "max_tokens": 20});
        let (content, _, reason) = answered(&server, text, fields).await;
        assert_eq!(
            (content.as_str(), reason.as_str()),
            wanted,
            "{text} {stop} {min_tokens}"
        );
    }
}

#[tokio::test]
async fn stop_strings_do_not_apply_inside_a_pythonic_call_list() {
    let server =
        calling("{{ tools }}[func_name1(a=1)]{% for m in messages %}{{ m.content }}{% endfor %}");
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tools = json!([tool("f"), tool("get")]);
    for (text, stop, wanted) in [
        // Text between calls, and the name of a later call.
        ("[f(a='x'), get(b='y')]", json!([","]), ("", 2)),
        ("[f(a='x'), get(b='y')]", json!([" "]), ("", 2)),
        ("[f(a='x'),\n get(b='y')]", json!(["\n", " get"]), ("", 2)),
        ("[f(a='x'), get(b='y')]", json!(["get"]), ("", 2)),
        ("[f(a='x'), get(b='y')]", json!(["et"]), ("", 2)),
        ("[f(a='x'), get(b='y')]", json!(["]", ")", "="]), ("", 2)),
        // Text after the list.
        ("[f(a='x')] So, x", json!([","]), ("So", 1)),
        ("[f(a='x')] So, x", json!(["] So", "So"]), ("", 1)),
        // A list that contains no calls.
        ("[1, 2] and more", json!([" "]), ("[1,", 0)),
        ("See f(a=1), x", json!([","]), ("See f(a=1)", 0)),
        // Text after a list that turns out not to be calls.
        ("[f(a='x'), oh, no", json!([" n"]), ("oh,", 1)),
    ] {
        let fields = json!({"tools": tools, "stop": stop});
        let (content, calls, _) = answered(&server, text, fields).await;
        assert_eq!((content.trim_start(), calls), wanted, "{text} {stop}");
    }
}
