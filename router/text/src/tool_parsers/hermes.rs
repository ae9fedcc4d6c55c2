//! Calls between tags within other content: `<tool_call>{..}</tool_call>`.

use super::content_buffer::{ContentBuffer, MarkFinder};
use super::json_call::{JsonCallParser, Progress};
use super::{OutputDeltas, ToolCallParser};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// A parser of content and tagged calls.
#[derive(Debug)]
pub(super) struct HermesParser {
    state: State,
    content_buffer: ContentBuffer,
}

#[derive(Debug)]
enum State {
    Text,
    Call(Box<JsonCallParser>),
    /// After a call, before its closing tag.
    Close(MarkFinder),
}

impl HermesParser {
    pub(super) fn new() -> Self {
        Self {
            state: State::Text,
            content_buffer: ContentBuffer::new(&[OPEN]),
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        if self.content_buffer.push(c, out).is_some() {
            self.state = State::Call(Box::default());
        }
    }
}

impl ToolCallParser for HermesParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match &mut self.state {
            State::Text => self.text(c, out),
            State::Call(call) => match call.push(c, out, &mut self.content_buffer) {
                Progress::More => {}
                Progress::Done => self.state = State::Close(MarkFinder::new(&[CLOSE])),
                Progress::Broken => {
                    self.state = State::Text;
                    self.text(c, out);
                }
            },
            State::Close(close) if c.is_whitespace() && close.is_idle() => {}
            State::Close(close) => {
                let (found, text) = close.push(c);
                if found.is_some() {
                    self.state = State::Text;
                } else if !text.is_empty() {
                    // The closing tag is missing: parse the held characters as text.
                    let text = text + &close.take();
                    self.state = State::Text;
                    text.chars().for_each(|c| self.push(c, out));
                }
            }
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
