//! Calls of functions in an outer tag, whatever is between a function's name and its end. A JSON
//! object within the outer tag is a call too.

use super::content_buffer::{ContentBuffer, NextMark, NextText};
use super::json_call::{JsonCallParser, Progress};
use super::typed_call::TypedCall;
use super::{OutputDeltas, ToolCallParser, is_plain};

/// The tags around functions.
#[derive(Debug)]
pub(super) struct Frame {
    /// What opens a call: the outer tag, and the function's if the model may omit the outer one.
    pub(super) opening: &'static [&'static str],
    /// What follows a function: the end of the outer tag, or another function.
    pub(super) after: &'static [&'static str; 2],
    /// What encloses names.
    pub(super) quote: &'static str,
}

/// The parser of what follows a function's name.
pub(super) trait FunctionBody: std::fmt::Debug + Send {
    /// Begins another function.
    fn begin(&mut self);

    /// Takes one character. `call` has begun, and is ended by the caller.
    fn push(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) -> Step;
}

/// The result of one character of a function.
pub(super) enum Step {
    More,
    /// The function has ended.
    Ended,
    /// So has the outer tag.
    Closed,
    /// The call is broken off; the text is content.
    Broken(String),
}

/// A parser of content and calls.
#[derive(Debug)]
pub(super) struct TagCallParser<B> {
    frame: &'static Frame,
    body: B,
    state: State,
    content_buffer: ContentBuffer,
    call: TypedCall,
    /// Whether the call has the outer tag.
    tagged: bool,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the outer tag.
    Tagged(NextMark),
    Json(Box<JsonCallParser>),
    /// In the function's name.
    Name(String),
    /// In a function, after its name.
    Body,
    /// After a function.
    Close(NextMark),
}

impl<B: FunctionBody> TagCallParser<B> {
    /// Creates a parser. If calls are `strict`, only the outer tag opens one.
    pub(super) fn new(frame: &'static Frame, body: B, call: TypedCall, strict: bool) -> Self {
        let opening = if strict {
            &frame.opening[..1]
        } else {
            frame.opening
        };
        Self {
            frame,
            body,
            state: State::Text,
            content_buffer: ContentBuffer::new(opening),
            call,
            tagged: false,
        }
    }

    fn text(&mut self, c: char, out: &mut OutputDeltas) {
        let found = self.content_buffer.push(c, out);
        self.tagged = found == Some(0);
        self.state = match found {
            Some(0) => State::Tagged(NextMark::new(&self.frame.after[1..])),
            Some(_) => State::Name(String::new()),
            None => State::Text,
        };
    }

    /// Makes everything since the mark content, and parses `text` as content.
    fn give_up(&mut self, text: &str, out: &mut OutputDeltas) {
        self.content_buffer.give_up(out);
        self.parse_as_content(text, out);
    }

    fn parse_as_content(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        text.chars().for_each(|c| self.push(c, out));
    }

    fn tagged(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Tagged(next) = &mut self.state else {
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
        self.content_buffer.hold(self.frame.after[1]);
        self.state = State::Name(String::new());
    }

    fn json(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Json(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Close(NextMark::new(&self.frame.after[..1])),
            Progress::Broken => self.text(c, out),
        }
    }

    fn name(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Name(name) = &mut self.state else {
            return;
        };
        let whole = (c == '>').then_some(name.as_str());
        let whole = whole.and_then(|name| name.strip_suffix(self.frame.quote));
        let known = |name: &&str| !name.is_empty() && (self.tagged || self.call.knows(name));
        if let Some(name) = whole.filter(known) {
            self.content_buffer.call_started();
            self.call.begin(name, out);
            self.body.begin();
            self.state = State::Body;
        } else if is_plain(c) || self.frame.quote.contains(c) {
            name.push(c);
            self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
        } else {
            self.give_up(c.encode_utf8(&mut [0; 4]), out);
        }
    }

    fn body(&mut self, c: char, out: &mut OutputDeltas) {
        let step = self.body.push(c, &mut self.call, out);
        if !matches!(step, Step::More) {
            self.call.end(out);
        }
        match step {
            Step::More => {}
            Step::Ended => self.state = State::Close(NextMark::new(self.frame.after)),
            Step::Closed => self.state = State::Text,
            Step::Broken(text) => self.parse_as_content(&text, out),
        }
    }

    fn close(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Close(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Text,
            NextText::Mark(_) => self.begin_name(),
            NextText::Other(text) => self.parse_as_content(&text, out),
        }
    }
}

impl<B: FunctionBody> ToolCallParser for TagCallParser<B> {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Tagged(_) => self.tagged(c, out),
            State::Json(_) => self.json(c, out),
            State::Name(_) => self.name(c, out),
            State::Body => self.body(c, out),
            State::Close(_) => self.close(c, out),
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        if let State::Tagged(next) = &mut self.state {
            self.content_buffer.hold(&next.take());
        }
        self.content_buffer.finish(out);
    }

    fn in_call(&self) -> bool {
        !matches!(self.state, State::Text)
    }
}
