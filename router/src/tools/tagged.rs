//! Calls between tags, in an answer that may say other things: `<tool_call>{..}</tool_call>`.

use super::json_call::{JsonCall, Progress};
use super::prose::{MarkFinder, Prose};
use super::{Machine, Pieces};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// Reads content and tagged calls.
#[derive(Debug)]
pub(super) struct Tagged {
    state: State,
    prose: Prose,
}

#[derive(Debug)]
enum State {
    Text,
    Call(Box<JsonCall>),
    /// After a call, before its closing tag.
    Close(MarkFinder),
}

impl Tagged {
    pub(super) fn new() -> Self {
        Self {
            state: State::Text,
            prose: Prose::until(&[OPEN]),
        }
    }

    fn text(&mut self, c: char, out: &mut Pieces) {
        if self.prose.push(c, out).is_some() {
            self.state = State::Call(Box::default());
        }
    }
}

impl Machine for Tagged {
    fn push(&mut self, c: char, out: &mut Pieces) {
        match &mut self.state {
            State::Text => self.text(c, out),
            State::Call(call) => match call.push(c, out, &mut self.prose) {
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
                    // There is none: what came is text.
                    let text = text + &close.take();
                    self.state = State::Text;
                    text.chars().for_each(|c| self.push(c, out));
                }
            }
        }
    }

    fn finish(&mut self, out: &mut Pieces) {
        self.prose.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
