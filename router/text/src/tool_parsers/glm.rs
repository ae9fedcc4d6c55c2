//! GLM 4.5's calls: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.
//! A JSON object within the tag is a call too.

use super::content_buffer::{ContentBuffer, MarkFinder, NextMark, NextText};
use super::hermes::{CLOSE, OPEN};
use super::json_call::{JsonCallParser, Progress};
use super::typed_call::TypedCall;
use super::{OutputDeltas, ToolCallParser, is_plain};

const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";
/// All marks; each may be a special token.
pub(super) const MARKS: [&str; 6] = [OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END];

/// A parser of content and GLM's calls.
#[derive(Debug)]
pub(super) struct GlmParser {
    state: State,
    content_buffer: ContentBuffer,
    call: TypedCall,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the tag, in the function's name.
    Name(String, MarkFinder),
    Json(Box<JsonCallParser>),
    /// Before a key.
    Body(NextMark),
    Key(String, MarkFinder),
    /// After a key.
    Keyed(NextMark),
    Value(MarkFinder),
    /// After a JSON object.
    Close(NextMark),
}

impl GlmParser {
    pub(super) fn new(call: TypedCall) -> Self {
        Self {
            state: State::Text,
            content_buffer: ContentBuffer::new(&[OPEN]),
            call,
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        self.state = match self.content_buffer.push(c, out) {
            Some(_) => State::Name(String::new(), MarkFinder::new(&[KEY, CLOSE])),
            None => State::Text,
        };
    }

    fn name(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Name(name, finder) = &mut self.state else {
            return;
        };
        if c == '{' && name.trim().is_empty() && finder.is_idle() {
            self.state = State::Json(Box::default());
            return self.json(c, out);
        }
        let (found, text) = finder.push(c);
        name.push_str(&text);
        self.content_buffer.hold(&text);
        let known = self.call.knows(name.trim());
        if let Some(mark) = found
            && known
        {
            self.content_buffer.call_started();
            self.call.begin(name.trim(), out);
            self.state = if mark == 0 { key() } else { self.ended(out) };
        } else if found.is_some() || !name.trim().chars().all(is_plain) {
            let rest = match found {
                Some(mark) => finder.mark(mark).to_owned(),
                None => finder.take(),
            };
            self.content_buffer.give_up(out);
            self.parse_as_text(&rest, out);
        }
    }

    fn ended(&mut self, out: &mut OutputDeltas) -> State {
        self.call.end(out);
        State::Text
    }

    fn parse_as_text(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        text.chars().for_each(|c| self.push(c, out));
    }

    fn json(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Json(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Close(NextMark::new(&[CLOSE])),
            Progress::Broken => self.text(c, out),
        }
    }

    fn body(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Body(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = key(),
            NextText::Mark(_) => self.state = self.ended(out),
            NextText::Other(text) => {
                self.call.end(out);
                self.parse_as_text(&text, out);
            }
        }
    }

    fn key(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Key(key, finder) = &mut self.state else {
            return;
        };
        let (found, text) = finder.push(c);
        key.push_str(&text);
        if found.is_some() {
            self.call.begin_argument(key.trim(), out);
            self.state = State::Keyed(NextMark::new(&[VALUE]));
        }
    }

    fn keyed(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Keyed(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(_) => self.state = State::Value(MarkFinder::new(&[VALUE_END])),
            NextText::Other(text) => {
                self.call.end(out);
                self.parse_as_text(&text, out);
            }
        }
    }

    fn value(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Value(finder) = &mut self.state else {
            return;
        };
        let (found, text) = finder.push(c);
        self.call.push(&text, out);
        if found.is_some() {
            self.call.end_argument(out);
            self.state = State::Body(NextMark::new(&[KEY, CLOSE]));
        }
    }

    fn close(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(_) => self.state = State::Text,
            NextText::Other(text) => self.parse_as_text(&text, out),
        }
    }
}

fn key() -> State {
    State::Key(String::new(), MarkFinder::new(&[KEY_END]))
}

impl ToolCallParser for GlmParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Name(..) => self.name(c, out),
            State::Json(_) => self.json(c, out),
            State::Body(_) => self.body(c, out),
            State::Key(..) => self.key(c, out),
            State::Keyed(_) => self.keyed(c, out),
            State::Value(_) => self.value(c, out),
            State::Close(_) => self.close(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        if let State::Name(_, finder) = &mut self.state {
            self.content_buffer.hold(&finder.take());
        }
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
