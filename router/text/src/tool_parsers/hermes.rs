//! Calls between tags within other content: `<tool_call>{..}</tool_call>`, or tags of LongCat.

use super::content_buffer::{ContentBuffer, NextMark, NextText};
use super::json_call::{JsonCallParser, Progress};
use super::{OutputDeltas, ToolCallParser};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// An opening tag, and a closing one.
pub(super) type Tags = [&'static [&'static str]; 2];

pub(super) const HERMES: Tags = [&[OPEN], &[CLOSE]];
pub(super) const LONGCAT: Tags = [&["<longcat_tool_call>"], &["</longcat_tool_call>"]];

/// A parser of content and tagged calls.
#[derive(Debug)]
pub(super) struct HermesParser {
    close: &'static [&'static str],
    state: State,
    content_buffer: ContentBuffer,
}

#[derive(Debug)]
enum State {
    Text,
    Call(Box<JsonCallParser>),
    /// After a call, before its closing tag.
    Close(NextMark),
}

impl HermesParser {
    pub(super) fn new([open, close]: Tags) -> Self {
        Self {
            close,
            state: State::Text,
            content_buffer: ContentBuffer::new(open),
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
                Progress::Done => self.state = State::Close(NextMark::new(self.close)),
                Progress::Broken => {
                    self.state = State::Text;
                    self.text(c, out);
                }
            },
            State::Close(close) => match close.push(c) {
                NextText::Blank | NextText::Partial => {}
                NextText::Mark(_) => self.state = State::Text,
                // The closing tag is missing.
                NextText::Other(text) => {
                    self.state = State::Text;
                    text.chars().for_each(|c| self.push(c, out));
                }
            },
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
