//! Mistral's calls: `[TOOL_CALLS]` and a list of objects, or `[TOOL_CALLS]name[ARGS]{..}`. One
//! generation of models writes `[CALL_ID]` and an id before `[ARGS]`.

use super::content_buffer::{ContentBuffer, MarkFinder};
use super::json_call::{JsonCallParser, JsonScanner, Progress, ValuePosition};
use super::{OutputDeltas, ToolCallParser, is_plain};

pub(super) const MARK: &str = "[TOOL_CALLS]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
pub(super) const ID: &str = "[CALL_ID]";

/// A parser of content and Mistral's calls.
#[derive(Debug)]
pub(super) struct MistralParser {
    state: State,
    content_buffer: ContentBuffer,
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
    Name(Name),
    Arguments(JsonScanner),
}

/// A name before its arguments.
#[derive(Debug)]
struct Name {
    name: String,
    finder: MarkFinder,
    /// Whether the name is complete and an id follows.
    id: bool,
}

impl MistralParser {
    pub(super) fn new() -> Self {
        Self {
            state: State::Text,
            content_buffer: ContentBuffer::new(&[MARK]),
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        let marked = self.content_buffer.push(c, out).is_some();
        self.state = if marked { State::Marked } else { State::Text };
    }

    fn give_up(&mut self, c: char, out: &mut OutputDeltas) {
        self.content_buffer.give_up(out);
        self.text(c, out);
    }

    fn marked(&mut self, c: char, out: &mut OutputDeltas) {
        match c {
            '[' => {
                self.content_buffer.hold("[");
                self.state = State::List;
            }
            '{' => self.begin(c, out),
            c if c.is_whitespace() => self.content_buffer.hold(c.encode_utf8(&mut [0; 4])),
            c if is_plain(c) => {
                self.state = State::Name(Name {
                    name: String::new(),
                    finder: MarkFinder::new(&[ARGUMENTS, ID]),
                    id: false,
                });
                self.name(c, out);
            }
            c => self.give_up(c, out),
        }
    }

    fn begin(&mut self, c: char, out: &mut OutputDeltas) {
        self.state = State::Call(Box::default());
        self.call(c, out);
    }

    fn call(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Call(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Next,
            Progress::Broken => self.text(c, out),
        }
    }

    fn name(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Name(partial) = &mut self.state else {
            return;
        };
        if c == '{' && partial.finder.is_idle() {
            return self.begin_arguments(Some(c), out);
        }
        let (found, text) = partial.finder.push(c);
        self.content_buffer.hold(&text);
        if !text.chars().all(is_plain) {
            self.content_buffer.hold(&partial.finder.take());
            self.content_buffer.give_up(out);
            self.state = State::Text;
            return;
        }
        if !partial.id {
            partial.name.push_str(&text);
        }
        match found {
            Some(0) => self.begin_arguments(None, out),
            Some(_) => {
                partial.id = true;
                self.content_buffer.hold(ID);
            }
            None => {}
        }
    }

    fn begin_arguments(&mut self, first: Option<char>, out: &mut OutputDeltas) {
        if let State::Name(partial) = &mut self.state {
            self.content_buffer.call_started();
            out.call(std::mem::take(&mut partial.name));
        }
        self.state = State::Arguments(JsonScanner::default());
        if let Some(c) = first {
            self.arguments(c, out);
        }
    }

    fn arguments(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Arguments(scan) = &mut self.state else {
            return;
        };
        let at = scan.step(c);
        if matches!(at, ValuePosition::Inside | ValuePosition::Last) {
            out.arguments(c.encode_utf8(&mut [0; 4]));
        }
        if matches!(at, ValuePosition::Last | ValuePosition::After) {
            out.end_call();
            self.state = State::Text;
        }
        if at == ValuePosition::After {
            self.text(c, out);
        }
    }
}

impl ToolCallParser for MistralParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Marked => self.marked(c, out),
            State::List if c == '{' => self.begin(c, out),
            // Until the first call is confirmed, the text after the mark may be content.
            State::List if c.is_whitespace() && !self.content_buffer.is_blank() => {
                self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
            }
            State::List | State::Next if c.is_whitespace() => {}
            State::Next if c == ',' => self.state = State::List,
            State::Next if c == ']' => self.state = State::Text,
            State::List | State::Next => self.give_up(c, out),
            State::Call(_) => self.call(c, out),
            State::Name(_) => self.name(c, out),
            State::Arguments(_) => self.arguments(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        if let State::Name(partial) = &mut self.state {
            self.content_buffer.hold(&partial.finder.take());
        }
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
