//! DeepSeek's calls: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{..}<｜tool▁call▁end｜>` (V3.1), or with
//! `function` as the head and the name and a JSON code block after the separator (V3, R1). Both are
//! between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`. Kimi K2's are like V3.1's, with the
//! call's id, `functions.name:0`, as the head: see `kimi`.

use super::content_buffer::{ContentBuffer, MarkFinder, NextMark, NextText};
use super::json_call::{JsonScanner, ValuePosition};
use super::{OutputDeltas, ToolCallParser, is_plain, kimi};

pub(super) const BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
/// The start of the code block with a call's arguments.
pub(super) const BLOCK: &str = "\n```json\n";
/// The end of the code block.
pub(super) const BLOCK_END: &str = "\n```";
/// All marks; each may be a special token.
pub(super) const MARKS: [&str; 5] = [BEGIN, END, CALL, CALL_END, SEPARATOR];

/// The marks of a format.
#[derive(Debug)]
pub(super) struct CallMarks {
    /// Of all calls, and of one.
    pub(super) open: &'static [&'static str; 2],
    pub(super) separator: &'static [&'static str; 1],
    /// What may follow arguments: the ends of a code block and of a call, another call, the end of
    /// all calls.
    pub(super) close: &'static [&'static str; 4],
    /// Whether the head is the call's id.
    pub(super) ids: bool,
}

pub(super) static DEEPSEEK: CallMarks = CallMarks {
    open: &[BEGIN, CALL],
    separator: &[SEPARATOR],
    close: &["```", CALL_END, CALL, END],
    ids: false,
};

/// A parser of content and calls between such marks.
#[derive(Debug)]
pub(super) struct DeepSeekParser {
    marks: &'static CallMarks,
    state: State,
    content_buffer: ContentBuffer,
    /// The ids of calls so far.
    ids: Vec<String>,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the mark of all calls.
    Opened(NextMark),
    /// After the mark of a call: the text up to the separator.
    Head(String, MarkFinder),
    /// After the separator: the head, and the text up to the arguments.
    Separated(String, String),
    Arguments(JsonScanner),
    /// After the arguments.
    Close(NextMark),
}

impl DeepSeekParser {
    pub(super) fn new(marks: &'static CallMarks) -> Self {
        Self {
            marks,
            state: State::Text,
            content_buffer: ContentBuffer::new(marks.open),
            ids: Vec::new(),
        }
    }

    fn head_state(&self) -> State {
        State::Head(String::new(), MarkFinder::new(self.marks.separator))
    }

    /// Returns the id that a head is, unless another call of this output has it.
    fn new_id(&mut self, head: &str) -> Option<String> {
        let new = self.marks.ids && !self.ids.iter().any(|id| id == head);
        new.then(|| {
            self.ids.push(head.to_owned());
            head.to_owned()
        })
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        self.state = match self.content_buffer.push(c, out) {
            Some(0) => State::Opened(NextMark::new(&self.marks.open[1..])),
            Some(_) => self.head_state(),
            None => State::Text,
        };
    }

    /// Makes everything since the mark content, together with `text`.
    fn give_up(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        self.content_buffer.give_up(out);
        text.chars().for_each(|c| self.push(c, out));
    }

    fn opened(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Opened(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank => self.content_buffer.hold(c.encode_utf8(&mut [0; 4])),
            NextText::Partial => {}
            NextText::Mark(_) => {
                self.content_buffer.hold(self.marks.open[1]);
                self.state = self.head_state();
            }
            NextText::Other(text) => self.give_up(&text, out),
        }
    }

    fn head(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Head(head, finder) = &mut self.state else {
            return;
        };
        let (found, text) = finder.push(c);
        self.content_buffer.hold(&text);
        head.push_str(&text);
        let ids = self.marks.ids;
        let in_head = |c: char| is_plain(c) || ids && (c == ':' || c.is_whitespace());
        if !head.chars().all(in_head) {
            let rest = finder.take();
            self.give_up(&rest, out);
        } else if found.is_some() {
            self.content_buffer.hold(self.marks.separator[0]);
            self.state = State::Separated(std::mem::take(head), String::new());
        }
    }

    fn separated(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Separated(head, text) = &mut self.state else {
            return;
        };
        if c != '{' {
            text.push(c);
            self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
            if !begins_block(text) {
                self.give_up("", out);
            }
            return;
        }
        // With a code block, the name comes before it; else it is the head.
        let block = text.trim_end().strip_suffix(BLOCK.trim_end());
        let name = block.unwrap_or(head).trim().to_owned();
        let called = match self.marks.ids {
            true => kimi::function(&name).to_owned(),
            false => name.clone(),
        };
        if called.is_empty() || (block.is_none() && !text.trim().is_empty()) {
            return self.give_up("{", out);
        }
        self.content_buffer.call_started();
        let id = self.new_id(&name);
        out.call_with_id(called, id);
        self.state = State::Arguments(JsonScanner::default());
        self.arguments(c, out);
    }

    fn arguments(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Arguments(scan) = &mut self.state else {
            return;
        };
        out.arguments(c.encode_utf8(&mut [0; 4]));
        if scan.step(c) == ValuePosition::Last {
            out.end_call();
            self.state = State::Close(NextMark::new(self.marks.close));
        }
    }

    fn close(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial | NextText::Mark(0 | 1) => {}
            NextText::Mark(2) => self.state = self.head_state(),
            NextText::Mark(_) => self.state = State::Text,
            NextText::Other(text) => {
                self.state = State::Text;
                text.chars().for_each(|c| self.push(c, out));
            }
        }
    }
}

/// Whether `text` may precede arguments: whitespace, or a beginning of a name and a code block.
fn begins_block(text: &str) -> bool {
    let (name, block) = text.split_at(text.find('\n').unwrap_or(text.len()));
    let plain = name.trim().chars().all(is_plain);
    let block = block.trim_end();
    plain && (block.is_empty() || BLOCK.starts_with(block))
}

impl ToolCallParser for DeepSeekParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Opened(_) => self.opened(c, out),
            State::Head(..) => self.head(c, out),
            State::Separated(..) => self.separated(c, out),
            State::Arguments(_) => self.arguments(c, out),
            State::Close(_) => self.close(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        let held = match &mut self.state {
            State::Opened(next) => next.take(),
            State::Head(_, finder) => finder.take(),
            State::Text | State::Separated(..) | State::Arguments(_) | State::Close(_) => {
                String::new()
            }
        };
        self.content_buffer.hold(&held);
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text | State::Close(_))
    }
}
