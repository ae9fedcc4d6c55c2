//! Calls in tags that follow a mark, whose values may hold further tags: MiniMax-M3. A JSON object
//! within the outer tag is a call too.
//!
//! Source: the documentation of vLLM's parser `minimax_m3`.

use serde_json::{Map, Value};

use super::content_buffer::{ContentBuffer, MarkFinder, NextMark, NextText};
use super::json_call::{JsonCallParser, Progress};
use super::parameter_types::ValueSchema;
use super::typed_call::TypedCall;
use super::{OutputDeltas, ToolCallParser, is_plain};

/// What precedes every tag, and a token of its own.
pub(super) const MARK: &str = "]<]minimax[>[";
pub(super) const OPEN: &str = "]<]minimax[>[<tool_call>";
pub(super) const CLOSE: &str = "]<]minimax[>[</tool_call>";
const INVOKE: &str = "]<]minimax[>[<invoke name=\"";
const TAG: &str = "]<]minimax[>[<";
/// The name of an array's elements.
const ITEM: &str = "item";
/// Tags within each other; more are text.
const DEPTH: usize = 32;

/// A parser of content and calls.
#[derive(Debug)]
pub(super) struct MiniMaxM3Parser {
    state: State,
    content_buffer: ContentBuffer,
    call: TypedCall,
    /// The open elements of an argument, the argument first.
    path: Vec<Element>,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the outer tag.
    Opened(NextMark),
    Json(Box<JsonCallParser>),
    /// In the function's name.
    Name(String),
    /// In a function, before a tag.
    Inside(MarkFinder),
    /// In a tag.
    Tag(String),
    /// After a function.
    Close(NextMark),
}

/// A tag and what is between it and its end.
#[derive(Debug)]
struct Element {
    name: String,
    text: String,
    children: Vec<Self>,
}

impl Element {
    fn new(name: String) -> Self {
        Self {
            name,
            text: String::new(),
            children: Vec::new(),
        }
    }

    /// Converts the element to JSON. Where there are children, text is the whitespace around them.
    fn value(&self, schema: ValueSchema<'_>) -> Value {
        if self.children.is_empty() {
            return schema.types().tagged_value(&self.text);
        }
        let named_items = self.children.iter().all(|child| child.name == ITEM);
        if schema.types().is_array().unwrap_or(named_items) {
            let items = self.children.iter();
            return items.map(|child| child.value(schema.items())).collect();
        }
        let member = |child: &Self| {
            (
                child.name.clone(),
                child.value(schema.property(&child.name)),
            )
        };
        Value::Object(self.children.iter().map(member).collect::<Map<_, _>>())
    }
}

impl MiniMaxM3Parser {
    pub(super) fn new(call: TypedCall) -> Self {
        Self {
            state: State::Text,
            content_buffer: ContentBuffer::new(&[OPEN]),
            call,
            path: Vec::new(),
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        let found = self.content_buffer.push(c, out);
        self.state = match found {
            Some(_) => State::Opened(NextMark::new(&[INVOKE])),
            None => State::Text,
        };
    }

    /// Makes everything since the mark content, and parses `text` as content.
    fn give_up(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        self.content_buffer.give_up(out);
        self.replay(text, out);
    }

    fn replay(&mut self, text: &str, out: &mut OutputDeltas) {
        text.chars().for_each(|c| self.push(c, out));
    }

    fn opened(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Opened(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank => self.content_buffer.hold(c.encode_utf8(&mut [0; 4])),
            NextText::Partial => {}
            NextText::Mark(_) => self.begin_name(),
            NextText::Other(text) if text == "{" => {
                self.state = State::Json(Box::default());
                self.json(c, out);
            }
            NextText::Other(text) => self.give_up(&text, out),
        }
    }

    fn begin_name(&mut self) {
        self.content_buffer.hold(INVOKE);
        self.state = State::Name(String::new());
    }

    fn json(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Json(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Close(NextMark::new(&[CLOSE])),
            Progress::Broken => self.text(c, out),
        }
    }

    fn name(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Name(name) = &mut self.state else {
            return;
        };
        let whole = (c == '>').then(|| name.strip_suffix('"')).flatten();
        if let Some(name) = whole.filter(|name| !name.is_empty()) {
            self.content_buffer.call_started();
            self.call.begin(name, out);
            self.state = inside();
        } else if is_plain(c) || c == '"' {
            name.push(c);
            self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
        } else {
            self.give_up(c.encode_utf8(&mut [0; 4]), out);
        }
    }

    fn inside(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Inside(finder) = &mut self.state else {
            return;
        };
        let (found, text) = finder.push(c);
        if self.path.is_empty() && !text.trim().is_empty() {
            // The call is broken off.
            self.end_function(State::Text, out);
            return self.replay(&(text + found.map_or("", |_| TAG)), out);
        }
        self.value(&text, out);
        if found.is_some() {
            self.state = State::Tag(String::new());
        }
    }

    /// Takes more text of the innermost element.
    fn value(&mut self, text: &str, out: &mut OutputDeltas) {
        if self.call.streams() {
            self.call.push(text, out);
        } else if let Some(element) = self.path.last_mut() {
            element.text += text;
        }
    }

    fn tag(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Tag(tag) = &mut self.state else {
            return;
        };
        if c != '>' {
            return tag.push(c);
        }
        let tag = std::mem::take(tag);
        self.state = inside();
        match tag.as_str() {
            "/invoke" => {
                let after = State::Close(NextMark::new(&[CLOSE, INVOKE]));
                self.end_function(after, out);
            }
            "/tool_call" => self.end_function(State::Text, out),
            // A string has no elements: only its own end is a tag.
            tag if self.call.streams() && !self.ends_argument(tag) => {
                self.value(&format!("{TAG}{tag}>"), out);
            }
            tag => match tag.strip_prefix('/') {
                Some(name) => self.close(name, out),
                None => self.open(tag, out),
            },
        }
    }

    fn ends_argument(&self, tag: &str) -> bool {
        let argument = self.path.first();
        argument.is_some_and(|one| tag.strip_prefix('/') == Some(one.name.as_str()))
    }

    fn open(&mut self, name: &str, out: &mut OutputDeltas) {
        if self.path.len() == DEPTH {
            return self.value(&format!("{TAG}{name}>"), out);
        }
        if self.path.is_empty() {
            self.call.begin_argument(name, out);
        }
        self.path.push(Element::new(name.to_owned()));
    }

    /// Closes the innermost element of this name, and those within; none if it is not open.
    fn close(&mut self, name: &str, out: &mut OutputDeltas) {
        if let Some(at) = self.path.iter().rposition(|element| element.name == name) {
            self.close_down_to(at, out);
        }
    }

    fn close_down_to(&mut self, at: usize, out: &mut OutputDeltas) {
        while self.path.len() > at
            && let Some(element) = self.path.pop()
        {
            match self.path.last_mut() {
                Some(parent) => parent.children.push(element),
                None if self.call.streams() => self.call.end_argument(out),
                None => {
                    let value = element.value(self.call.schema(&element.name));
                    self.call.end_with(&value, out);
                }
            }
        }
    }

    fn end_function(&mut self, after: State, out: &mut OutputDeltas) {
        self.close_down_to(0, out);
        self.call.end(out);
        self.state = after;
    }

    fn close_calls(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Text,
            NextText::Mark(_) => self.begin_name(),
            NextText::Other(text) => {
                self.state = State::Text;
                self.replay(&text, out);
            }
        }
    }
}

fn inside() -> State {
    State::Inside(MarkFinder::new(&[TAG]))
}

impl ToolCallParser for MiniMaxM3Parser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Opened(_) => self.opened(c, out),
            State::Json(_) => self.json(c, out),
            State::Name(_) => self.name(c, out),
            State::Inside(_) => self.inside(c, out),
            State::Tag(_) => self.tag(c, out),
            State::Close(_) => self.close_calls(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        if let State::Opened(next) = &mut self.state {
            self.content_buffer.hold(&next.take());
        }
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
