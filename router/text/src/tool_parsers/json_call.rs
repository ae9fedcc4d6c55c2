//! One call as a JSON object: `{"name": .., "arguments": {..}}`, or with `parameters` instead of
//! `arguments` and `tool_name` instead of `name`. Keys may have any order. Arguments are emitted as they arrive, byte for byte.

use super::content_buffer::ContentBuffer;
use super::{OutputDeltas, ToolNames};

/// The result of one character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The character was taken; the object goes on.
    More,
    /// The character was taken and ends the object.
    Done,
    /// The object is no call, or invalid after its name. The character was not taken.
    Broken,
}

/// Where a call's name may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// Anywhere.
    #[default]
    Any,
    /// First, or after `"type": "function"`. An object that begins otherwise is no call.
    NameFirst,
}

/// A parser of one call.
#[derive(Debug, Default)]
pub(super) struct JsonCallParser {
    state: State,
    /// The current key or string, as written.
    text: String,
    /// Arguments that precede the name.
    early_arguments: String,
    named: bool,
    has_arguments: bool,
    /// The only names that make a call; `None` accepts every name.
    names: Option<ToolNames>,
    order: KeyOrder,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Start,
    /// Before a key or the end of an empty object.
    BeforeKey,
    Key(JsonScanner),
    Colon,
    Value(Role, JsonScanner),
    /// After a value.
    Next,
}

/// The meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Name,
    /// The value of `type`.
    Kind,
    /// The arguments, before their first character.
    Arguments,
    /// Arguments as an object.
    Object,
    /// Arguments of another type, converted when they are complete.
    Whole,
    Other,
}

/// A scanner for the end of one JSON value. It does not validate the value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JsonScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

/// The position of a character relative to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePosition {
    /// Before it.
    Before,
    /// In it.
    Inside,
    /// Its last character.
    Last,
    /// After it: a number or literal ends only at the next character.
    After,
}

impl Role {
    /// Whether the value may precede a name that must come first.
    fn leads(self) -> bool {
        matches!(self, Self::Name | Self::Kind)
    }
}

impl JsonScanner {
    /// Whether the next character belongs to a string.
    pub(super) fn is_in_string(&self) -> bool {
        self.in_string
    }

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
    /// Creates a parser that accepts only calls of `names`.
    pub(super) fn new(names: ToolNames, order: KeyOrder) -> Self {
        let names = Some(names);
        Self {
            names,
            order,
            ..Self::default()
        }
    }

    /// Whether the name is known.
    pub(super) fn is_named(&self) -> bool {
        self.named
    }

    /// Takes one character. `content_buffer` holds the text until the call's name is known, and
    /// emits it as content if the object is no call.
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

    /// Handles a non-blank character outside keys and values.
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
            "\"name\"" | "\"tool_name\"" if !self.named => Role::Name,
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

    /// Handles the first character of the arguments: an object is emitted as it arrives.
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

    /// Handles the end of the object.
    fn end(&mut self, out: &mut OutputDeltas) -> Progress {
        if !self.named {
            return Progress::Broken;
        }
        self.close(out);
        Progress::Done
    }

    /// Ends a call whose name was emitted.
    fn close(&mut self, out: &mut OutputDeltas) {
        if !self.has_arguments {
            out.arguments("{}");
        }
        out.end_call();
    }
}

/// Converts arguments that are no object: a JSON string that contains one, or `null`.
fn whole_arguments(text: String) -> String {
    if text == "null" {
        return "{}".to_owned();
    }
    serde_json::from_str::<String>(&text).unwrap_or(text)
}
