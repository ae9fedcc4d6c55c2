//! Calls in XML-like tags, whose values are not quoted. A JSON object within the outer tag is a call
//! too.

use super::content_buffer::{ContentBuffer, MarkFinder, NextMark, NextText};
use super::hermes::{CLOSE, OPEN};
use super::json_call::{JsonCallParser, Progress};
use super::typed_call::TypedCall;
use super::{OutputDeltas, ToolCallParser, is_plain};

pub(super) const MINIMAX_OPEN: &str = "<minimax:tool_call>";
pub(super) const MINIMAX_CLOSE: &str = "</minimax:tool_call>";
pub(super) const SEED_OPEN: &str = "<seed:tool_call>";
pub(super) const SEED_CLOSE: &str = "</seed:tool_call>";
/// A part of all of `DeepSeek`'s tags, and a token of its own.
pub(super) const DSML: &str = "｜DSML｜";
pub(super) const DSML_CALLS: [&str; 2] = ["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"];
pub(super) const DSML_TOOL_CALLS: [&str; 2] = ["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"];

/// The tags of a format.
#[derive(Debug)]
pub(super) struct Syntax {
    /// What opens a call: the outer tag, and the function's if the model may omit the outer one.
    opening: &'static [&'static str],
    /// What follows the name of a function or a value: a parameter, or the end of the function,
    /// which the end of the outer tag may be, too.
    body: &'static [&'static str; 3],
    /// What follows a function: the end of the outer tag, or another function.
    after: &'static [&'static str; 2],
    /// What encloses names.
    quote: &'static str,
    /// The ends of a value. If one begins with a line break, none around a value is part of it.
    value_end: &'static [&'static str],
}

/// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
pub(super) static QWEN: Syntax = Syntax {
    opening: &[OPEN, "<function="],
    body: &["<parameter=", "</function>", CLOSE],
    after: &[CLOSE, "<function="],
    quote: "",
    value_end: LINES_END,
};

/// The same in the outer tag of Seed-OSS.
pub(super) static SEED: Syntax = Syntax {
    opening: &[SEED_OPEN, "<function="],
    body: &["<parameter=", "</function>", SEED_CLOSE],
    after: &[SEED_CLOSE, "<function="],
    quote: "",
    value_end: LINES_END,
};

/// `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter></invoke>
/// </minimax:tool_call>`
pub(super) static MINIMAX: Syntax = Syntax {
    opening: &[MINIMAX_OPEN],
    body: &["<parameter name=\"", "</invoke>", MINIMAX_CLOSE],
    after: &[MINIMAX_CLOSE, "<invoke name=\""],
    quote: "\"",
    value_end: LINES_END,
};

/// `<｜DSML｜function_calls><｜DSML｜invoke name="name"><｜DSML｜parameter name="key" string="true">value
/// </｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>`
pub(super) static DSML_V32: Syntax = Syntax {
    opening: &[DSML_CALLS[0]],
    body: &[DSML_PARAMETER, DSML_INVOKE_END, DSML_CALLS[1]],
    after: &[DSML_CALLS[1], DSML_INVOKE],
    quote: "\"",
    value_end: DSML_END,
};

/// The same in another outer tag.
pub(super) static DSML_V4: Syntax = Syntax {
    opening: &[DSML_TOOL_CALLS[0]],
    body: &[DSML_PARAMETER, DSML_INVOKE_END, DSML_TOOL_CALLS[1]],
    after: &[DSML_TOOL_CALLS[1], DSML_INVOKE],
    quote: "\"",
    value_end: DSML_END,
};

const DSML_INVOKE: &str = "<｜DSML｜invoke name=\"";
const DSML_INVOKE_END: &str = "</｜DSML｜invoke>";
const DSML_PARAMETER: &str = "<｜DSML｜parameter name=\"";
const DSML_END: &[&str] = &["</｜DSML｜parameter>"];
const LINES_END: &[&str] = &["\n</parameter>", "</parameter>"];
/// What precedes, in a parameter's tag, whether the value is a string: `true` or `false`.
const IS_STRING: &str = "\" string=\"";

impl Syntax {
    fn function(&self) -> &'static str {
        self.after[1]
    }

    fn parameter(&self) -> &'static str {
        self.body[0]
    }

    /// Whether values are on lines of their own.
    fn breaks_lines(&self) -> bool {
        self.value_end[0].starts_with('\n')
    }
}

/// A parser of content and calls in tags.
#[derive(Debug)]
pub(super) struct XmlParser {
    syntax: &'static Syntax,
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
    /// In a function, before a parameter.
    Body(NextMark),
    /// In a parameter's name.
    Key(String),
    /// In a value; `true` where a line break that is not part of it may come.
    Value(MarkFinder, bool),
    /// After a function.
    Close(NextMark),
}

impl XmlParser {
    /// Creates a parser. If calls are `strict`, only the outer tag opens one.
    pub(super) fn new(syntax: &'static Syntax, call: TypedCall, strict: bool) -> Self {
        let opening = if strict {
            &syntax.opening[..1]
        } else {
            syntax.opening
        };
        Self {
            syntax,
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
            Some(0) => State::Tagged(NextMark::new(&self.syntax.after[1..])),
            Some(_) => State::Name(String::new()),
            None => State::Text,
        };
    }

    /// Makes everything since the mark content, and parses `text` as content.
    fn give_up(&mut self, text: &str, out: &mut OutputDeltas) {
        self.state = State::Text;
        self.content_buffer.give_up(out);
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
        self.content_buffer.hold(self.syntax.function());
        self.state = State::Name(String::new());
    }

    fn json(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Json(call) = &mut self.state else {
            return;
        };
        match call.push(c, out, &mut self.content_buffer) {
            Progress::More => {}
            Progress::Done => self.state = State::Close(NextMark::new(&self.syntax.after[..1])),
            Progress::Broken => self.text(c, out),
        }
    }

    fn name(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Name(name) = &mut self.state else {
            return;
        };
        let whole = (c == '>').then_some(name.as_str());
        let whole = whole.and_then(|name| name.strip_suffix(self.syntax.quote));
        let known = |name: &&str| !name.is_empty() && (self.tagged || self.call.knows(name));
        if let Some(name) = whole.filter(known) {
            self.content_buffer.call_started();
            self.call.begin(name, out);
            self.state = self.body_state();
        } else if is_plain(c) || self.syntax.quote.contains(c) {
            name.push(c);
            self.content_buffer.hold(c.encode_utf8(&mut [0; 4]));
        } else {
            self.give_up(c.encode_utf8(&mut [0; 4]), out);
        }
    }

    fn body_state(&self) -> State {
        State::Body(NextMark::new(self.syntax.body))
    }

    fn body(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Body(next) = &mut self.state else {
            return;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Key(String::new()),
            NextText::Mark(mark) => {
                self.call.end(out);
                // The outer tag may close a function, too.
                self.state = match mark {
                    1 => State::Close(NextMark::new(self.syntax.after)),
                    _ => State::Text,
                };
            }
            NextText::Other(text) => self.break_off(&text, out),
        }
    }

    /// Ends a call that is broken off; `text` is content.
    fn break_off(&mut self, text: &str, out: &mut OutputDeltas) {
        self.call.end(out);
        self.state = State::Text;
        text.chars().for_each(|c| self.push(c, out));
    }

    fn key(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Key(key) = &mut self.state else {
            return;
        };
        match c {
            '>' => {
                let name = key.strip_suffix(self.syntax.quote).unwrap_or(key);
                match name.split_once(IS_STRING) {
                    Some((name, "true")) => self.call.begin_text(name, out),
                    Some((name, _)) => self.call.begin_argument(name, out),
                    None => self.call.begin_argument(name, out),
                }
                let finder = MarkFinder::new(self.syntax.value_end);
                self.state = State::Value(finder, self.syntax.breaks_lines());
            }
            '\n' => {
                let text = format!("{}{key}\n", self.syntax.parameter());
                self.break_off(&text, out);
            }
            c => key.push(c),
        }
    }

    fn value(&mut self, c: char, out: &mut OutputDeltas) {
        let State::Value(finder, first) = &mut self.state else {
            return;
        };
        // The line break after the tag is not part of the value, and none before the next tag is.
        if std::mem::take(first) && c == '\n' {
            return;
        }
        let (found, text) = finder.push(c);
        self.call.push(&text, out);
        if found.is_some() {
            self.call.end_argument(out);
            self.state = self.body_state();
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
            NextText::Other(text) => {
                self.state = State::Text;
                text.chars().for_each(|c| self.push(c, out));
            }
        }
    }
}

impl ToolCallParser for XmlParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        match self.state {
            State::Text => self.text(c, out),
            State::Tagged(_) => self.tagged(c, out),
            State::Json(_) => self.json(c, out),
            State::Name(_) => self.name(c, out),
            State::Body(_) => self.body(c, out),
            State::Key(_) => self.key(c, out),
            State::Value(..) => self.value(c, out),
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
