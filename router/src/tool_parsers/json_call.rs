//! One call as a JSON object: `{"name": .., "arguments": {..}}`, with `parameters` for `arguments`
//! where a model says so, and its keys in any order. Arguments go out as they come, byte for byte.

use super::content_buffer::ContentBuffer;
use super::{OutputDeltas, ToolNames};

/// How reading an object goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It goes on; the character was taken.
    More,
    /// The object is complete; the character was its last.
    Done,
    /// This is no call, or something comes after what was one. The character was not taken.
    Broken,
}

/// Where the name stands in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// Anywhere.
    #[default]
    Any,
    /// First, or behind `"type": "function"`: an object that begins otherwise is no call.
    NameFirst,
}

/// Reads one call.
#[derive(Debug, Default)]
pub(super) struct JsonCallParser {
    state: State,
    /// The key or the string that is being read, as written.
    text: String,
    /// Arguments that came before the name.
    early_arguments: String,
    named: bool,
    has_arguments: bool,
    /// Only these names make a call, if it is set.
    names: Option<ToolNames>,
    order: KeyOrder,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Start,
    /// Before a key, or the end of an object that has none.
    BeforeKey,
    Key(JsonScanner),
    Colon,
    Value(Role, JsonScanner),
    /// After a value.
    Next,
}

/// What a value is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Name,
    /// What the call is of.
    Kind,
    /// Nothing of them has come.
    Arguments,
    /// Arguments as an object.
    Object,
    /// Arguments as anything else: understood when they are whole.
    Whole,
    Other,
}

/// Finds the end of one JSON value without judging what is in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JsonScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

/// Where a character stands to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePosition {
    /// Before it.
    Before,
    /// In it.
    Inside,
    /// Its last character.
    Last,
    /// After it: a number or a word ends with what follows.
    After,
}

impl Role {
    /// Whether it may stand before a name that comes first.
    fn leads(self) -> bool {
        matches!(self, Self::Name | Self::Kind)
    }
}

impl JsonScanner {
    pub(super) fn step(&mut self, c: char) -> ValuePosition {
        if self.in_string {
            return self.step_string(c);
        }
        match c {
            c if c.is_whitespace() && !self.begun => return ValuePosition::Before,
            '"' if self.depth == 0 && self.begun => return ValuePosition::After,
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' | ',' if self.depth == 0 => return ValuePosition::After,
            '}' | ']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return ValuePosition::Last;
                }
            }
            c if c.is_whitespace() && self.depth == 0 => return ValuePosition::After,
            _ => {}
        }
        self.begun = true;
        ValuePosition::Inside
    }

    fn step_string(&mut self, c: char) -> ValuePosition {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                if self.depth == 0 {
                    return ValuePosition::Last;
                }
            }
            _ => {}
        }
        ValuePosition::Inside
    }
}

impl JsonCallParser {
    /// A call of one of `names` only.
    pub(super) fn new(names: ToolNames, order: KeyOrder) -> Self {
        let names = Some(names);
        Self {
            names,
            order,
            ..Self::default()
        }
    }

    /// Whether its name has come.
    pub(super) fn is_named(&self) -> bool {
        self.named
    }

    /// Takes one character. `content_buffer` keeps what has come until the call's name is known, and gives it
    /// out as content if this is no call.
    pub(super) fn push(
        &mut self,
        c: char,
        out: &mut OutputDeltas,
        content_buffer: &mut ContentBuffer,
    ) -> Progress {
        let (named, progress) = (self.named, self.step(c, out));
        match progress {
            Progress::Broken if self.named => self.close(out),
            Progress::Broken => content_buffer.give_up(out),
            _ if named => {}
            _ if self.named => content_buffer.call_started(),
            _ => content_buffer.hold(c.encode_utf8(&mut [0; 4])),
        }
        progress
    }

    fn step(&mut self, c: char, out: &mut OutputDeltas) -> Progress {
        match &mut self.state {
            State::Value(role, scan) => {
                let (role, at) = (*role, scan.step(c));
                self.value(role, at, c, out)
            }
            State::Key(scan) => {
                let at = scan.step(c);
                self.text.push(c);
                if at == ValuePosition::Last {
                    self.state = State::Colon;
                }
                Progress::More
            }
            _ if c.is_whitespace() => Progress::More,
            _ => self.between(c, out),
        }
    }

    /// A character that is no blank, outside keys and values.
    fn between(&mut self, c: char, out: &mut OutputDeltas) -> Progress {
        match (&self.state, c) {
            (State::Start, '{') | (State::Next, ',') => self.state = State::BeforeKey,
            (State::BeforeKey, '"') => {
                let mut scan = JsonScanner::default();
                scan.step(c);
                self.text = c.to_string();
                self.state = State::Key(scan);
            }
            (State::Colon, ':') => {
                let role = self.role();
                if self.order == KeyOrder::NameFirst && !self.named && !role.leads() {
                    return Progress::Broken;
                }
                self.text.clear();
                self.state = State::Value(role, JsonScanner::default());
            }
            (State::Next | State::BeforeKey, '}') => return self.end(out),
            _ => return Progress::Broken,
        }
        Progress::More
    }

    fn role(&self) -> Role {
        match self.text.as_str() {
            "\"name\"" if !self.named => Role::Name,
            "\"type\"" => Role::Kind,
            "\"arguments\"" | "\"parameters\"" if !self.has_arguments => Role::Arguments,
            _ => Role::Other,
        }
    }

    fn value(
        &mut self,
        role: Role,
        at: ValuePosition,
        c: char,
        out: &mut OutputDeltas,
    ) -> Progress {
        let role = match (role, at) {
            (Role::Arguments, ValuePosition::Inside | ValuePosition::Last) => {
                self.begin_arguments(c)
            }
            _ => role,
        };
        if matches!(at, ValuePosition::Inside | ValuePosition::Last) {
            match role {
                Role::Object => self.push_arguments(c.encode_utf8(&mut [0; 4]), out),
                Role::Name | Role::Kind | Role::Whole => self.text.push(c),
                Role::Arguments | Role::Other => {}
            }
        }
        match at {
            ValuePosition::Before | ValuePosition::Inside => Progress::More,
            ValuePosition::Last => self.end_value(role, out),
            ValuePosition::After => match self.end_value(role, out) {
                Progress::More if c.is_whitespace() => Progress::More,
                Progress::More => self.between(c, out),
                ended => ended,
            },
        }
    }

    /// At the arguments' first character: an object goes out as it comes.
    fn begin_arguments(&mut self, c: char) -> Role {
        self.has_arguments = true;
        let role = if c == '{' { Role::Object } else { Role::Whole };
        if let State::Value(now, _) = &mut self.state {
            *now = role;
        }
        role
    }

    fn push_arguments(&mut self, text: &str, out: &mut OutputDeltas) {
        if self.named {
            out.arguments(text);
        } else {
            self.early_arguments.push_str(text);
        }
    }

    fn end_value(&mut self, role: Role, out: &mut OutputDeltas) -> Progress {
        self.state = State::Next;
        match role {
            Role::Name => return self.name(out),
            Role::Kind if self.order == KeyOrder::NameFirst && !self.named => {
                if self.text != "\"function\"" {
                    return Progress::Broken;
                }
            }
            Role::Whole => {
                let text = std::mem::take(&mut self.text);
                self.push_arguments(&whole_arguments(text), out);
            }
            Role::Object | Role::Arguments | Role::Kind | Role::Other => {}
        }
        Progress::More
    }

    fn name(&mut self, out: &mut OutputDeltas) -> Progress {
        let name = serde_json::from_str::<String>(&self.text).unwrap_or_default();
        let known = self
            .names
            .as_ref()
            .is_none_or(|names| names.contains(&name));
        if name.is_empty() || !known {
            return Progress::Broken;
        }
        self.named = true;
        out.call(name);
        out.arguments(&self.early_arguments);
        Progress::More
    }

    /// At the object's end.
    fn end(&mut self, out: &mut OutputDeltas) -> Progress {
        if !self.named {
            return Progress::Broken;
        }
        self.close(out);
        Progress::Done
    }

    /// Ends a call that has begun.
    fn close(&mut self, out: &mut OutputDeltas) {
        if !self.has_arguments {
            out.arguments("{}");
        }
        out.end_call();
    }
}

/// Arguments that are no object: one in a string, or none.
fn whole_arguments(text: String) -> String {
    if text == "null" {
        return "{}".to_owned();
    }
    serde_json::from_str::<String>(&text).unwrap_or(text)
}
