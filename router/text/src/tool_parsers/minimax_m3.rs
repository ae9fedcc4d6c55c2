//! Calls in tags that follow a mark, whose values may hold further tags: MiniMax-M3.
//!
//! Source: the documentation of vLLM's parser `minimax_m3`.

use serde_json::{Map, Value};

use super::OutputDeltas;
use super::content_buffer::MarkFinder;
use super::parameter_types::ValueSchema;
use super::tag_calls::{Frame, FunctionBody, Step, TagCallParser};
use super::typed_call::TypedCall;

/// What precedes every tag, and a token of its own.
pub(super) const MARK: &str = "]<]minimax[>[";
pub(super) const OPEN: &str = "]<]minimax[>[<tool_call>";
pub(super) const CLOSE: &str = "]<]minimax[>[</tool_call>";
const TAG: &str = "]<]minimax[>[<";
/// The name of an array's elements.
const ITEM: &str = "item";
/// Tags within each other; more are text.
const DEPTH: usize = 32;

static FRAME: Frame = Frame {
    opening: &[OPEN],
    after: &[CLOSE, "]<]minimax[>[<invoke name=\""],
    quote: "\"",
};

/// Creates a parser of content and calls.
pub(super) fn parser(call: TypedCall) -> TagCallParser<Body> {
    let body = Body {
        state: text(),
        path: Vec::new(),
    };
    TagCallParser::new(&FRAME, body, call, true)
}

/// A parser of arguments.
#[derive(Debug)]
pub(super) struct Body {
    state: State,
    /// The open elements of an argument, the argument first.
    path: Vec<Element>,
}

#[derive(Debug)]
enum State {
    /// Before a tag.
    Text(MarkFinder),
    Tag(String),
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

impl Body {
    fn text(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) -> Step {
        let State::Text(finder) = &mut self.state else {
            return Step::More;
        };
        let (found, text) = finder.push(c);
        if self.path.is_empty() && !text.trim().is_empty() {
            return Step::Broken(text + found.map_or("", |_| TAG));
        }
        self.take(&text, call, out);
        if found.is_some() {
            self.state = State::Tag(String::new());
        }
        Step::More
    }

    /// Takes more text of the innermost element.
    fn take(&mut self, text: &str, call: &mut TypedCall, out: &mut OutputDeltas) {
        if call.streams() {
            call.push(text, out);
        } else if let Some(element) = self.path.last_mut() {
            element.text += text;
        }
    }

    fn tag(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) -> Step {
        let State::Tag(tag) = &mut self.state else {
            return Step::More;
        };
        if c != '>' {
            tag.push(c);
            return Step::More;
        }
        let tag = std::mem::take(tag);
        self.state = text();
        let end = match tag.as_str() {
            "/invoke" => Step::Ended,
            "/tool_call" => Step::Closed,
            tag => {
                self.element(tag, call, out);
                return Step::More;
            }
        };
        self.close_down_to(0, call, out);
        end
    }

    /// Opens or closes an element.
    fn element(&mut self, tag: &str, call: &mut TypedCall, out: &mut OutputDeltas) {
        let closed = tag.strip_prefix('/');
        // A string has no elements: only its own end is a tag.
        let argument = self.path.first().map(|element| element.name.as_str());
        let is_text = call.streams() && closed != argument;
        match closed {
            _ if is_text => self.take(&format!("{TAG}{tag}>"), call, out),
            Some(name) => self.close(name, call, out),
            None if self.path.len() == DEPTH => self.take(&format!("{TAG}{tag}>"), call, out),
            None => {
                if self.path.is_empty() {
                    call.begin_argument(tag, out);
                }
                self.path.push(Element::new(tag.to_owned()));
            }
        }
    }

    /// Closes the innermost element of this name, and those within; none if it is not open.
    fn close(&mut self, name: &str, call: &mut TypedCall, out: &mut OutputDeltas) {
        if let Some(at) = self.path.iter().rposition(|element| element.name == name) {
            self.close_down_to(at, call, out);
        }
    }

    fn close_down_to(&mut self, at: usize, call: &mut TypedCall, out: &mut OutputDeltas) {
        while self.path.len() > at
            && let Some(element) = self.path.pop()
        {
            match self.path.last_mut() {
                Some(parent) => parent.children.push(element),
                None if call.streams() => call.end_argument(out),
                None => {
                    let value = element.value(call.schema(&element.name));
                    call.end_with(&value, out);
                }
            }
        }
    }
}

fn text() -> State {
    State::Text(MarkFinder::new(&[TAG]))
}

impl FunctionBody for Body {
    fn begin(&mut self) {
        self.state = text();
        self.path.clear();
    }

    fn push(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) -> Step {
        match self.state {
            State::Text(_) => self.text(c, call, out),
            State::Tag(_) => self.tag(c, call, out),
        }
    }
}
