//! Calls in XML-like tags, whose values are not quoted.

use super::OutputDeltas;
use super::content_buffer::{MarkFinder, NextMark, NextText};
use super::hermes::{CLOSE, OPEN};
use super::tag_calls::{Frame, FunctionBody, Step, TagCallParser};
use super::typed_call::TypedCall;

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
    frame: Frame,
    /// What follows the name of a function or a value: a parameter, or the end of the function,
    /// which the end of the outer tag may be, too.
    body: &'static [&'static str; 3],
    /// The ends of a value. If one begins with a line break, none around a value is part of it.
    value_end: &'static [&'static str],
}

/// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
pub(super) static QWEN: Syntax = Syntax {
    frame: Frame {
        opening: &[OPEN, "<function="],
        after: &[CLOSE, "<function="],
        quote: "",
    },
    body: &["<parameter=", "</function>", CLOSE],
    value_end: LINES_END,
};

/// The same in the outer tag of Seed-OSS.
pub(super) static SEED: Syntax = Syntax {
    frame: Frame {
        opening: &[SEED_OPEN, "<function="],
        after: &[SEED_CLOSE, "<function="],
        quote: "",
    },
    body: &["<parameter=", "</function>", SEED_CLOSE],
    value_end: LINES_END,
};

/// `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter></invoke>
/// </minimax:tool_call>`
pub(super) static MINIMAX: Syntax = Syntax {
    frame: Frame {
        opening: &[MINIMAX_OPEN],
        after: &[MINIMAX_CLOSE, "<invoke name=\""],
        quote: "\"",
    },
    body: &["<parameter name=\"", "</invoke>", MINIMAX_CLOSE],
    value_end: LINES_END,
};

/// `<｜DSML｜function_calls><｜DSML｜invoke name="name"><｜DSML｜parameter name="key" string="true">value
/// </｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>`
pub(super) static DSML_V32: Syntax = Syntax {
    frame: Frame {
        opening: &[DSML_CALLS[0]],
        after: &[DSML_CALLS[1], DSML_INVOKE],
        quote: "\"",
    },
    body: &[DSML_PARAMETER, DSML_INVOKE_END, DSML_CALLS[1]],
    value_end: DSML_END,
};

/// The same in another outer tag.
pub(super) static DSML_V4: Syntax = Syntax {
    frame: Frame {
        opening: &[DSML_TOOL_CALLS[0]],
        after: &[DSML_TOOL_CALLS[1], DSML_INVOKE],
        quote: "\"",
    },
    body: &[DSML_PARAMETER, DSML_INVOKE_END, DSML_TOOL_CALLS[1]],
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
    /// Creates a parser of content and calls.
    pub(super) fn parser(&'static self, call: TypedCall, strict: bool) -> TagCallParser<Body> {
        let state = State::Body(NextMark::new(self.body));
        TagCallParser::new(
            &self.frame,
            Body {
                syntax: self,
                state,
            },
            call,
            strict,
        )
    }

    fn parameter(&self) -> &'static str {
        self.body[0]
    }

    /// Whether values are on lines of their own.
    fn breaks_lines(&self) -> bool {
        self.value_end[0].starts_with('\n')
    }
}

/// A parser of parameters.
#[derive(Debug)]
pub(super) struct Body {
    syntax: &'static Syntax,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before a parameter.
    Body(NextMark),
    /// In a parameter's name.
    Key(String),
    /// In a value; `true` where a line break that is not part of it may come.
    Value(MarkFinder, bool),
}

impl Body {
    fn body(&mut self, c: char) -> Step {
        let State::Body(next) = &mut self.state else {
            return Step::More;
        };
        match next.push(c) {
            NextText::Blank | NextText::Partial => {}
            NextText::Mark(0) => self.state = State::Key(String::new()),
            NextText::Mark(1) => return Step::Ended,
            // The outer tag may close a function, too.
            NextText::Mark(_) => return Step::Closed,
            NextText::Other(text) => return Step::Broken(text),
        }
        Step::More
    }

    fn key(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) -> Step {
        let State::Key(key) = &mut self.state else {
            return Step::More;
        };
        match c {
            '>' => {
                let name = key.strip_suffix(self.syntax.frame.quote).unwrap_or(key);
                match name.split_once(IS_STRING) {
                    Some((name, "true")) => call.begin_text(name, out),
                    Some((name, _)) => call.begin_argument(name, out),
                    None => call.begin_argument(name, out),
                }
                let finder = MarkFinder::new(self.syntax.value_end);
                self.state = State::Value(finder, self.syntax.breaks_lines());
            }
            '\n' => return Step::Broken(format!("{}{key}\n", self.syntax.parameter())),
            c => key.push(c),
        }
        Step::More
    }

    fn value(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) {
        let State::Value(finder, first) = &mut self.state else {
            return;
        };
        // The line break after the tag is not part of the value, and none before the next tag is.
        if std::mem::take(first) && c == '\n' {
            return;
        }
        let (found, text) = finder.push(c);
        call.push(&text, out);
        if found.is_some() {
            call.end_argument(out);
            self.begin();
        }
    }
}

impl FunctionBody for Body {
    fn begin(&mut self) {
        self.state = State::Body(NextMark::new(self.syntax.body));
    }

    fn push(&mut self, c: char, call: &mut TypedCall, out: &mut OutputDeltas) -> Step {
        match self.state {
            State::Body(_) => self.body(c),
            State::Key(_) => self.key(c, call, out),
            State::Value(..) => {
                self.value(c, call, out);
                Step::More
            }
        }
    }
}
