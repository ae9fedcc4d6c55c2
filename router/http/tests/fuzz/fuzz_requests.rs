//! Random hostile requests: valid bodies with random faults. The same seed gives the same requests.

#![allow(dead_code, unreachable_pub, reason = "each test uses its own part")]
#![allow(clippy::unwrap_used)]

use penstock_http::openapi_json;
use serde_json::{Map, Value, json};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

/// A request as sent over the wire.
pub struct Hostile {
    pub method: &'static str,
    pub path: String,
    pub media_type: &'static str,
    pub body: Vec<u8>,
}

/// A field of a route's body that can get a wrong value.
#[derive(Clone)]
pub struct Field {
    path: String,
    /// A valid body, and the object in it that has the field.
    body: Value,
    within: Option<&'static str>,
    name: String,
}

/// The fault of a request.
pub struct Wrong {
    /// The field, and the fields of its value.
    pub names: Vec<String>,
}

const ROUTES: [&str; 11] = [
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/chat_tokenize",
    "/",
    "/generate",
    "/generate_stream",
    "/tokenize",
    "/v1/completions",
    "/v1/chat/completions",
];
const OTHERS: [&str; 10] = [
    "/v2/models/brook/infer",
    "/v2/models/%ff/generate",
    "/health",
    "/ready",
    "/metrics",
    "/info",
    "/openapi.json",
    "/v1/models",
    "/v1/models/%ff%00/..",
    "/v1/nothing/%E2%82",
];
const METHODS: [&str; 5] = ["GET", "PUT", "DELETE", "HEAD", "OPTIONS"];
const MEDIA_TYPES: [&str; 4] = [
    "text/plain",
    "",
    "application/json; charset=utf-16",
    "multipart/form-data",
];
const NUMBERS: [&str; 16] = [
    "0",
    "-0",
    "-1",
    "1",
    "0.5",
    "-0.5",
    "1e-300",
    "1e38",
    "1e39",
    "-1e400",
    "2147483648",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "123456789012345678901234567890",
];
const TEXTS: [&str; 12] = [
    "",
    "a",
    "\u{0}",
    "\u{FFFD}\u{1F600}",
    "e\u{301}\u{301}",
    "<end>",
    "<far>",
    "wizard",
    "{{ messages }}",
    "null",
    "\n\r\t\u{2028}",
    "\", expected `x`",
];
const KEYS: [&str; 10] = [
    "",
    "colour",
    "inputs",
    "prompt",
    "messages",
    "parameters",
    "stream",
    "type",
    "text",
    "__proto__",
];

/// Returns all fields in the OpenAPI description.
pub fn fields() -> Vec<Field> {
    let api: Value = serde_json::from_str(&openapi_json()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        let body = &methods["post"]["requestBody"]["content"]["application/json"];
        let Some(schema) = body["schema"]["$ref"].as_str() else {
            continue;
        };
        let schema = schema.rsplit('/').next().unwrap();
        let nested = (schema == "GenerateRequest").then_some(("GenerateParameters", "parameters"));
        let schemas = [
            Some((schema, None)),
            nested.map(|(schema, at)| (schema, Some(at))),
        ];
        for (schema, within) in schemas.into_iter().flatten() {
            let properties = &api["components"]["schemas"][schema]["properties"];
            found.extend(properties.as_object().unwrap().keys().map(|name| Field {
                path: path.replace("{model}", "brook").replace("{version}", "1"),
                body: body["example"].clone(),
                within,
                name: name.clone(),
            }));
        }
    }
    found
}

impl Random {
    /// Returns a request that is valid except for one field, and that field.
    pub fn wrong_field(&mut self, fields: &[Field]) -> (Hostile, Wrong) {
        let Field {
            path,
            mut body,
            within,
            name,
        } = fields[self.below(fields.len())].clone();
        let place = match within {
            Some(outer) => &mut body[outer],
            None => &mut body,
        };
        place[&name] = self.value(3);
        let inner = place[&name].as_object();
        let inner = inner.into_iter().flat_map(Map::keys).cloned();
        let names = std::iter::once(name).chain(inner).collect();
        let request = Hostile {
            method: "POST",
            path,
            media_type: "application/json",
            body: spliced(&body).into_bytes(),
        };
        (request, Wrong { names })
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a request with up to four faults.
    pub fn request(&mut self) -> Hostile {
        let path = self.of(&ROUTES);
        let mut body = self.good(path);
        for _ in 0..self.below(5) {
            let hostile = self.value(4);
            self.change(&mut body, hostile);
        }
        let mut request = Hostile {
            method: "POST",
            path: path.to_owned(),
            media_type: "application/json",
            body: self.written(&body),
        };
        if self.one_in(40) {
            request.method = self.of(&METHODS);
        }
        if self.one_in(40) {
            request.media_type = self.of(&MEDIA_TYPES);
        }
        if self.one_in(20) {
            request.path = self.of(&OTHERS).to_owned();
            request.method = self.of(&["GET", "POST"]);
        }
        request
    }

    fn good(&mut self, path: &str) -> Value {
        let stream = self.one_in(2);
        let common = json!({"model": "brook", "max_tokens": 4, "temperature": 0, "top_p": 0.5, "top_k": 3,
            "stop": ["x", "yz"], "seed": 7, "stream": stream, "ignore_eos": true, "n": 1, "logit_bias": {}});
        match path {
            "/v1/completions" => with(common, "prompt", self.prompt()),
            "/v1/chat/completions" | "/chat_tokenize" => {
                let chat = with(common, "messages", self.messages());
                match self.one_in(2) {
                    true => with(with(chat, "tools", tools()), "tool_choice", json!("auto")),
                    false => with(chat, "chat_template_kwargs", json!({"a": [1, {"b": "c"}]})),
                }
            }
            "/v1/messages" | "/v1/messages/count_tokens" => {
                json!({"model": "brook", "max_tokens": 4, "temperature": 0, "top_k": 3, "top_p": 0.5,
                "stop_sequences": ["x"], "stream": stream, "messages": self.blocks(),
                "system": [{"type": "text", "text": "s"}], "thinking": {"type": "enabled"},
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})
            }
            "/v1/responses" | "/v1/responses/input_tokens" => {
                json!({"model": "brook", "max_output_tokens": 4, "temperature": 0, "top_k": 3, "stream": stream,
                "input": self.items(), "instructions": "s", "metadata": {"a": "b"}, "parallel_tool_calls": false,
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
                "include": ["message.output_text.logprobs"], "top_logprobs": 1,
                "text": {"format": {"type": "text"}}, "reasoning": {"effort": null, "summary": "auto"}})
            }
            "/tokenize" => json!({"inputs": "héllo", "parameters": {"stop": ["a"]}}),
            _ => {
                json!({"inputs": "hi", "parameters": {"max_new_tokens": 4, "temperature": 0.5, "top_k": 3,
                "top_p": 0.5, "stop": ["x"], "seed": 7, "details": true, "truncate": 5, "do_sample": true,
                "return_full_text": self.one_in(2), "best_of": 1, "grammar": null}})
            }
        }
    }

    fn prompt(&mut self) -> Value {
        let prompts = [
            json!("hi"),
            json!(["a", "b"]),
            json!([1, 2]),
            json!([[1], [2, 3]]),
        ];
        prompts[self.below(prompts.len())].clone()
    }

    fn messages(&mut self) -> Value {
        let calls = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":[1]}"}}]);
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let turns = [
            json!({"role": "user", "content": "hi", "name": "n"}),
            json!({"role": "user", "content": parts}),
            json!({"role": "assistant", "content": null, "tool_calls": calls, "refusal": null}),
            json!({"role": "tool", "content": "42", "tool_call_id": "1"}),
        ];
        (0..=self.below(3))
            .map(|_| turns[self.below(turns.len())].clone())
            .collect()
    }

    /// Returns messages as Anthropic's clients send them.
    fn blocks(&mut self) -> Value {
        let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}});
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": ""});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": "42"});
        let turns = [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "user", "content": [result, {"type": "text", "text": "a"}]}),
            json!({"role": "assistant", "content": [thought, call]}),
            json!({"role": "assistant", "content": "So"}),
        ];
        (0..=self.below(3))
            .map(|_| turns[self.below(turns.len())].clone())
            .collect()
    }

    /// Returns items of a conversation, as clients of the Responses API send them.
    fn items(&mut self) -> Value {
        let parts =
            json!([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]);
        let reasoning = json!([{"type": "reasoning_text", "text": "hm"}]);
        let items = [
            json!({"role": "user", "content": parts}),
            json!({"type": "message", "role": "assistant", "content": "So", "status": "incomplete"}),
            json!({"type": "reasoning", "id": "1", "summary": [], "content": reasoning}),
            json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\":[1]}"}),
            json!({"type": "function_call_output", "call_id": "1", "output": "42"}),
        ];
        (0..=self.below(3))
            .map(|_| items[self.below(items.len())].clone())
            .collect()
    }

    /// Returns a JSON value, which is mostly hostile.
    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => Value::Bool(self.one_in(2)),
            // Numbers that exceed every number type; `spliced` writes them into the body.
            2 => Value::from(format!("#{}", self.of(&NUMBERS))),
            3 => Value::from(self.of(&TEXTS)),
            4 => Value::from(self.of(&TEXTS).repeat([1, 100, 10_000][self.below(3)])),
            5 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            6 => {
                let entry = [Value::Null, json!(1), json!("a"), json!([]), json!({})]
                    [self.below(5)]
                .clone();
                Value::Array(vec![entry; [1, 50, 3000][self.below(3)]])
            }
            7 => {
                let deep = 1 + self.below(300);
                (0..deep).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
            }
            _ => {
                let entry = |_| (self.of(&KEYS).to_owned(), self.value(depth - 1));
                Value::Object((0..1 + depth).map(entry).collect::<Map<_, _>>())
            }
        }
    }

    /// Puts `hostile` somewhere into `body`, in place of a value or beside it.
    fn change(&mut self, body: &mut Value, hostile: Value) {
        if self.one_in(4) {
            *body = hostile;
            return;
        }
        match body {
            Value::Object(fields) if !fields.is_empty() => {
                if self.one_in(6) {
                    fields.insert(self.of(&KEYS).repeat(1 + self.below(3) * 500), hostile);
                    return;
                }
                let at = self.below(fields.len());
                let key = fields.keys().nth(at).unwrap().clone();
                match self.below(8) {
                    0 => drop(fields.remove(&key)),
                    _ => self.change(&mut fields[&key], hostile),
                }
            }
            Value::Array(items) if !items.is_empty() => {
                let at = self.below(items.len());
                self.change(&mut items[at], hostile);
            }
            other => *other = hostile,
        }
    }

    /// Returns the body as text, sometimes broken.
    fn written(&mut self, body: &Value) -> Vec<u8> {
        let mut bytes = spliced(body).into_bytes();
        match self.below(12) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => {
                let at = self.below(bytes.len());
                bytes[at] = self.of(b"\xff\x00\"{[,}]\\e");
            }
            2 => bytes.extend_from_slice(self.of(&[&b" {}"[..], b"\xef\xbb\xbf", b"]]]"])),
            _ => {}
        }
        bytes
    }
}

/// Returns the body as text with numbers that exceed every number type.
fn spliced(body: &Value) -> String {
    let plain = body.to_string();
    let splice = |text: String, number: &&str| text.replace(&format!("\"#{number}\""), number);
    NUMBERS.iter().fold(plain, splice)
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "$defs": {"a": {}}, "properties": {"b": {"$ref": "#/$defs/a"}}}}}])
}

fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}
