//! Calls that are the whole answer: `{"name": .., "parameters": {..}}`, several with `;` between,
//! after `<|python_tag|>` or bare. An object is a call only if it names a function on offer.

use serde_json::{Value, json};

use super::content_buffer::ContentBuffer;
use super::json_call::{JsonCallParser, KeyOrder, Progress};
use super::{OutputDeltas, ToolCallParser, ToolNames};

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
pub(super) struct LlamaParser {
    names: ToolNames,
    order: KeyOrder,
    state: State,
    content_buffer: ContentBuffer,
}

#[derive(Debug)]
enum State {
    /// Where a call may begin: at the start of the answer, after the mark, after another call.
    Open,
    Call(Box<JsonCallParser>),
    /// After a call.
    Between,
    /// All is content, up to the mark.
    Text,
}

impl LlamaParser {
    pub(super) fn new(names: ToolNames, order: KeyOrder) -> Self {
        Self {
            names,
            order,
            state: State::Open,
            content_buffer: ContentBuffer::new(&[MARK]),
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        let marked = self.content_buffer.push(c, out).is_some();
        self.state = if marked { State::Open } else { State::Text };
    }

    fn call(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Call(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Between,
            Progress::Broken => self.text(c, out),
        }
    }
}

impl ToolCallParser for LlamaParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Open | State::Between if c == '{' => {
                self.state = State::Call(Box::new(JsonCallParser::new(
                    self.names.clone(),
                    self.order,
                )));
                self.call(c, out);
            }
            State::Open if c.is_whitespace() => {
                self.content_buffer.hold(c.encode_utf8(&mut [0; 4]))
            }
            State::Between if c.is_whitespace() => {}
            State::Between if c == ';' => self.state = State::Open,
            State::Call(_) => self.call(c, out),
            State::Open | State::Between | State::Text => self.text(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        matches!(&self.state, State::Call(call) if call.is_named())
    }
}
