//! From the bytes of an HTTP response, in arbitrary pieces, to its server-sent events.

use serde::Deserialize;
use std::borrow::Cow;

/// Longest response head and longest chunk head that are read.
const MOST_HEAD: usize = 64 << 10;
/// How much of a refusal's body is kept for the error message.
const MOST_ERROR: usize = 600;

/// What one event says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A token, with its text where the API tells it.
    Token(&'a str),
    /// What the server counted: tokens of the prompt and of the answer.
    Usage(Usage),
    /// The answer failed after it had begun.
    Failed(&'a str),
    /// `[DONE]`
    Done,
}

/// Tokens that the server counted.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
}

/// Decodes one response: its head, the chunked coding of its body, the events in it.
#[derive(Default)]
pub(crate) struct Response {
    state: State,
    line: Vec<u8>,
    refusal: Vec<u8>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// The body of a response that is not 200 is only kept.
    Refused,
    /// A line with a chunk's size, or the empty one before it.
    Size,
    /// The bytes that are left of a chunk.
    Chunk(usize),
    /// A body without chunks, to the end of the connection.
    Whole,
    /// The last chunk, which is empty, has come.
    Ended,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<Usage>,
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    finish_reason: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
}

impl Response {
    /// Reads on; every event that ends in `bytes` goes to `sink`.
    pub(crate) fn read(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        let mut rest = bytes;
        while let Some(&byte) = rest.first() {
            match self.state {
                State::Head | State::Size => {
                    rest = &rest[1..];
                    self.header_byte(byte);
                }
                State::Refused => {
                    let room = MOST_ERROR.saturating_sub(self.refusal.len());
                    self.refusal
                        .extend_from_slice(&rest[..room.min(rest.len())]);
                    return;
                }
                State::Chunk(left) => {
                    let (now, later) = rest.split_at(left.min(rest.len()));
                    self.body(now, sink);
                    rest = later;
                    self.state = match left - now.len() {
                        0 => State::Size,
                        left => State::Chunk(left),
                    };
                }
                State::Whole => {
                    self.body(rest, sink);
                    return;
                }
                State::Ended => return,
            }
        }
    }

    /// Whether the connection may end here: not in the midst of an answer.
    pub(crate) fn may_end(&self) -> bool {
        matches!(self.state, State::Whole | State::Ended)
    }

    /// The refusal, if the response is one.
    pub(crate) fn refusal(&self) -> Option<String> {
        (self.state == State::Refused).then(|| String::from_utf8_lossy(&self.refusal).into_owned())
    }

    fn header_byte(&mut self, byte: u8) {
        if self.line.len() < MOST_HEAD {
            self.line.push(byte);
        }
        if self.state == State::Head && self.line.ends_with(b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&self.line).to_ascii_lowercase();
            self.state = if !head.starts_with("http/1.1 200") {
                let status = head.lines().next().unwrap_or_default();
                self.refusal = format!("{status}: ").into_bytes();
                State::Refused
            } else if head.contains("transfer-encoding: chunked") {
                State::Size
            } else {
                State::Whole
            };
            self.line.clear();
        } else if self.state == State::Size && byte == b'\n' {
            let text = String::from_utf8_lossy(&self.line);
            let size = text.split(';').next().unwrap_or_default().trim();
            match usize::from_str_radix(size, 16) {
                Ok(0) => self.state = State::Ended,
                Ok(size) => self.state = State::Chunk(size),
                Err(_) => {}
            }
            self.line.clear();
        }
    }

    fn body(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (now, later) = rest.split_at(end);
            rest = &later[1..];
            if self.line.is_empty() {
                event(now, sink);
            } else {
                self.line.extend_from_slice(now);
                event(&self.line, sink);
                self.line.clear();
            }
        }
        self.line.extend_from_slice(rest);
    }
}

/// Tells `sink` what a line of the body says.
fn event(line: &[u8], sink: &mut impl FnMut(Event<'_>)) {
    let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
        return;
    };
    let Ok(text) = std::str::from_utf8(data) else {
        return sink(Event::Failed("an event is not UTF-8"));
    };
    if text == "[DONE]" {
        return sink(Event::Done);
    }
    match serde_json::from_str::<Wire<'_>>(text) {
        Err(_) => sink(Event::Failed(text)),
        Ok(wire) if wire.error.is_some() => sink(Event::Failed(text)),
        Ok(wire) => {
            if let Some(token) = wire.token() {
                sink(Event::Token(token));
            }
            if let Some(usage) = wire.usage {
                sink(Event::Usage(usage));
            }
        }
    }
}

impl Wire<'_> {
    /// The text of a token, if the event brings one: one that only ends the answer does not.
    fn token(&self) -> Option<&str> {
        let Some(choices) = &self.choices else {
            return Some(""); // an API without choices has one event per token
        };
        let choice = choices.first()?;
        match (&choice.text, &choice.delta) {
            (Some(text), _) if text.is_empty() && choice.finish_reason.is_some() => None,
            (Some(text), _) => Some(text),
            (None, Some(delta)) => delta.content.as_deref().filter(|text| !text.is_empty()),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    const BODY: [&str; 5] = [
        "data: {\"choices\":[{\"text\":\"é\",\"finish_reason\":null}],\"usage\":null}\n\n",
        ": comment\n\ndata: {\"choices\":[{\"text\":\" b\",\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n",
        "data: [DONE]\n\n",
    ];

    fn parsed_text(pieces: &[&[u8]]) -> (String, usize) {
        let (mut response, mut text, mut events) = (Response::default(), String::new(), 0);
        for piece in pieces {
            response.read(piece, &mut |event| {
                events += 1;
                match event {
                    Event::Token(token) => text.push_str(token),
                    Event::Usage(usage) => text.push_str(&format!("|{}", usage.completion_tokens)),
                    Event::Failed(why) => text.push_str(why),
                    Event::Done => text.push('.'),
                }
            });
        }
        (text, events)
    }

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let chunk = |part: &&str| format!("{:x}\r\n{part}\r\n", part.len());
        let chunks: String = BODY.iter().map(chunk).collect();
        let bytes = format!("{HEAD}{chunks}0\r\n\r\n").into_bytes();
        for cut in 0..bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(
                parsed_text(&[head, tail]),
                ("é b|2.".into(), 4),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn an_answer_ends_with_its_last_chunk() {
        let mut response = Response::default();
        response.read(HEAD.as_bytes(), &mut |_| {});
        response.read(b"6\r\ndata:1\r\n", &mut |_| {});
        assert!(!response.may_end());
        response.read(b"0\r\n\r\n", &mut |_| {});
        assert!(response.may_end());
    }

    #[test]
    fn a_body_without_chunks_is_read_too() {
        let bytes = format!("HTTP/1.1 200 OK\r\n\r\n{}", BODY.concat());
        assert_eq!(parsed_text(&[bytes.as_bytes()]).0, "é b|2.");
    }

    #[test]
    fn refusals_and_late_errors_are_reported() {
        let mut response = Response::default();
        response.read(b"HTTP/1.1 429 Too Many\r\n\r\n{\"a\":1}", &mut |_| {});
        assert_eq!(
            response.refusal().as_deref(),
            Some("http/1.1 429 too many: {\"a\":1}")
        );
        let late = "HTTP/1.1 200 OK\r\n\r\ndata: {\"error\":\"x\"}\n\n";
        assert_eq!(parsed_text(&[late.as_bytes()]).0, "{\"error\":\"x\"}");
    }

    #[test]
    fn other_dialects_have_tokens_too() {
        let chat = "HTTP/1.1 200 OK\r\n\r\n\
            data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(parsed_text(&[chat.as_bytes()]), ("hi".into(), 1));
        let native = "HTTP/1.1 200 OK\r\n\r\ndata:{\"token\":{\"id\":1}}\n\n";
        assert_eq!(parsed_text(&[native.as_bytes()]).1, 1);
    }
}
