//! Calls that are the whole answer: `{"name": .., "parameters": {..}}`, several with `;` between,
//! after `<|python_tag|>` or bare. An object is a call only if it names a function on offer.

use super::json_call::{JsonCall, Progress};
use super::prose::Prose;
use super::{Machine, Pieces, ToolNames};

pub(super) const MARK: &str = "<|python_tag|>";

/// Reads Llama 3's calls.
#[derive(Debug)]
pub(super) struct Llama {
    names: ToolNames,
    state: State,
    prose: Prose,
}

#[derive(Debug)]
enum State {
    /// Where a call may begin: at the start of the answer, after the mark, after another call.
    Open,
    Call(Box<JsonCall>),
    /// After a call.
    Between,
    /// All is content, up to the mark.
    Text,
}

impl Llama {
    pub(super) fn new(names: ToolNames) -> Self {
        Self {
            names,
            state: State::Open,
            prose: Prose::until(&[MARK]),
        }
    }

    fn text(&mut self, c: char, out: &mut Pieces) {
        let marked = self.prose.push(c, out).is_some();
        self.state = if marked { State::Open } else { State::Text };
    }

    fn call(&mut self, c: char, out: &mut Pieces) {
        let State::Call(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.prose) {
            Progress::More => {}
            Progress::Done => self.state = State::Between,
            Progress::Broken => self.text(c, out),
        }
    }
}

impl Machine for Llama {
    fn push(&mut self, c: char, out: &mut Pieces) {
        match self.state {
            State::Open | State::Between if c == '{' => {
                self.state = State::Call(Box::new(JsonCall::of(self.names.clone())));
                self.call(c, out);
            }
            State::Open if c.is_whitespace() => self.prose.hold(c.encode_utf8(&mut [0; 4])),
            State::Between if c.is_whitespace() => {}
            State::Between if c == ';' => self.state = State::Open,
            State::Call(_) => self.call(c, out),
            State::Open | State::Between | State::Text => self.text(c, out),
        }
    }

    fn finish(&mut self, out: &mut Pieces) {
        self.prose.finish(out);
    }
}
