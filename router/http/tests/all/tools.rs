//! Tools and reasoning on the OpenAI chat route.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::grammar_spec::{GrammarFormat, ReasoningMarkers};
use penstock_request::types::{End, SubmitError};
use penstock_text::config::Format;
use penstock_text::tool_parsers::{ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

use crate::scripted::{ScriptedReply, Server};

const CHAT: &str = "/v1/chat/completions";
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\":{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.reasoning_content }}\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}/{% endfor %}\
    {% if open %}<think>\n{% endif %}{% if closed %}<think>\n\n</think>\n\n{% endif %}";
const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b\"}}</tool_call>";

fn server() -> Server {
    let server = Server::with(Some(TEMPLATE), |_| {});
    server.backend.set_length(2000);
    server
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "$defs": {"z": {}, "a": {}}, "properties": {"a": {"$ref": "#/$defs/z"}}}}})
}

fn body(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool()]});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn prompt(server: &Server) -> String {
    server
        .backend
        .last()
        .prompt
        .iter()
        .map(|&id| id as u8 as char)
        .collect()
}

#[tokio::test]
async fn tool_call_without_streaming() {
    let server = server();
    server
        .backend
        .play(&["So: ", &CALL[..7], &CALL[7..]], End::StopToken);
    let answer = server.post(CHAT, body(json!({}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "So:");
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(call["type"], "function");
    assert_eq!(
        call["function"],
        json!({"name": "f", "arguments": "{\"a\": \"b\"}"})
    );
    assert!(
        prompt(&server).starts_with(
            r##"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "$defs": {"z": {}, "a": {}}, "properties": {"a": {"$ref": "#/$defs/z"}}}}}]"##
        ),
        "{}", prompt(&server)
    );
}

#[tokio::test]
async fn streamed_tool_calls_have_the_format_of_openai() {
    let server = server();
    let cut: Vec<String> = format!("{CALL}\n{CALL}")
        .chars()
        .map(String::from)
        .collect();
    let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
    server.backend.play(&cut, End::StopToken);
    let events = server
        .post(CHAT, body(json!({"stream": true})))
        .await
        .events();
    let deltas: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["delta"]).collect();
    let first = deltas[0];
    assert_eq!(
        (&first["role"], &first["content"]),
        (&json!("assistant"), &Value::Null)
    );
    assert_eq!(
        first["tool_calls"][0]["function"],
        json!({"name": "f", "arguments": ""})
    );
    assert_eq!(first["tool_calls"][0]["index"], 0);
    let id = first["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("call_"), "{id}");
    for wanted in 0..2 {
        let own = deltas
            .iter()
            .map(|delta| &delta["tool_calls"][0])
            .filter(|c| c["index"] == wanted);
        let own: Vec<_> = own.collect();
        assert!(own[0]["id"].is_string() && own[1..].iter().all(|call| call["id"].is_null()));
        let arguments: String = own
            .iter()
            .filter_map(|c| c["function"]["arguments"].as_str())
            .collect();
        assert_eq!(arguments, "{\"a\": \"b\"}");
        assert!(own.len() > 8, "arguments come in pieces");
    }
    assert!(deltas.iter().all(|delta| delta["content"].is_null()));
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "tool_calls"
    );
}

#[tokio::test]
async fn answer_ends_after_one_call_without_parallel_tool_calls() {
    for stream in [false, true] {
        let server = server();
        let sender = server.backend.follow();
        for part in [CALL, CALL] {
            sender.send(crate::scripted::event(part)).unwrap();
        }
        let body = body(json!({"parallel_tool_calls": false, "stream": stream}));
        let reply = server.post(CHAT, body).await;
        assert_eq!(
            reply.text().matches("\"name\":\"f\"").count(),
            1,
            "{}",
            reply.text()
        );
        assert!(reply.text().contains("\"finish_reason\":\"tool_calls\""));
        assert_eq!(
            (server.backend.finished(), server.backend.aborted()),
            (1, 0)
        );
    }
}

#[tokio::test]
async fn a_forced_call_has_a_grammar() {
    let named = json!({"type": "function", "function": {"name": "f"}});
    // `huggingface_hub` omits the type.
    let untyped = json!({"function": {"name": "f"}});
    for (choice, reason) in [
        (json!("required"), "tool_calls"),
        (named, "stop"),
        (untyped, "stop"),
        (json!("f"), "stop"),
    ] {
        for stream in [false, true] {
            let server = server();
            server.backend.play(&[CALL], End::StopToken);
            let fields = json!({"tool_choice": choice, "stream": stream, "response_format": {"type": "json_object"}});
            let reply = server.post(CHAT, body(fields)).await;
            let reason = format!("\"finish_reason\":\"{reason}\"");
            assert!(reply.text().contains(&reason), "{}", reply.text());
            let spec = server.backend.last().grammar.unwrap();
            let grammar = spec.constraint;
            assert_eq!(
                (grammar.kind, grammar.field, grammar.complete),
                (GrammarFormat::ToolCalls, "tools", true)
            );
            let wanted: Value = serde_json::from_str(&grammar.text).unwrap();
            assert_eq!(wanted["many"], choice == "required");
            assert_eq!(
                wanted["calls"][0]["schema"],
                tool()["function"]["parameters"]
            );
            assert!(!spec.end_token_ids.is_empty());
        }
    }
}

#[tokio::test]
async fn the_grammar_applies_after_the_reasoning() {
    let server = server();
    let marks = ["<think>", "</think>"];
    for (fields, begun) in [
        (
            json!({"tool_choice": "required", "chat_template_kwargs": {"open": true}}),
            Some(true),
        ),
        (json!({"tool_choice": "required"}), Some(false)),
        (
            json!({"tool_choice": "required", "chat_template_kwargs": {"closed": true}}),
            None,
        ),
        (
            json!({"tools": null, "response_format": {"type": "json_object"}}),
            Some(false),
        ),
    ] {
        let reasoning = if begun == Some(true) {
            "Hm.</think>\n"
        } else {
            "<think>Hm.</think>"
        };
        let reasoning = if begun.is_none() { "" } else { reasoning };
        server.backend.play(&[reasoning, CALL], End::StopToken);
        let answer = server.post(CHAT, body(fields.clone())).await.json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(
            message["reasoning_content"].as_str(),
            begun.map(|_| "Hm."),
            "{message}"
        );
        let grammar = server.backend.last().grammar.unwrap();
        let wanted = begun.map(|begun| ReasoningMarkers {
            marks,
            started: begun,
            header: "",
        });
        assert_eq!(grammar.reasoning, wanted, "{fields}");
    }
}

#[tokio::test]
async fn forced_call_may_begin_with_a_special_token() {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.tool_format = Format::Fixed(ToolFormat::Mistral);
    });
    server.backend.set_length(2000);
    let call = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]";
    server.backend.play(&[call], End::StopToken);
    let answer = server
        .post(CHAT, body(json!({"tool_choice": "required"})))
        .await
        .json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{}");
    let grammar = server.backend.last().grammar.unwrap().constraint;
    assert!(
        grammar.text.contains("\"mark\":\"[TOOL_CALLS]\""),
        "{}",
        grammar.text
    );
}

#[tokio::test]
async fn an_answer_may_be_a_call_or_a_structured_output() {
    let schema = json!({"type": "object", "properties": {"b": {"type": "null"}, "a": {}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let fields = json!({"response_format": format});
    for (answer, calls) in [(CALL, 1), ("{\"b\":null}", 0)] {
        let server = server();
        server.backend.play(&[answer], End::StopToken);
        let output = server.post(CHAT, body(fields.clone())).await.json();
        let message = &output["choices"][0]["message"];
        assert_eq!(message["tool_calls"].as_array().map_or(0, Vec::len), calls);
        assert_eq!(
            message["content"].as_str().map_or(0, str::len),
            if calls == 0 { answer.len() } else { 0 }
        );
        let grammar = server.backend.last().grammar.unwrap().constraint;
        assert_eq!(
            (grammar.kind, grammar.field),
            (GrammarFormat::ToolCalls, "response_format")
        );
        let text: Value = serde_json::from_str(&grammar.text).unwrap();
        assert_eq!(text["document"]["kind"], "json_schema");
        let kept = text["document"]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(kept).unwrap(), schema);
        assert_eq!(text["calls"][0]["name"], "f");
    }
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.tool_format = Format::Fixed(ToolFormat::Llama3Json);
    });
    let refused = server.post(CHAT, body(fields)).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "response_format");
    assert!(
        refused.text().contains("`tool_choice` `none`"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn a_grammar_refused_by_the_workers_names_its_field() {
    let server = server();
    for (fields, param) in [
        (json!({"tool_choice": "required"}), "tools"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (
            json!({"structured_outputs": {"regex": "("}}),
            "structured_outputs",
        ),
    ] {
        let refusal = SubmitError::Invalid("the schema keyword `not` is not supported".into());
        server.backend.act(ScriptedReply::Refuse(refusal));
        let reply = server.post(CHAT, body(fields)).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param);
        assert!(reply.text().contains("keyword `not`"), "{}", reply.text());
    }
}

#[tokio::test]
async fn tools_are_described_in_the_prompt_if_the_template_has_none() {
    let plain = "{% for m in messages %}{{ m.role }}:{{ m.content }}/{% endfor %}";
    let server = Server::with(Some(plain), |config| {
        config.text.system_prompt = Some("Be brief.".into());
    });
    server.backend.set_length(2000);
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    server.backend.play(&[call], End::StopToken);
    let answer = server
        .post(CHAT, body(json!({"tool_prompt": "Call:"})))
        .await
        .json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "f");
    let output = prompt(&server);
    assert!(
        output.starts_with("system:Be brief.\n\nCall:\n{\"type\":\"function\""),
        "{output}"
    );
    assert!(output.ends_with("}/user:hi/"), "{output}");
    server.backend.play(&[call], End::StopToken);
    server
        .post(CHAT, body(json!({"tools": [], "tool_prompt": "Call:"})))
        .await;
    assert_eq!(prompt(&server), "system:Be brief./user:hi/");
    let info = server.get("/info").await.json();
    assert_eq!(info["system_prompt"], "Be brief.");
}

#[tokio::test]
async fn tool_choice_none_leaves_tools_out_of_the_prompt() {
    let server = server();
    server.backend.play(&[CALL], End::Length);
    let answer = server
        .post(CHAT, body(json!({"tool_choice": "none"})))
        .await
        .json();
    assert_eq!(answer["choices"][0]["message"]["content"], CALL);
    assert_eq!(prompt(&server), "user:hi/");
    server.backend.play(&[&CALL[..40]], End::Length);
    let cut = server.post(CHAT, body(json!({}))).await.json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(
        cut["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
        "{\"a\":"
    );
}

#[tokio::test]
async fn tool_calls_and_results_reach_the_template() {
    let server = server();
    server.backend.play(&["ok"], End::StopToken);
    let call = json!({"id": "call_1", "type": "function", "index": 0,
                      "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
    ]);
    let reply = server
        .post(CHAT, body(json!({"messages": messages, "tools": []})))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let shown = r#"[{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]"#;
    assert_eq!(
        prompt(&server),
        format!("user:hi/assistant:hm{shown}/tool:42/")
    );
}

#[tokio::test]
async fn reasoning_is_separate_from_content() {
    let server = Server::with(Some(TEMPLATE), |config| {
        config.text.reasoning_format = Format::Fixed(ReasoningFormat::Think);
    });
    let texts = ["I th", "ink\n</thi", "nk>\n\nYes", "."];
    let kwargs = json!({"chat_template_kwargs": {"open": true}, "tools": null});
    server.backend.play(&texts, End::StopToken);
    let answer = server.post(CHAT, body(kwargs.clone())).await.json();
    let message = json!({"role": "assistant", "content": "Yes.", "reasoning_content": "I think", "reasoning": "I think"});
    assert_eq!(answer["choices"][0]["message"], message);
    server.backend.play(&texts, End::StopToken);
    let mut streamed = body(kwargs);
    streamed["stream"] = json!(true);
    let events = server.post(CHAT, streamed).await.events();
    let all = |field: &str| -> String {
        let texts = events
            .iter()
            .filter_map(|e| e["choices"][0]["delta"][field].as_str());
        texts.collect()
    };
    assert_eq!(
        (all("reasoning_content"), all("content")),
        ("I think".into(), "Yes.".into())
    );
    assert_eq!(all("role"), "assistant");
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
}

/// Fields of a request, and the one at fault.
type Case = (Value, &'static str);

fn named(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

fn bad_tools() -> Vec<Case> {
    let with = |parameters: Value| {
        let function = json!({"name": "f", "parameters": parameters});
        json!([{"type": "function", "function": function}])
    };
    vec![
        (json!({"tools": [named("")]}), "tools[0].function.name"),
        (
            json!({"tools": [named("f"), named("two words")]}),
            "tools[1].function.name",
        ),
        (
            json!({"tools": [named("f"), named("f")]}),
            "tools[1].function.name",
        ),
        (
            json!({"tools": [named(&"x".repeat(65))]}),
            "tools[0].function.name",
        ),
        (json!({"tools": [{"type": "retrieval"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0].function",
        ),
        (json!({"tools": {"f": 1}}), "tools"),
        (
            json!({"tools": with(json!(5))}),
            "tools[0].function.parameters",
        ),
        (
            json!({"tools": with(json!([]))}),
            "tools[0].function.parameters",
        ),
        (
            json!({"tools": with(json!({"type": "string"}))}),
            "tools[0].function.parameters.type",
        ),
        (json!({"tools": vec![named("f"); 1100]}), "tools"),
    ]
}

fn bad_calls() -> Vec<Case> {
    let says = |message: Value| json!([{"role": "user", "content": "hi"}, message]);
    vec![
        (json!({"tool_choice": named("g")}), "tool_choice"),
        (json!({"tool_choice": "g"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function"}}),
            "tool_choice.function",
        ),
        (json!({"tool_choice": 5}), "tool_choice"),
        (
            json!({"tool_choice": "required", "guided_regex": "a"}),
            "tool_choice",
        ),
        (
            json!({"tool_choice": "required", "ignore_eos": true}),
            "ignore_eos",
        ),
        (
            json!({"tool_choice": "required", "tools": []}),
            "tool_choice",
        ),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        (
            json!({"messages": says(json!({"role": "tool", "content": "x"}))}),
            "messages",
        ),
        (
            json!({"messages": says(json!({"role": "assistant"}))}),
            "messages",
        ),
        (
            json!({"messages": says(json!({"role": "assistant", "tool_calls": []}))}),
            "messages",
        ),
        (
            json!({"messages": says(json!({"role": "assistant", "tool_calls": [{"function": {}}]}))}),
            "messages[1].tool_calls[0].function.name",
        ),
        (
            json!({"messages": says(json!({"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}))}),
            "messages[1].tool_calls[0].function.name",
        ),
        (json!({"chat_template_kwargs": [1]}), "chat_template_kwargs"),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs",
        ),
    ]
}

#[tokio::test]
async fn invalid_tools_are_refused_by_name() {
    let server = server();
    for (fields, param) in bad_tools().into_iter().chain(bad_calls()) {
        let reply = server.post(CHAT, body(fields.clone())).await;
        assert_eq!(reply.status, 400, "{param}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.text());
    }
    assert!(server.backend.requests().is_empty());
    let mute = Server::with(Some(TEMPLATE), |config| {
        config.text.tool_format = Format::Off;
    });
    let reply = mute.post(CHAT, body(json!({}))).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.json()["error"]["param"]),
        (400, &json!("tools"))
    );
}

#[tokio::test]
async fn chat_tokenize_returns_the_prompt_tokens() {
    let server = server();
    let answer = server.post("/chat_tokenize", body(json!({}))).await.json();
    let text = answer["templated_text"].as_str().unwrap();
    assert!(text.ends_with("user:hi/"), "{text}");
    let tokens = answer["tokenize_response"].as_array().unwrap();
    assert_eq!(tokens.len(), text.len());
    assert_eq!(
        tokens[0],
        json!({"id": 91, "text": "[", "start": 0, "stop": 1})
    );
    for (fields, name) in [
        (json!({"messages": []}), "messages"),
        (json!({"tool_choice": "g"}), "tool_choice"),
    ] {
        let reply = server.post("/chat_tokenize", body(fields)).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.json()["error_type"]),
            (422, &json!("validation"))
        );
        assert!(reply.message().contains(name), "{}", reply.text());
    }
}

#[tokio::test]
async fn allowed_tools_restricts_the_tools() {
    let mut other = tool();
    other["function"]["name"] = json!("other");
    let allowed = |mode: &str, name: &str| {
        let tools = json!([{"type": "function", "function": {"name": name}}]);
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    };
    for (mode, constrained) in [("auto", false), ("required", true)] {
        let server = server();
        server.backend.play(&[CALL], End::StopToken);
        let fields = json!({"tools": [other, tool()], "tool_choice": allowed(mode, "f")});
        let answer = server.post(CHAT, body(fields)).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        assert!(!prompt(&server).contains("other"), "{}", prompt(&server));
        let grammar = server.backend.last().grammar;
        assert_eq!(grammar.is_some(), constrained);
        assert!(grammar.is_none_or(|grammar| !grammar.constraint.text.contains("other")));
    }
    let server = server();
    for (choice, part) in [
        (
            allowed("auto", "fly"),
            "must name tools of `tools`. Given: `fly`",
        ),
        (allowed("none", "f"), "`none`"),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
            "empty",
        ),
        (json!({"type": "allowed_tools"}), "allowed_tools"),
    ] {
        let refused = server
            .post(CHAT, body(json!({"tool_choice": choice})))
            .await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        let param = refused.json()["error"]["param"].clone();
        assert!(
            param.as_str().unwrap().starts_with("tool_choice"),
            "{param}"
        );
        assert!(refused.text().contains(part), "{}", refused.text());
    }
}
