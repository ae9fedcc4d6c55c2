//! Streams have the same text as whole responses, for any split of characters over tokens and
//! events and any stop strings.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use penstock_request::types::{End, Token, TokenEvent};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use crate::byte_tokenizer::{special, tokenizer};
use crate::scripted::{EOS, Reply, ScriptedReply, Server, TEMPLATE};

const ROUNDS: u64 = 150;
/// Emoji of one and of several code points, flags, combining marks, letters of several bytes.
const PIECES: [&str; 16] = [
    "a",
    " ",
    "\n",
    "é",
    "e\u{301}",
    "ß",
    "日",
    "本語",
    "🦊",
    "👩\u{200D}👩\u{200D}👧",
    "👍🏽",
    "🇩🇪",
    "\u{200D}",
    "\u{FE0F}",
    "ก็",
    "\u{0}",
];

/// Knuth's linear congruential generator: the same texts in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    fn text(&mut self, most: usize) -> String {
        let count = 1 + self.below(most);
        (0..count).map(|_| PIECES[self.below(16)]).collect()
    }

    /// Returns a substring of the text, or an unrelated string.
    fn stop(&mut self, text: &str) -> String {
        let characters: Vec<char> = text.chars().collect();
        let start = self.below(characters.len());
        let length = 1 + self.below(4.min(characters.len() - start));
        match self.below(3) {
            0 => self.text(2),
            _ => characters[start..start + length].iter().collect(),
        }
    }

    /// Returns the bytes of the text as tokens; sometimes with bytes that form no character, as
    /// tokens can have.
    fn bytes(&mut self, text: &str) -> Vec<u32> {
        let mut bytes = text.as_bytes().to_vec();
        if self.below(4) == 0 {
            let at = self.below(bytes.len());
            bytes.insert(at, [0xFF, 0xC3, 0x80, 0xF0][self.below(4)]);
        }
        bytes.into_iter().map(u32::from).collect()
    }

    /// Returns tokens of a vocabulary with byte fallback: some pieces are one token, others one per
    /// byte.
    fn fallback(&mut self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        for character in text.chars() {
            let whole = (EOS + 2..)
                .zip(WHOLE)
                .find(|(_, piece)| *piece == character);
            match whole.filter(|_| self.below(2) == 0) {
                Some((id, _)) => tokens.push(id),
                None => tokens.extend(character.to_string().bytes().map(u32::from)),
            }
        }
        tokens
    }

    /// Splits tokens into events of random size.
    fn events(&mut self, tokens: &[u32]) -> Vec<TokenEvent> {
        let mut events = Vec::new();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + self.below(rest.len().min(7)));
            let token = |id: &u32| Token {
                id: *id,
                logprob: -0.5,
            };
            events.push(TokenEvent {
                tokens: now.iter().map(token).collect(),
                ..TokenEvent::default()
            });
            rest = later;
        }
        events.last_mut().unwrap().end = Some(End::Length);
        events
    }
}

/// Characters that have a token in `fallback_tokenizer`.
const WHOLE: [char; 6] = ['ß', 'é', '日', '🦊', '\u{200D}', '\u{301}'];

/// Returns a tokenizer like those of Llama 2 and Mistral: a character without a token is one token
/// per byte, `<0xF0>`.
fn fallback_tokenizer() -> Tokenizer {
    let bytes = (0..256_u32).map(|byte| (format!("<0x{byte:02X}>"), json!(byte)));
    let whole = (EOS + 2..).zip(WHOLE);
    let whole = whole.map(|(id, piece)| (piece.to_string(), json!(id)));
    let end = ("<end>".to_owned(), json!(EOS));
    let vocab: Map<String, Value> = bytes.chain(whole).chain([end]).collect();
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let steps = [
        replace,
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    tokenizer(&json!({
        "added_tokens": [special(EOS, "<end>")],
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
    }))
}

async fn ask(server: &Server, path: &str, body: &Value, events: &[TokenEvent]) -> Reply {
    server.backend.act(ScriptedReply::Play(events.to_vec()));
    let reply = server.post(path, body.clone()).await;
    assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
    reply
}

fn joined(reply: &Reply, delta: impl Fn(&Value) -> &Value) -> String {
    let events = reply.events();
    let texts = events.iter().map(|event| delta(event).as_str());
    texts.map(Option::unwrap_or_default).collect()
}

/// Joins the deltas of named events.
fn joined_named(reply: &Reply, delta: impl Fn(&Value) -> &Value) -> String {
    let text = reply.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
    let texts = events.filter_map(|event| Some(delta(&event).as_str()?.to_owned()));
    texts.collect()
}

/// Returns the expected text: up to the first stop string, which is the one that ends first.
fn expected(text: &str, stops: &[String]) -> (usize, usize) {
    let ends = stops.iter().filter_map(|stop| {
        let start = text.find(stop.as_str())?;
        Some((start + stop.len(), start))
    });
    match ends.min() {
        Some((end, start)) => (start, end),
        None => (text.len(), text.len()),
    }
}

/// Returns the texts of the native route and of the others for these tokens; checks that their
/// streams agree.
async fn streamed_texts(
    server: &Server,
    stops: &[String],
    events: &[TokenEvent],
) -> (String, String) {
    let case = format!("{stops:?} {events:?}");
    let body = json!({"inputs": "x", "parameters": {"stop": stops}});
    let whole = ask(server, "/generate", &body, events).await.json();
    let native = whole["generated_text"].as_str().unwrap().to_owned();
    let stream = ask(server, "/generate_stream", &body, events).await;
    let native_events = stream.events();
    assert_eq!(
        native_events.last().unwrap()["generated_text"],
        native,
        "{case}"
    );
    let tokens = joined(&stream, |event| &event["token"]["text"]);
    assert!(tokens.starts_with(&native), "{case}: {tokens:?}");

    let body = json!({"prompt": "x", "stop": stops});
    let whole = ask(server, "/v1/completions", &body, events).await.json();
    let content = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let body = json!({"prompt": "x", "stop": stops, "stream": true});
    let stream = ask(server, "/v1/completions", &body, events).await;
    let deltas = joined(&stream, |event| &event["choices"][0]["text"]);
    assert_eq!(deltas, content, "{case}");

    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"messages": messages, "stop": stops, "stream": true});
    let stream = ask(server, "/v1/chat/completions", &body, events).await;
    let deltas = joined(&stream, |event| &event["choices"][0]["delta"]["content"]);
    assert_eq!(deltas, content, "{case}");

    let body = json!({"messages": messages, "stop_sequences": stops, "stream": true,
                      "model": "brook", "max_tokens": 50});
    let stream = ask(server, "/v1/messages", &body, events).await;
    let deltas = joined_named(&stream, |event| &event["delta"]["text"]);
    assert_eq!(deltas, content, "{case}");

    let include_logprobs = "message.output_text.logprobs";
    for include in [json!([]), json!([include_logprobs])] {
        let body = json!({"input": "x", "stop": stops, "stream": true, "include": include});
        let stream = ask(server, "/v1/responses", &body, events).await;
        let deltas = joined_named(&stream, |event| &event["delta"]);
        assert_eq!(deltas, content, "{case}");
    }
    (native, content)
}

#[tokio::test]
async fn streams_equal_whole_answers() {
    let server = Server::new();
    let mut random = Random(11);
    let mut stopped = 0;
    for round in 0..ROUNDS {
        let text = random.text(9);
        let stops = [random.stop(&text), random.stop(&text)];
        let tokens = random.bytes(&text);
        let events = random.events(&tokens);
        let (native, content) = streamed_texts(&server, &stops, &events).await;
        let plain: Vec<u8> = tokens.iter().map(|id| *id as u8).collect();
        let plain = String::from_utf8_lossy(&plain).into_owned();
        let (start, end) = expected(&plain, &stops);
        let case = format!("round {round}: {text:?} {stops:?} {events:?}");
        assert_eq!(content, &plain[..start], "{case}");
        assert_eq!(native, &plain[..end], "{case}");
        stopped += u64::from(end < plain.len());
    }
    assert!(stopped > ROUNDS / 4 && stopped < ROUNDS, "{stopped}");
}

#[tokio::test]
async fn byte_fallback_tokens_stream_the_same_text() {
    let server = Server::speaking(fallback_tokenizer(), Some(TEMPLATE), |_| {});
    let mut random = Random(13);
    let mut stopped = 0;
    for round in 0..ROUNDS {
        let text = random.text(9);
        let stops = [random.stop(&text), random.stop(&text)];
        let tokens = random.fallback(&text);
        let events = random.events(&tokens);
        let (native, content) = streamed_texts(&server, &stops, &events).await;
        let (start, end) = expected(&text, &stops);
        assert_eq!(content, &text[..start], "round {round}: {text:?} {stops:?}");
        assert_eq!(native, &text[..end], "round {round}: {text:?} {stops:?}");
        stopped += u64::from(end < text.len());
    }
    assert!(stopped > ROUNDS / 4 && stopped < ROUNDS, "{stopped}");
}

#[tokio::test]
async fn unpaired_surrogate_is_refused_as_a_stop_string() {
    let server = Server::new();
    for half in [r"\ud83e", r"\udd8a", r"\udd8a\ud83e"] {
        let body = format!(r#"{{"inputs": "x", "parameters": {{"stop": ["{half}"]}}}}"#);
        let reply = server.send("POST", "/generate", body).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.message().contains("stop"), "{}", reply.text());
    }
    let whole = json!({"inputs": "x", "parameters": {"stop": ["🦊"]}});
    let body = whole.to_string().replace('🦊', r"\ud83e\udd8a");
    server.backend.play(&["a🦊b"], End::Length);
    let reply = server.send("POST", "/generate", body).await;
    assert_eq!(reply.json()["generated_text"], "a🦊");
}
