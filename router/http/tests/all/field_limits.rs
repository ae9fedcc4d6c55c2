//! Each bound of docs/openapi.json accepts its last value, and the next is refused by the field's
//! name. A bound of a schema that `home` does not know fails.

#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value)]

use axum::{body::Body, http::Request};
use penstock_request::types::End;
use penstock_text::chat::RequestTemplates;
use serde_json::{Value, json};

use crate::openapi_bounds::{Bound, bounds};
use crate::scripted::{CHAT, COMPLETIONS, Server, chat, completion, with};

/// Renders to few tokens, however long the messages are.
const TEMPLATE: &str = "{% if tools %}<tool_call>{\"name\":{% endif %}hi";

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const INFER: &str = "/v2/models/brook/infer";

/// Where a request has an object of a schema: the route, a body, and the object's `place` in it.
struct Home {
    path: &'static str,
    body: Value,
    place: &'static str,
}

fn home(schema: &str, field: &str) -> Option<Home> {
    let (path, body, place) = request(schema, field)
        .map(|(path, body)| (path, body, ""))
        .or_else(|| part_of_chat(schema, field))
        .or_else(|| part_of_another(schema, field))?;
    Some(Home { path, body, place })
}

/// Returns the route and the other fields of a whole request.
fn request(schema: &str, field: &str) -> Option<(&'static str, Value)> {
    let user = json!({"role": "user", "content": "hi"});
    Some(match schema {
        "ChatRequest" => (CHAT, chat(beside(schema, field))),
        "CompletionRequest" => (COMPLETIONS, completion(beside(schema, field))),
        "ResponsesRequest" => (
            RESPONSES,
            with(json!({"input": "hi"}), beside(schema, field)),
        ),
        "MessagesRequest" => (MESSAGES, turns(json!([user]))),
        "GenerateRequest" => ("/generate", json!({})),
        "TokenizeRequest" if field == "inputs" => ("/tokenize", json!({})),
        "TokenizeRequest" => ("/tokenize", json!({"messages": [user]})),
        "DetokenizeRequest" => ("/detokenize", json!({})),
        "InferRequest" => (INFER, tensor()),
        "KserveGenerateRequest" => ("/v2/models/brook/generate", json!({})),
        _ => return None,
    })
}

fn turns(messages: Value) -> Value {
    json!({"model": "brook", "max_tokens": 5, "messages": messages})
}

fn tensor() -> Value {
    let data = json!({"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]});
    json!({"inputs": [data]})
}

/// Returns the route and the body of a part of a chat, and its place.
fn part_of_chat(schema: &str, field: &str) -> Option<(&'static str, Value, &'static str)> {
    let user = json!({"role": "user", "content": "hi"});
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    let format = |format: Value| chat(json!({"response_format": format}));
    let (body, place) = match (schema, field) {
        ("Message", "tool_calls") => {
            let messages = json!([user, {"role": "assistant"}]);
            (json!({"messages": messages}), "/messages/1")
        }
        ("Message", _) => (chat(json!({})), "/messages/0"),
        ("Function", _) => (chat(json!({"tools": tools})), "/tools/0/function"),
        ("AllowedTools", _) => {
            let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}});
            let body = chat(json!({"tools": tools, "tool_choice": choice}));
            (body, "/tool_choice/allowed_tools")
        }
        ("StructuredOutputs", _) => (
            chat(json!({"structured_outputs": {}})),
            "/structured_outputs",
        ),
        ("ResponseFormat", "value") => (format(json!({"type": "json"})), "/response_format"),
        ("ResponseFormat", _) => (format(json!({"type": "json_object"})), "/response_format"),
        ("NamedSchema", _) => {
            let body = format(json!({"type": "json_schema", "json_schema": {"name": "a"}}));
            (body, "/response_format/json_schema")
        }
        _ => return None,
    };
    Some((CHAT, body, place))
}

/// Returns the route and the body of a part of any other request, and its place.
fn part_of_another(schema: &str, field: &str) -> Option<(&'static str, Value, &'static str)> {
    let user = json!({"role": "user", "content": "hi"});
    let responses = |more: Value| with(json!({"input": "hi"}), more);
    Some(match schema {
        "GenerateParameters" => {
            let body = json!({"inputs": "hi", "parameters": beside(schema, field)});
            ("/generate", body, "/parameters")
        }
        "Grammar" => {
            let body = json!({"inputs": "hi", "parameters": {"grammar": {"type": "regex"}}});
            ("/generate", body, "/parameters/grammar")
        }
        "FunctionTool" => {
            let body = responses(json!({"tools": [{"type": "function"}]}));
            (RESPONSES, body, "/tools/0")
        }
        "AllowedFunctions" => {
            let tools = json!([{"type": "function", "name": "add"}]);
            let choice = json!({"type": "allowed_tools", "mode": "auto"});
            let body = responses(json!({"tools": tools, "tool_choice": choice}));
            (RESPONSES, body, "/tool_choice")
        }
        "TextFormat" => {
            let format = json!({"type": "json_schema", "name": "a"});
            (
                RESPONSES,
                responses(json!({"text": {"format": format}})),
                "/text/format",
            )
        }
        "InputItem" if field == "output" => {
            let call =
                json!({"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"});
            let output = json!({"type": "function_call_output", "call_id": "c"});
            (
                RESPONSES,
                json!({"input": [user, call, output]}),
                "/input/2",
            )
        }
        "InputItem" => (
            RESPONSES,
            json!({"input": [{"type": "message", "role": "user"}]}),
            "/input/0",
        ),
        "AnthropicMessage" => (MESSAGES, turns(json!([user])), "/messages/0"),
        "AnthropicBlock" => {
            let used = json!([{"type": "tool_use", "id": "c", "name": "a", "input": {}}]);
            let result = json!([{"type": "tool_result", "tool_use_id": "c"}]);
            let messages = json!([user, {"role": "assistant", "content": used},
                                  {"role": "user", "content": result}]);
            (MESSAGES, turns(messages), "/messages/2/content/0")
        }
        "AnthropicTool" => {
            let tools = json!([{"input_schema": {"type": "object"}}]);
            let body = with(turns(json!([user])), json!({"tools": tools}));
            (MESSAGES, body, "/tools/0")
        }
        "InputTensor" => (INFER, tensor(), "/inputs/0"),
        _ => return None,
    })
}

/// Returns the fields that a field requires.
fn beside(schema: &str, field: &str) -> Value {
    match (schema, field) {
        ("GenerateParameters", "beam_width") => json!({"use_beam_search": true}),
        (_, "beam_width") => json!({"use_beam_search": true, "ignore_eos": true}),
        (_, "length_penalty") => json!({"use_beam_search": true}),
        ("ChatRequest", "top_logprobs") => json!({"logprobs": true}),
        (_, "top_logprobs") => json!({"include": ["message.output_text.logprobs"]}),
        ("GenerateParameters", "best_of") => json!({"do_sample": true}),
        (_, "tool_choice") => {
            json!({"tools": [{"type": "function", "function": {"name": "a"}}]})
        }
        _ => json!({}),
    }
}

/// Bounds whose last value violates another rule, with that rule. The next value is refused anyway.
const OTHER_RULES: &[(&str, &str, &str, &str)] = &[
    (
        "InferRequest",
        "inputs",
        "maxItems",
        "a tensor has one of a few names, each once",
    ),
    (
        "InferRequest",
        "outputs",
        "maxItems",
        "a tensor has one of a few names, each once",
    ),
    (
        "InputTensor",
        "shape",
        "maxItems",
        "a text is a tensor of one dimension",
    ),
    ("", "bad_words", "maxLength", "a word has 16 tokens at most"),
    (
        "GenerateParameters",
        "beam_width",
        "maximum",
        "the end tokens take some off",
    ),
];

impl Home {
    /// Returns whether an error names the field or one that contains it.
    fn is_named(&self, bound: &Bound, error: &str) -> bool {
        let outer = self.place.split('/').skip(1);
        let named = |name: &str| {
            let quoted = [format!("`{name}"), format!(".{name}`"), format!("{name}[")];
            let param = format!("\"param\":\"{name}\"");
            quoted
                .iter()
                .chain([&param])
                .any(|name| error.contains(name))
        };
        let mut names = outer.filter(|name| name.parse::<u32>().is_err());
        // An error of tensors names the missing tensor.
        named(&bound.field) || names.any(named) || error.contains("`text_input` is missing")
    }

    fn body(&self, bound: &Bound, value: Value) -> Value {
        let mut body = self.body.clone();
        let object = body.pointer_mut(self.place).unwrap();
        object
            .as_object_mut()
            .unwrap()
            .insert(bound.field.clone(), value);
        body
    }
}

fn server() -> Server {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.max_body_bytes = 32 << 20;
        config.max_held_body_bytes = 256 << 20;
        config.text.limits.max_stop_sequences = 16;
        config.text.limits.max_best_of = 32;
        config.text.limits.max_top_tokens = 20;
        config.max_client_batch_size = 32;
        // A stand-in for the process that renders templates.
        let render = r#"cat > /dev/null; echo '{"Text":"hi"}'"#;
        config.text.templates =
            RequestTemplates::Sandboxed(["sh", "-c", render].map(Into::into).into());
    });
    server.backend.set_length(1 << 20);
    server.backend.set_vocabulary(2000);
    server
}

#[tokio::test]
async fn each_bound_accepts_its_last_value_and_refuses_the_next() {
    let mut wrong = Vec::new();
    for bound in bounds() {
        let Some(home) = home(&bound.schema, &bound.field) else {
            panic!("add {} to `home`", bound.schema);
        };
        let what = |side: &str, reply: &str| {
            let Bound {
                schema,
                field,
                within,
                keyword,
                value,
                ..
            } = &bound;
            let reply = reply.chars().take(300).collect::<String>();
            format!("{schema}.{field}{within} {keyword} {value}: {side}: {reply}")
        };
        let rule = (bound.field.as_str(), bound.keyword.as_str());
        let other = OTHER_RULES.iter().any(|&(schema, field, word, _)| {
            [bound.schema.as_str(), ""].contains(&schema) && (field, word) == rule
        });
        let (last, beyond) = bound.sides();
        if !other {
            // A new server per bound: its script has replies for this one only.
            let server = server();
            for _ in 0..32 {
                server.backend.play(&["a"], End::Length);
            }
            let reply = server.post(home.path, home.body(&bound, last)).await;
            if reply.status != 200 {
                wrong.push(what("refused", &reply.text()));
            }
        }
        if let Some(beyond) = beyond {
            let reply = server().post(home.path, home.body(&bound, beyond)).await;
            let status = reply.status.as_u16();
            let named = home.is_named(&bound, &reply.text());
            if !(400..500).contains(&status) || !named {
                wrong.push(what("taken, or not named", &reply.text()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Returns a body of exactly this many bytes, padded with white space.
fn body_of(bytes: usize) -> Vec<u8> {
    let mut body =
        br#"{"inputs":"hi","prompt":"hi","messages":[{"role":"user","content":"hi"}]}"#.to_vec();
    body.resize(bytes, b' ');
    body
}

#[tokio::test]
async fn body_at_the_size_limit_is_read_and_one_byte_more_is_refused() {
    let server = Server::with(Some(TEMPLATE), |config| config.max_body_bytes = 2000);
    for path in [
        CHAT,
        COMPLETIONS,
        RESPONSES,
        MESSAGES,
        "/generate",
        "/tokenize",
        INFER,
    ] {
        for declared in [true, false] {
            let send = |bytes: usize| {
                let request = Request::post(path).header("content-type", "application/json");
                let body = body_of(bytes);
                let body = match declared {
                    true => request
                        .header("content-length", bytes)
                        .body(Body::from(body)),
                    false => {
                        let parts = body
                            .chunks(700)
                            .map(|part| Ok::<_, std::io::Error>(part.to_vec()));
                        let parts: Vec<_> = parts.collect();
                        request.body(Body::from_stream(futures_util::stream::iter(parts)))
                    }
                };
                server.request(body.unwrap())
            };
            // The body is read: the error is about a field.
            let reply = send(2000).await;
            let status = reply.status.as_u16();
            assert!(matches!(status, 400 | 422), "{path}: {}", reply.text());
            let reply = send(2001).await;
            assert_eq!(reply.status, 413, "{path}: {}", reply.text());
            assert!(reply.text().contains("2000"), "{path}: {}", reply.text());
        }
    }
}
