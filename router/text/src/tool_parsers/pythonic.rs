//! Calls as a Python list: the whole output is `[name(key="value"), ..]`. A list consists of calls
//! only if it begins with the name of one of the request's tools. A call is emitted as JSON when it
//! is complete. OLMo 3 writes a call per line between tags, without brackets.

use serde_json::{Map, Value};

use super::content_buffer::{ContentBuffer, MarkFinder};
use super::{OutputDeltas, ToolCallParser, ToolNames};

/// The marks around Llama 4's calls.
pub(super) const MARKS: [&str; 2] = ["<|python_start|>", "<|python_end|>"];
/// The marks around LFM2's.
pub(super) const LFM_MARKS: [&str; 2] = ["<|tool_call_start|>", "<|tool_call_end|>"];
/// The tags around OLMo 3's, which have no brackets.
pub(super) const OLMO_MARKS: [&str; 2] = ["<function_calls>", "</function_calls>"];
/// The maximum nesting of lists and dictionaries.
const DEPTH: usize = 64;

/// A parser of pythonic calls.
#[derive(Debug)]
pub(super) struct PythonicParser {
    names: ToolNames,
    /// Whether marks are in place of brackets, and line breaks in place of commas.
    bare: bool,
    state: State,
    finder: MarkFinder,
    content_buffer: ContentBuffer,
    /// Whether the list has a complete call.
    listed: bool,
    /// The current call's text.
    call: String,
    scan: CallScanner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before any non-blank character.
    Start,
    /// Before a call.
    Before,
    /// In a call.
    Call,
    /// After a call.
    After,
    /// After the list.
    End,
    Text,
}

/// A scanner for the end of a call.
#[derive(Clone, Copy, Debug, Default)]
struct CallScanner {
    depth: usize,
    quote: Option<char>,
    escaped: bool,
}

impl CallScanner {
    /// Takes one character. Returns whether it ends the call.
    fn step(&mut self, c: char) -> bool {
        match (self.quote, c) {
            (Some(_), _) if self.escaped => self.escaped = false,
            (Some(_), '\\') => self.escaped = true,
            (Some(quote), c) if c == quote => self.quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => self.quote = Some(c),
            (None, '(' | '[' | '{') => self.depth += 1,
            (None, ')' | ']' | '}') => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            (None, _) => {}
        }
        false
    }
}

impl PythonicParser {
    /// `marks` may be around the list; those of OLMo 3 are in place of its brackets.
    pub(super) fn new(marks: &'static [&'static str; 2], names: ToolNames) -> Self {
        Self {
            names,
            bare: *marks == OLMO_MARKS,
            state: State::Start,
            finder: MarkFinder::new(marks),
            content_buffer: ContentBuffer::new(&[]),
            listed: false,
            call: String::new(),
            scan: CallScanner::default(),
        }
    }

    /// Handles a character that belongs to no mark.
    fn plain(&mut self, c: char, out: &mut OutputDeltas) {
        let blank = c.is_whitespace();
        match (self.state, c) {
            (State::Start, '[') if !self.bare => {
                self.state = State::Before;
                self.listed = false;
                self.content_buffer.hold("[");
            }
            (State::Start, _) if blank => self.content_buffer.hold(c.encode_utf8(&mut [0; 4])),
            (State::Before, _) if blank => self.content_buffer.hold(c.encode_utf8(&mut [0; 4])),
            (State::Before, ']') => self.give_up(c, out),
            (State::Before | State::Call, _) => self.call(c, out),
            (State::After, ',') => self.state = State::Before,
            (State::After, ']') => self.state = State::End,
            (State::After | State::End, _) if blank => {}
            (State::After, _) if self.bare => self.call(c, out),
            _ => self.give_up(c, out),
        }
    }

    fn give_up(&mut self, c: char, out: &mut OutputDeltas) {
        self.state = State::Text;
        self.content_buffer.give_up(out);
        let call = std::mem::take(&mut self.call);
        call.chars().chain([c]).for_each(|c| {
            self.content_buffer.push(c, out);
        });
    }

    fn call(&mut self, c: char, out: &mut OutputDeltas) {
        self.state = State::Call;
        if self.scan.depth == 0 && !(c == '(' || is_name(c)) {
            return self.give_up(c, out);
        }
        if c == '(' && self.scan.depth == 0 && !self.names.contains(&self.call) {
            return self.give_up(c, out);
        }
        self.call.push(c);
        if !self.scan.step(c) {
            return;
        }
        self.scan = CallScanner::default();
        match parse(&self.call) {
            Some((name, arguments)) => {
                self.content_buffer.call_started();
                self.call.clear();
                out.call(name);
                out.arguments(&Value::Object(arguments).to_string());
                out.end_call();
                self.state = State::After;
                self.listed = true;
            }
            None => {
                self.call.pop();
                self.give_up(c, out);
            }
        }
    }
}

impl ToolCallParser for PythonicParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        // Inside a call, a mark is text of an argument.
        if matches!(self.state, State::Call) {
            return self.call(c, out);
        }
        let (found, text) = self.finder.push(c);
        for c in text.chars() {
            self.plain(c, out);
        }
        match (found, self.state) {
            (Some(0), State::Start | State::End | State::Text) if self.bare => {
                self.state = State::Before;
                self.listed = false;
                self.content_buffer.hold(self.finder.mark(0));
            }
            (Some(1), State::After) if self.bare => self.state = State::End,
            (Some(0), State::Text) => self.state = State::Start,
            _ => {}
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        let rest = self.finder.take();
        self.content_buffer.hold(&std::mem::take(&mut self.call));
        self.content_buffer.hold(&rest);
        self.content_buffer.finish(out);
    }

    /// Spans the first call's arguments to the end of the list, including the text between calls.
    fn in_call(&self) -> bool {
        match self.state {
            State::After => true,
            State::Before => self.listed,
            State::Call => self.listed || self.scan.depth > 0,
            State::Start | State::End | State::Text => false,
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}

/// Parses `name(key=literal, ..)`.
fn parse(call: &str) -> Option<(String, Map<String, Value>)> {
    let (name, rest) = call.split_once('(')?;
    let mut literal = LiteralParser { rest, depth: 0 };
    let mut arguments = Map::new();
    literal.entries(')', |literal| {
        if let Some(rest) = literal.rest.strip_prefix("**") {
            literal.rest = rest;
            arguments.extend(literal.object()?);
            return Some(());
        }
        let end = literal.rest.find(|c| !is_name(c))?;
        let (key, rest) = literal.rest.split_at(end);
        literal.rest = rest;
        literal.eat('=')?;
        arguments.insert(key.to_owned(), literal.value()?);
        Some(())
    })?;
    literal
        .rest
        .is_empty()
        .then(|| (name.to_owned(), arguments))
}

/// A parser of Python literals.
struct LiteralParser<'a> {
    rest: &'a str,
    depth: usize,
}

impl LiteralParser<'_> {
    fn eat(&mut self, c: char) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(c)?;
        Some(())
    }

    /// Parses entries up to `close`, separated by commas. A trailing comma is allowed.
    fn entries(
        &mut self,
        close: char,
        mut entry: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        while self.eat(close).is_none() {
            self.rest = self.rest.trim_start();
            entry(self)?;
            if self.eat(',').is_none() {
                self.eat(close)?;
                break;
            }
        }
        self.depth -= 1;
        Some(())
    }

    fn value(&mut self) -> Option<Value> {
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            quote @ ('"' | '\'') => self.text(quote).map(Value::String),
            '[' => self.list(('[', ']')),
            '(' => self.list(('(', ')')),
            '{' => {
                self.eat('{')?;
                let mut map = Map::new();
                self.entries('}', |literal| {
                    let Value::String(key) = literal.value()? else {
                        return None;
                    };
                    literal.eat(':')?;
                    map.insert(key, literal.value()?);
                    Some(())
                })?;
                Some(Value::Object(map))
            }
            _ => self.word(),
        }
    }

    /// Parses the dictionary of `**{..}`: JSON if it is that (forced calls are), else a Python
    /// literal.
    fn object(&mut self) -> Option<Map<String, Value>> {
        let mut json = serde_json::Deserializer::from_str(self.rest).into_iter();
        if let Some(Ok(map)) = json.next() {
            self.rest = &self.rest[json.byte_offset()..];
            return Some(map);
        }
        match self.value()? {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    fn list(&mut self, (open, close): (char, char)) -> Option<Value> {
        self.eat(open)?;
        let mut list = Vec::new();
        self.entries(close, |literal| {
            list.push(literal.value()?);
            Some(())
        })?;
        Some(Value::Array(list))
    }

    /// Parses a number or a constant of Python or JSON.
    fn word(&mut self) -> Option<Value> {
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || ",)]}:".contains(c))?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            number => serde_json::from_str::<serde_json::Number>(number)
                .ok()
                .map(Value::Number),
        }
    }

    fn text(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                '\\' => {
                    let (_, escape) = chars.next()?;
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    if digits > 0 {
                        let code: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&code, 16).ok()?;
                        text.push(char::from_u32(code)?);
                    } else {
                        unescape(escape, &mut text);
                    }
                }
                c => text.push(c),
            }
        }
        None
    }
}

/// Appends the meaning of a backslash before `c` in Python.
fn unescape(c: char, text: &mut String) {
    match c {
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'b' => text.push('\u{8}'),
        'f' => text.push('\u{c}'),
        '0' => text.push('\0'),
        '\n' => {}
        '\\' | '\'' | '"' => text.push(c),
        other => {
            text.push('\\');
            text.push(other);
        }
    }
}
