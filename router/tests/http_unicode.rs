//! Streams say what the answer in one piece says, however characters are spread over tokens and
//! events, and whatever the stop strings are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scripted;

use penstock_router::engine::{End, Token, TokenEvent};
use scripted::{Act, Reply, Server};
use serde_json::{Value, json};

const ROUNDS: u64 = 150;
/// Emoji of one and of many code points, flags, marks that combine, letters of several bytes.
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

/// Knuth's linear congruence: the same texts in every run.
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

    /// A string that the text holds, by characters, or one that it need not hold.
    fn stop(&mut self, text: &str) -> String {
        let characters: Vec<char> = text.chars().collect();
        let start = self.below(characters.len());
        let length = 1 + self.below(4.min(characters.len() - start));
        match self.below(3) {
            0 => self.text(2),
            _ => characters[start..start + length].iter().collect(),
        }
    }

    /// The bytes of the text, a token each, in events of any size; sometimes with bytes that are no
    /// character, as byte-fallback tokens can be.
    fn events(&mut self, text: &str) -> Vec<TokenEvent> {
        let mut bytes = text.as_bytes().to_vec();
        if self.below(4) == 0 {
            let at = self.below(bytes.len());
            bytes.insert(at, [0xFF, 0xC3, 0x80, 0xF0][self.below(4)]);
        }
        let mut events = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + self.below(rest.len().min(7)));
            let token = |byte: &u8| Token {
                id: u32::from(*byte),
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

async fn ask(server: &Server, path: &str, body: &Value, events: &[TokenEvent]) -> Reply {
    server.stage.act(Act::Play(events.to_vec()));
    let reply = server.post(path, body.clone()).await;
    assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
    reply
}

fn joined(reply: &Reply, delta: impl Fn(&Value) -> &Value) -> String {
    let events = reply.events();
    let texts = events.iter().map(|event| delta(event).as_str());
    texts.map(Option::unwrap_or_default).collect()
}

/// What an answer must be: its text up to the first stop string, which ends first of all.
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

#[tokio::test]
async fn streams_say_what_whole_answers_say() {
    let server = Server::new();
    let mut random = Random(11);
    let mut stopped = 0;
    for round in 0..ROUNDS {
        let text = random.text(9);
        let stops = [random.stop(&text), random.stop(&text)];
        let events = random.events(&text);
        let case = format!("round {round}: {text:?} {stops:?} {events:?}");

        let body = json!({"inputs": "x", "parameters": {"stop": stops}});
        let whole = ask(&server, "/generate", &body, &events).await.json();
        let native = whole["generated_text"].as_str().unwrap().to_owned();
        let stream = ask(&server, "/generate_stream", &body, &events).await;
        let told = stream.events();
        assert_eq!(told.last().unwrap()["generated_text"], native, "{case}");
        let tokens = joined(&stream, |event| &event["token"]["text"]);
        assert!(tokens.starts_with(&native), "{case}: {tokens:?}");

        let body = json!({"prompt": "x", "stop": stops});
        let whole = ask(&server, "/v1/completions", &body, &events).await.json();
        let content = whole["choices"][0]["text"].as_str().unwrap().to_owned();
        let body = json!({"prompt": "x", "stop": stops, "stream": true});
        let stream = ask(&server, "/v1/completions", &body, &events).await;
        let deltas = joined(&stream, |event| &event["choices"][0]["text"]);
        assert_eq!(deltas, content, "{case}");

        let messages = json!([{"role": "user", "content": "x"}]);
        let body = json!({"messages": messages, "stop": stops, "stream": true});
        let stream = ask(&server, "/v1/chat/completions", &body, &events).await;
        let deltas = joined(&stream, |event| &event["choices"][0]["delta"]["content"]);
        assert_eq!(deltas, content, "{case}");

        let plain: Vec<u8> = events
            .iter()
            .flat_map(|event| event.tokens.iter().map(|token| token.id as u8))
            .collect();
        let plain = String::from_utf8_lossy(&plain).into_owned();
        let (start, end) = expected(&plain, &stops);
        assert_eq!(content, &plain[..start], "{case}");
        assert_eq!(native, &plain[..end], "{case}");
        stopped += u64::from(end < plain.len());
    }
    assert!(stopped > ROUNDS / 4 && stopped < ROUNDS, "{stopped}");
}

#[tokio::test]
async fn half_a_surrogate_pair_is_no_stop_string() {
    let server = Server::new();
    for half in [r"\ud83e", r"\udd8a", r"\udd8a\ud83e"] {
        let body = format!(r#"{{"inputs": "x", "parameters": {{"stop": ["{half}"]}}}}"#);
        let reply = server.send("POST", "/generate", body).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.message().contains("stop"), "{}", reply.text());
    }
    let whole = json!({"inputs": "x", "parameters": {"stop": ["🦊"]}});
    let body = whole.to_string().replace('🦊', r"\ud83e\udd8a");
    server.stage.play(&["a🦊b"], End::Length);
    let reply = server.send("POST", "/generate", body).await;
    assert_eq!(reply.json()["generated_text"], "a🦊");
}
