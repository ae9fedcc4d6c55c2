//! Calls as a JSON list after a mark: `<|tool_call|>[{"name": .., "arguments": ..}]` (Granite),
//! `functools[..]` (Phi 4), `<|START_ACTION|>[{"tool_name": .., "parameters": ..}]` (Cohere),
//! `<tool_calls>[..]</tool_calls>` (Hunyuan A13B, Jamba), also without brackets (MiniMax-M1),
//! `<|action_start|><|plugin|>{"name": .., "parameters": ..}<|action_end|>` (InternLM).

use super::content_buffer::{ContentBuffer, NextMark, NextText};
use super::json_call::{JsonCallParser, KeyOrder, Progress};
use super::{OutputDeltas, ToolCallParser, ToolNames};

/// The marks around a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListMarks {
    /// Each may open a list. One that ends with `[` contains the list's bracket.
    open: &'static [&'static str],
    /// Each may follow a list. It belongs to the calls.
    close: &'static [&'static str],
    /// Whether a list consists of calls only if it names one of the request's tools.
    known: bool,
    /// Whether calls without brackets may follow each other.
    lines: bool,
}

pub(super) const GRANITE_MARK: &str = "<|tool_call|>";
pub(super) const PHI_MARK: &str = "functools[";
pub(super) const PHI_TOKENS: [&str; 2] = ["<|tool_call|>", "<|/tool_call|>"];
pub(super) const COHERE_MARK: &str = "<|START_ACTION|>";
pub(super) const COHERE_END: &str = "<|END_ACTION|>";
pub(super) const PLUGIN: &str = "<|plugin|>";
pub(super) const INTERNLM_MARK: &str = "<|action_start|><|plugin|>";
pub(super) const INTERNLM_TOKENS: [&str; 3] = ["<|action_start|>", PLUGIN, "<|action_end|>"];
pub(super) const TOOL_CALLS: &str = "<tool_calls>";
pub(super) const TOOL_CALLS_END: &str = "</tool_calls>";

pub(super) static GRANITE: ListMarks = ListMarks {
    open: &[GRANITE_MARK, "<tool_call>"],
    close: &["</tool_call>"],
    known: false,
    lines: false,
};
pub(super) static PHI: ListMarks = ListMarks {
    open: &[PHI_MARK, PHI_TOKENS[0]],
    close: &[PHI_TOKENS[1]],
    known: true,
    lines: false,
};
pub(super) static COHERE: ListMarks = ListMarks {
    // Command R, and models before it, write the second and third.
    open: &[COHERE_MARK, "Action: ```json", "Action:```json"],
    close: &[COHERE_END, "```"],
    known: false,
    lines: false,
};

pub(super) static HUNYUAN: ListMarks = ListMarks {
    open: &[TOOL_CALLS],
    close: &[TOOL_CALLS_END],
    known: false,
    lines: true,
};

pub(super) static INTERNLM: ListMarks = ListMarks {
    open: &[INTERNLM_MARK, PLUGIN],
    close: &[INTERNLM_TOKENS[2]],
    known: false,
    // Forced calls share a mark.
    lines: true,
};

/// A parser of content and lists of calls.
#[derive(Debug)]
pub(super) struct JsonListParser {
    marks: &'static ListMarks,
    names: ToolNames,
    state: State,
    content_buffer: ContentBuffer,
    /// Whether the calls are in brackets.
    listed: bool,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the mark.
    Marked,
    /// In a list, before an object.
    List,
    Call(Box<JsonCallParser>),
    /// In a list, after an object.
    Next,
    /// After the calls, before a closing mark.
    Close(NextMark),
}

impl JsonListParser {
    pub(super) fn new(marks: &'static ListMarks, names: ToolNames) -> Self {
        Self {
            marks,
            names,
            state: State::Text,
            content_buffer: ContentBuffer::new(marks.open),
            listed: false,
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        self.state = match self.content_buffer.push(c, out) {
            Some(mark) => {
                self.listed = self.marks.open[mark].ends_with('[');
                if self.listed {
                    State::List
                } else {
                    State::Marked
                }
            }
            None => State::Text,
        };
    }

    fn give_up(&mut self, c: char, out: &mut OutputDeltas) {
        self.content_buffer.give_up(out);
        self.text(c, out);
    }

    fn begin(&mut self, c: char, out: &mut OutputDeltas) {
        let call = if self.marks.known {
            JsonCallParser::new(self.names.clone(), KeyOrder::Any)
        } else {
            JsonCallParser::default()
        };
        self.state = State::Call(Box::new(call));
        self.call(c, out);
    }

    fn call(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Call(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done if self.listed => self.state = State::Next,
            Progress::Done => self.state = State::Close(NextMark::new(self.marks.close)),
            Progress::Broken => self.text(c, out),
        }
    }

    fn close(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(close) = &mut self.state else {
            return;
        };
        match close.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(_) => self.state = State::Text,
            NextText::Other(text) if text == "{" && self.marks.lines && !self.listed => {
                self.begin('{', out);
            }
            NextText::Other(text) => {
                self.state = State::Text;
                text.chars().for_each(|c| self.push(c, out));
            }
        }
    }
}

impl ToolCallParser for JsonListParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Marked if c == '[' => {
                self.content_buffer.hold("[");
                self.listed = true;
                self.state = State::List;
            }
            State::Marked | State::List if c == '{' => self.begin(c, out),
            // Until the first call is confirmed, the text after the mark may be content.
            State::Marked | State::List if c.is_whitespace() => {
                if !self.content_buffer.is_blank() {
                    self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
                }
            }
            State::Next if c.is_whitespace() => {}
            State::Next if c == ',' => self.state = State::List,
            State::Next if c == ']' => self.state = State::Close(NextMark::new(self.marks.close)),
            State::Marked | State::List | State::Next => self.give_up(c, out),
            State::Call(_) => self.call(c, out),
            State::Close(_) => self.close(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text | State::Close(_))
    }
}
