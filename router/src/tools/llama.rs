//! Calls that are the whole answer: `{"name": .., "parameters": {..}}`, several with `;` between,
//! after `<|python_tag|>` or bare. An object is a call only if it names a function on offer.

use serde_json::{Value, json};

use super::json_call::{JsonCall, Order, Progress};
use super::prose::Prose;
use super::{Machine, Pieces, ToolNames};

pub(super) const MARK: &str = "<|python_tag|>";

/// What only a call of this function begins with: its name, or its type and its name.
pub(super) fn heads(name: &str) -> [Value; 2] {
    let name = format!("\"{name}\"");
    let spelt = format!("{{\"name\": {name}");
    let typed = json!([
        "{",
        "\"type\"",
        ":",
        "\"function\"",
        ",",
        "\"name\"",
        ":",
        name
    ]);
    let plain = json!(["{", "\"name\"", ":", name]);
    [plain, typed].map(|parts| json!({"parts": parts, "spelt": spelt}))
}

/// Reads Llama 3's calls.
#[derive(Debug)]
pub(super) struct Llama {
    names: ToolNames,
    order: Order,
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
    pub(super) fn new(names: ToolNames, order: Order) -> Self {
        Self {
            names,
            order,
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
                self.state = State::Call(Box::new(JsonCall::of(self.names.clone(), self.order)));
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

    fn in_call(&self) -> bool {
        matches!(&self.state, State::Call(call) if call.is_named())
    }
}
