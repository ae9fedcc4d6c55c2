//! Calls that are the whole output: `{"name": .., "parameters": {..}}`, separated by `;` or not at
//! all, with or without a leading `<|python_tag|>`. Llama 4 may have content or calls between
//! `<|python_start|>` and `<|python_end|>` before its calls. An object is a call only if it names
//! one of the request's tools.

use serde_json::{Value, json};

use super::content_buffer::{ContentBuffer, MarkFinder};
use super::json_call::{JsonCallParser, KeyOrder, Progress};
use super::{OutputDeltas, ToolCallParser, ToolNames, pythonic};

/// The mark before Llama 3's calls.
pub(super) const MARKS: [&str; 1] = ["<|python_tag|>"];
/// The marks before and around Llama 4's.
pub(super) const LLAMA4_MARKS: [&str; 2] = pythonic::MARKS;

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

/// A parser of Llama's calls as JSON.
#[derive(Debug)]
pub(super) struct LlamaParser {
    names: ToolNames,
    order: KeyOrder,
    /// Whether the marks never are content.
    drops_marks: bool,
    state: State,
    finder: MarkFinder,
    content_buffer: ContentBuffer,
}

#[derive(Debug)]
enum State {
    /// Where a call may begin: at the start of the output, after a mark or after `;`.
    Open,
    Call(Box<JsonCallParser>),
    /// After a call.
    Between,
    /// Content up to the next mark.
    Text,
}

impl LlamaParser {
    pub(super) fn new(marks: &'static [&'static str], names: ToolNames, strict: bool) -> Self {
        Self {
            names,
            order: match strict {
                true => KeyOrder::NameFirst,
                false => KeyOrder::Any,
            },
            drops_marks: *marks == LLAMA4_MARKS,
            state: State::Open,
            finder: MarkFinder::new(marks),
            content_buffer: ContentBuffer::new(&[]),
        }
    }

    /// Handles a character that belongs to no mark.
    fn plain(&mut self, c: char, out: &mut OutputDeltas) {
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
            State::Open | State::Between | State::Text => {
                self.content_buffer.push(c, out);
                self.state = State::Text;
            }
        }
    }

    /// Handles a mark.
    fn mark(&mut self, mark: usize) {
        if !self.drops_marks {
            self.content_buffer.hold(self.finder.mark(mark));
        }
        // The grammar of strict calls opens none after the mark that closes.
        if mark == 0 || self.order == KeyOrder::Any {
            self.state = State::Open;
        }
    }

    fn call(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Call(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Between,
            Progress::Broken => {
                self.state = State::Text;
                self.push(c, out);
            }
        }
    }
}

impl ToolCallParser for LlamaParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        // Inside a call, a mark is text of an argument.
        if matches!(self.state, State::Call(_)) {
            return self.call(c, out);
        }
        let (found, text) = self.finder.push(c);
        text.chars().for_each(|c| self.plain(c, out));
        if let Some(mark) = found {
            self.mark(mark);
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        self.content_buffer.hold(&self.finder.take());
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        matches!(&self.state, State::Call(call) if call.is_named())
    }
}
