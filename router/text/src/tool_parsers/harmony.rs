//! The harmony format of gpt-oss: messages with a header, `<|channel|>analysis<|message|>..<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{..}
//! <|call|>`. The channel `analysis` is reasoning, a recipient in `functions` makes a call, and all
//! else is content.

use penstock_request::grammar_spec::GrammarFormat;

use super::content_buffer::MarkFinder;
use super::json_call::{JsonScanner, ValuePosition};
use super::{OutputDeltas, ReasoningDisplay, ToolCallParser, ToolNames, is_plain};

/// What the prompt of an answer ends with; a header follows.
pub(super) const PROMPT_END: &str = "<|start|>assistant";
/// The recipient of a call, before the function's name.
pub(super) const RECIPIENT: &str = "to=functions.";
/// The header of the answer, without reasoning and after it.
pub(super) const FINAL: &str = "<|channel|>final<|message|>";
const FINAL_AFTER_REASONING: &str = "<|start|>assistant<|channel|>final<|message|>";
pub(super) const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const START: usize = 0;
const MESSAGE: usize = 1;
const CHANNEL: usize = 2;
const CONSTRAIN: usize = 3;
/// All marks, which are special tokens. The last three end a message.
pub(super) const MARKS: [&str; 7] = [
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// A parser of harmony messages.
#[derive(Debug)]
pub(super) struct HarmonyParser {
    /// The request's tools; `None` without tools, so that nothing is a call.
    names: Option<ToolNames>,
    display: ReasoningDisplay,
    finder: MarkFinder,
    state: State,
    header: String,
    /// Whitespace of reasoning that is emitted if text follows.
    blanks: String,
    /// Whether a message of reasoning, and of content, has had text.
    thought: bool,
    spoke: bool,
}

#[derive(Debug)]
enum State {
    /// Before a header. A recipient may come before the channel; other text has lost its header.
    Start,
    Header,
    Reasoning,
    /// `true` before the first character.
    Content(bool),
    /// A call of this function, before its arguments.
    Call(String),
    Arguments(JsonScanner),
    /// After the end of a message.
    Between,
}

/// Returns what follows the end of the reasoning, before an answer to which a grammar gives a
/// `format`. Calls begin in a header; before free text, and calls that begin in free text
/// (`strict`), the model writes the header.
pub(super) const fn header_after_reasoning(format: GrammarFormat, strict: bool) -> &'static str {
    match format {
        GrammarFormat::JsonSchema | GrammarFormat::Regex | GrammarFormat::Ebnf => {
            FINAL_AFTER_REASONING
        }
        GrammarFormat::ToolCalls if !strict => PROMPT_END,
        GrammarFormat::ToolCalls | GrammarFormat::Text => "",
    }
}

impl HarmonyParser {
    pub(super) fn new(names: Option<ToolNames>, display: ReasoningDisplay) -> Self {
        Self {
            names,
            display,
            finder: MarkFinder::new(&MARKS),
            state: State::Start,
            header: String::new(),
            blanks: String::new(),
            thought: false,
            spoke: false,
        }
    }

    /// Takes the part of the prompt that the output continues.
    pub(super) fn after(mut self, prompt: &str) -> Self {
        let mut unused = OutputDeltas::default();
        prompt.chars().for_each(|c| self.push(c, &mut unused));
        (self.thought, self.spoke) = (false, false);
        self.blanks.clear();
        self
    }

    /// Handles a character that belongs to no mark.
    fn plain(&mut self, c: char, out: &mut OutputDeltas) {
        let in_header = matches!(self.state, State::Start | State::Header);
        if in_header && c == '{' && self.called().is_some() {
            self.begin_message(out);
        }
        match &mut self.state {
            State::Start => {
                self.header.push(c);
                if !begins_recipient(&self.header) {
                    self.begin_content(out);
                }
            }
            State::Header => self.header.push(c),
            State::Reasoning => self.reasoning(c, out),
            State::Content(first) => {
                if std::mem::take(first) && self.spoke {
                    out.content("\n");
                }
                self.spoke = true;
                out.content(c.encode_utf8(&mut [0; 4]));
            }
            State::Call(_) | State::Between if c.is_whitespace() => {}
            State::Call(name) if c == '{' => {
                out.call(std::mem::take(name));
                self.state = State::Arguments(JsonScanner::default());
                self.plain(c, out);
            }
            State::Call(_) => {
                self.state = State::Content(true);
                self.plain(c, out);
            }
            State::Arguments(scan) => {
                out.arguments(c.encode_utf8(&mut [0; 4]));
                if scan.step(c) == ValuePosition::Last {
                    out.end_call();
                    self.state = State::Between;
                }
            }
            State::Between => {
                self.header.clear();
                self.state = State::Start;
                self.plain(c, out);
            }
        }
    }

    fn reasoning(&mut self, c: char, out: &mut OutputDeltas) {
        match self.display {
            ReasoningDisplay::Hidden => {}
            ReasoningDisplay::InContent => out.content(c.encode_utf8(&mut [0; 4])),
            ReasoningDisplay::Separate if c.is_whitespace() => self.blanks.push(c),
            ReasoningDisplay::Separate => {
                if self.thought {
                    out.reasoning(&self.blanks);
                }
                self.blanks.clear();
                self.thought = true;
                out.reasoning(c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    /// Handles a mark.
    fn mark(&mut self, mark: usize, out: &mut OutputDeltas) {
        if let State::Arguments(scan) = &self.state
            && scan.is_in_string()
        {
            return MARKS[mark].chars().for_each(|c| self.plain(c, out));
        }
        let in_header = matches!(self.state, State::Start | State::Header);
        match mark {
            MESSAGE if in_header => self.begin_message(out),
            CHANNEL | CONSTRAIN if in_header => {
                self.header.push_str(MARKS[mark]);
                self.state = State::Header;
            }
            MESSAGE | CONSTRAIN => {}
            START | CHANNEL => {
                self.end_message(out);
                self.header.clear();
                if mark == CHANNEL {
                    self.header.push_str(MARKS[mark]);
                }
                self.state = State::Header;
            }
            _ => {
                self.end_message(out);
                self.state = State::Between;
            }
        }
    }

    /// Returns the function that the header calls.
    fn called(&self) -> Option<String> {
        let names = self.names.as_ref()?;
        let (_, recipient) = self.header.split_once("to=")?;
        let end = recipient.find(|c| !is_plain(c)).unwrap_or(recipient.len());
        let recipient = &recipient[..end];
        let function = recipient.strip_prefix("functions.");
        let function = function.or_else(|| {
            let known = names.iter().any(|name| name == recipient);
            known.then_some(recipient)
        });
        function.filter(|name| !name.is_empty()).map(str::to_owned)
    }

    fn begin_message(&mut self, out: &mut OutputDeltas) {
        let channel = self.header.split_once(MARKS[CHANNEL]);
        let analysis = channel.is_some_and(|(_, channel)| channel.trim().starts_with("analysis"));
        self.state = match self.called() {
            Some(name) => State::Call(name),
            None if analysis => {
                if self.display == ReasoningDisplay::InContent {
                    out.content(ANALYSIS);
                }
                if self.thought {
                    self.blanks = "\n".to_owned();
                }
                State::Reasoning
            }
            None => State::Content(true),
        };
        self.header.clear();
    }

    /// Makes what was held as a header content.
    fn begin_content(&mut self, out: &mut OutputDeltas) {
        self.state = State::Content(true);
        let text = std::mem::take(&mut self.header);
        text.chars().for_each(|c| self.plain(c, out));
    }

    fn end_message(&mut self, out: &mut OutputDeltas) {
        match &mut self.state {
            State::Call(name) => {
                out.call(std::mem::take(name));
                out.arguments("{}");
                out.end_call();
            }
            State::Arguments(_) => out.end_call(),
            State::Reasoning if self.display == ReasoningDisplay::InContent => {
                out.content("<|end|>");
            }
            State::Start if !self.header.trim().is_empty() => self.begin_content(out),
            State::Start
            | State::Header
            | State::Reasoning
            | State::Content(_)
            | State::Between => {}
        }
    }
}

/// Whether `text` is the beginning of a recipient before a channel: ` to=functions.name json`.
fn begins_recipient(text: &str) -> bool {
    let text = text.trim_start();
    let Some(recipient) = text.strip_prefix("to=") else {
        return "to=".starts_with(text);
    };
    let end = recipient
        .find(char::is_whitespace)
        .unwrap_or(recipient.len());
    let (name, kind) = recipient.split_at(end);
    name.chars().all(is_plain) && "json".starts_with(kind.trim())
}

impl ToolCallParser for HarmonyParser {
    fn push(&mut self, c: char, out: &mut OutputDeltas) {
        let (found, text) = self.finder.push(c);
        text.chars().for_each(|c| self.plain(c, out));
        if let Some(mark) = found {
            self.mark(mark, out);
        }
    }

    fn finish(&mut self, out: &mut OutputDeltas) {
        let text = self.finder.take();
        text.chars().for_each(|c| self.plain(c, out));
        match &mut self.state {
            State::Start => self.begin_content(out),
            State::Call(name) => out.call(std::mem::take(name)),
            State::Header
            | State::Reasoning
            | State::Content(_)
            | State::Arguments(_)
            | State::Between => {}
        }
    }

    fn in_call(&self) -> bool {
        matches!(self.state, State::Call(_) | State::Arguments(_))
    }
}
