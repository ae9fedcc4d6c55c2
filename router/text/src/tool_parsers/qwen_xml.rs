//! Qwen 3 Coder's calls: `<tool_call><function=name><parameter=key>value</parameter></function>
//! </tool_call>`. The model may omit the outer tag. A JSON object within the tag is a call too.

use super::content_buffer::{ContentBuffer, MarkFinder, NextMark, NextText};
use super::hermes::{CLOSE, OPEN};
use super::json_call::{JsonCallParser, Progress};
use super::typed_call::TypedCall;
use super::{OutputDeltas, ToolCallParser, is_plain};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// A parser of content and Qwen 3 Coder's calls.
#[derive(Debug)]
pub(super) struct QwenXmlParser {
    state: State,
    content_buffer: ContentBuffer,
    call: TypedCall,
    /// Whether the call has the outer tag.
    tagged: bool,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the outer tag.
    Tagged(NextMark),
    Json(Box<JsonCallParser>),
    /// In the function's name.
    Name(String),
    /// In a function, before a parameter.
    Body(NextMark),
    /// In a parameter's name.
    Key(String),
    /// In a value; `true` before its first character.
    Value(MarkFinder, bool),
    /// After a function.
    Close(NextMark),
}

impl QwenXmlParser {
    /// Creates a parser. If calls are `strict`, only the outer tag opens one.
    pub(super) fn new(call: TypedCall, strict: bool) -> Self {
        Self {
            state: State::Text,
            content_buffer: ContentBuffer::new(if strict { &[OPEN] } else { &[OPEN, FUNCTION] }),
            call,
            tagged: false,
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        let found = self.content_buffer.push(c, out);
        self.tagged = found == Some(0);
        self.state = match found {
            Some(0) => State::Tagged(NextMark::new(&[FUNCTION])),
            Some(_) => State::Name(String::new()),
            None => State::Text,
        };
    }

    /// Makes everything since the mark content, and parses `text` as content.
    fn give_up(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        self.content_buffer.give_up(out);
        text.chars().for_each(|c| self.push(c, out));
    }

    fn tagged(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Tagged(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank => self.content_buffer.hold(c.encode_utf8(&mut [0; 4])),
            NextText::Partial => {}
            NextText::Mark(_) => {
                self.content_buffer.hold(FUNCTION);
                self.state = State::Name(String::new());
            }
            NextText::Other(text) if text == "{" => {
                self.state = State::Json(Box::default());
                self.json(c, out);
            }
            NextText::Other(text) => self.give_up(&text, out),
        }
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

    fn name(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Name(name) = &mut self.state else {
            return;
        };
        let known = self.tagged || self.call.knows(name);
        if c == '>' && !name.is_empty() && known {
            self.content_buffer.call_started();
            self.call.begin(name, out);
            self.state = body();
        } else if is_plain(c) {
            name.push(c);
            self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
        } else {
            self.give_up(c.encode_utf8(&mut [0; 4]), out);
        }
    }

    fn body(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Body(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Key(String::new()),
            NextText::Mark(mark) => {
                self.call.end(out);
                // The outer tag may close a function, too.
                self.state = match mark {
                    1 => State::Close(NextMark::new(&[CLOSE, FUNCTION])),
                    _ => State::Text,
                };
            }
            NextText::Other(text) => self.break_off(&text, out),
        }
    }

    /// Ends a call that is broken off; `text` is content.
    fn break_off(&mut self, text: &str, out: &mut OutputDeltas) {
        self.call.end(out);
        self.state = State::Text;
        text.chars().for_each(|c| self.push(c, out));
    }

    fn key(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Key(key) = &mut self.state else {
            return;
        };
        match c {
            '>' => {
                self.call.begin_argument(key, out);
                self.state =
                    State::Value(MarkFinder::new(&["\n</parameter>", PARAMETER_END]), true);
            }
            '\n' => {
                let text = format!("{PARAMETER}{key}\n");
                self.break_off(&text, out);
            }
            c => key.push(c),
        }
    }

    fn value(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Value(finder, first) = &mut self.state else {
            return;
        };
        // The line break after the tag is not part of the value, and none before the next tag is.
        if std::mem::take(first) && c == '\n' {
            return;
        }
        let (found, text) = finder.push(c);
        self.call.push(&text, out);
        if found.is_some() {
            self.call.end_argument(out);
            self.state = body();
        }
    }

    fn close(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Text,
            NextText::Mark(_) => {
                self.content_buffer.hold(FUNCTION);
                self.state = State::Name(String::new());
            }
            NextText::Other(text) => {
                self.state = State::Text;
                text.chars().for_each(|c| self.push(c, out));
            }
        }
    }
}

fn body() -> State {
    State::Body(NextMark::new(&[PARAMETER, FUNCTION_END, CLOSE]))
}

impl ToolCallParser for QwenXmlParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Tagged(_) => self.tagged(c, out),
            State::Json(_) => self.json(c, out),
            State::Name(_) => self.name(c, out),
            State::Body(_) => self.body(c, out),
            State::Key(_) => self.key(c, out),
            State::Value(..) => self.value(c, out),
            State::Close(_) => self.close(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        if let State::Tagged(next) = &mut self.state {
            self.content_buffer.hold(&next.take());
        }
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
