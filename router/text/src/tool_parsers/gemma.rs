//! Gemma 4's calls: `<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`. A JSON
//! object is accepted in place of Gemma's notation. A call is emitted as JSON when it is complete.

use serde_json::{Map, Value};

use super::content_buffer::{ContentBuffer, NextMark, NextText};
use super::{OutputDeltas, ToolCallParser, is_plain};

pub(super) const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
/// Before and after a text.
const QUOTE: &str = "<|\"|>";
pub(super) const CALL: &str = "call:";
/// All marks; each may be a special token.
pub(super) const MARKS: [&str; 3] = [OPEN, CLOSE, QUOTE];
/// The maximum nesting of lists and objects.
const DEPTH: usize = 64;

/// A parser of content and Gemma's calls.
#[derive(Debug)]
pub(super) struct GemmaParser {
    state: State,
    content_buffer: ContentBuffer,
    /// The current call's text, from `call:` on.
    call: String,
}

#[derive(Debug)]
enum State {
    Text,
    /// Before the arguments.
    Head,
    Arguments(ArgumentsScanner),
    /// After the arguments. The closing mark may be missing before the next call: forced calls have
    /// none.
    Close(NextMark),
}

/// A scanner for the end of the arguments.
#[derive(Debug, Default)]
struct ArgumentsScanner {
    depth: usize,
    /// Inside a text of Gemma's notation.
    quoted: bool,
    /// Inside a JSON string.
    json: bool,
    escaped: bool,
}

impl ArgumentsScanner {
    /// Takes the last character of `text`. Returns whether it ends the arguments.
    fn step(&mut self, text: &str, c: char) -> bool {
        if self.json {
            self.json = self.escaped || c != '"';
            self.escaped = !self.escaped && c == '\\';
        } else if text.ends_with(QUOTE) {
            self.quoted = !self.quoted;
        } else if !self.quoted {
            match c {
                '"' => self.json = !text.ends_with("<|\""),
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            return self.depth == 0;
        }
        false
    }
}

impl GemmaParser {
    pub(super) fn new() -> Self {
        Self {
            state: State::Text,
            content_buffer: ContentBuffer::new(&[OPEN]),
            call: String::new(),
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        if self.content_buffer.push(c, out).is_some() {
            self.state = State::Head;
        }
    }

    fn head(&mut self, c: char, out: &mut OutputDeltas) {
        if c.is_whitespace() && self.call.is_empty() {
            return self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
        }
        self.call.push(c);
        let name = self.call.strip_prefix(CALL);
        match name {
            Some(name) if c == '{' && name.len() > 1 => {
                let mut scanner = ArgumentsScanner::default();
                scanner.step(&self.call, c);
                self.state = State::Arguments(scanner);
            }
            Some(name) if name.chars().all(is_plain) => {}
            None if CALL.starts_with(&self.call) => {}
            _ => self.give_up(out),
        }
    }

    /// Passes what is no call on as text.
    fn give_up(&mut self, out: &mut OutputDeltas) {
        self.content_buffer.give_up(out);
        let call = std::mem::take(&mut self.call);
        self.parse_as_text(&call, out);
    }

    fn parse_as_text(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        text.chars().for_each(|c| self.push(c, out));
    }

    fn arguments(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Arguments(scanner) = &mut self.state else {
            return;
        };
        self.call.push(c);
        if !scanner.step(&self.call, c) {
            return;
        }
        match parse(&self.call) {
            Some((name, arguments)) => {
                self.content_buffer.call_started();
                self.call.clear();
                out.call(name);
                out.arguments(&Value::Object(arguments).to_string());
                out.end_call();
                self.state = State::Close(NextMark::new(&[CLOSE, OPEN, CALL]));
            }
            None => self.give_up(out),
        }
    }

    fn close(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Text,
            NextText::Mark(mark) => {
                self.content_buffer.hold(if mark == 1 { OPEN } else { "" });
                self.call = if mark == 1 { "" } else { CALL }.to_owned();
                self.state = State::Head;
            }
            NextText::Other(text) => self.parse_as_text(&text, out),
        }
    }
}

impl ToolCallParser for GemmaParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Head => self.head(c, out),
            State::Arguments(_) => self.arguments(c, out),
            State::Close(_) => self.close(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        let call = std::mem::take(&mut self.call);
        self.content_buffer.hold(&call);
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text | State::Close(_))
    }
}

/// Parses `call:name{key:value,..}`, or the same with a JSON object.
fn parse(call: &str) -> Option<(String, Map<String, Value>)> {
    let (name, _) = call.strip_prefix(CALL)?.split_once('{')?;
    let object = &call[CALL.len() + name.len()..];
    let arguments = serde_json::from_str(object).ok().or_else(|| {
        let mut notation = Notation {
            rest: object,
            depth: 0,
        };
        let Value::Object(arguments) = notation.value()? else {
            return None;
        };
        notation.rest.is_empty().then_some(arguments)
    })?;
    Some((name.to_owned(), arguments))
}

/// A parser of Gemma's notation.
struct Notation<'a> {
    rest: &'a str,
    depth: usize,
}

impl Notation<'_> {
    fn eat(&mut self, mark: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(mark)?;
        Some(())
    }

    /// Parses entries up to `close`, separated by commas.
    fn entries(
        &mut self,
        close: &str,
        mut entry: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        while self.eat(close).is_none() {
            entry(self)?;
            if self.eat(",").is_none() {
                self.eat(close)?;
                break;
            }
        }
        self.depth -= 1;
        Some(())
    }

    fn value(&mut self) -> Option<Value> {
        if self.eat("{").is_some() {
            let mut map = Map::new();
            self.entries("}", |notation| {
                let key = notation.key()?;
                map.insert(key, notation.value()?);
                Some(())
            })?;
            return Some(Value::Object(map));
        }
        if self.eat("[").is_some() {
            let mut list = Vec::new();
            self.entries("]", |notation| {
                list.push(notation.value()?);
                Some(())
            })?;
            return Some(Value::Array(list));
        }
        match self.text() {
            Some(text) => Some(Value::String(text)),
            None => self.word(),
        }
    }

    /// Parses a key, in quotes or bare, and the colon.
    fn key(&mut self) -> Option<String> {
        if let Some(key) = self.text() {
            self.eat(":")?;
            return Some(key);
        }
        let (key, rest) = self.rest.split_once(':')?;
        self.rest = rest;
        Some(key.trim().to_owned())
    }

    /// Parses a text between two `QUOTE`, which has no escapes, or a JSON string.
    fn text(&mut self) -> Option<String> {
        if self.eat(QUOTE).is_some() {
            let (text, rest) = self.rest.split_once(QUOTE)?;
            self.rest = rest;
            return Some(text.to_owned());
        }
        let mut json = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = json.next()?.ok()?;
        self.rest = &self.rest[json.byte_offset()..];
        Some(text)
    }

    /// Parses a number or a constant.
    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find([',', ']', '}'])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.trim() {
            "None" => Some(Value::Null),
            word => serde_json::from_str(word).ok(),
        }
    }
}
