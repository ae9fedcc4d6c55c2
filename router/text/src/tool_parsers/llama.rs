//! Calls that are the whole output: `{"name": .., "parameters": {..}}`, separated by `;`, with or
//! without a leading `<|python_tag|>`. An object is a call only if it names one of the request's
//! tools.

use serde_json::{Value, json};

use super::content_buffer::ContentBuffer;
use super::json_call::{JsonCallParser, KeyOrder, Progress};
use super::{OutputDeltas, ToolCallParser, ToolNames};

pub(super) const MARK: &str = "<|python_tag|>";

/// Returns the two beginnings that identify a call of this function: `name` first, or `type` and
/// then `name`.
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

/// A parser of Llama 3's calls.
#[derive(Debug)]
pub(super) struct LlamaParser {
    names: ToolNames,
    order: KeyOrder,
    state: State,
    content_buffer: ContentBuffer,
}

#[derive(Debug)]
enum State {
    /// Where a call may begin: at the start of the output, after the mark or after `;`.
    Open,
    Call(Box<JsonCallParser>),
    /// After a call.
    Between,
    /// Content up to the next mark.
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
                self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
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
