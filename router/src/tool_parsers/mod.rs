//! What an answer's text means: thoughts, content and tool calls.
//!
//! Each format is a machine that takes one character at a time, so the result cannot depend on how
//! the text is cut into tokens. Text that begins like a call and turns out to be none is content.

mod call_grammar;
mod call_spans;
mod content_buffer;
mod hermes;
mod json_call;
mod llama;
mod mistral;
mod output_parser;
mod pythonic;
mod reasoning;
mod tool_set;

use std::sync::Arc;

pub use self::call_spans::CallSpans;
use self::json_call::KeyOrder;
pub use self::output_parser::{OutputParser, OutputParserOptions, ReasoningDisplay};
pub(crate) use self::tool_set::{LONGEST_TOOL_NAME, TOOL_NAME_SYMBOLS};
pub use self::tool_set::{MOST_TOOLS, Tool, ToolChoiceMode, ToolFields, ToolSet};

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// The same without blanks: brook.
    Brook,
    /// The whole answer is `{"name": .., "parameters": ..}`, several with `;` between: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]` or `[TOOL_CALLS]name[ARGS]{..}`: Mistral.
    Mistral,
    /// The whole answer is `[name(key=value)]`: Llama 4 and 3.2, `ToolACE`.
    Pythonic,
}

/// How a model writes its thoughts, always before the rest of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>..</think>`: DeepSeek R1, Qwen 3 and many more.
    Think,
    /// `[THINK]..[/THINK]`: Magistral.
    Mistral,
}

/// A part of an answer. Parts of one kind that follow each other belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputDelta {
    /// Text for the user.
    Content(String),
    /// What the model thought before it answered.
    Reasoning(String),
    /// A call begins, of the function of this name.
    CallStart(String),
    /// More of the arguments of the call that began last: JSON in pieces.
    Arguments(String),
    /// The call that began last is complete.
    CallEnd,
}

/// Names of the functions that a request offers.
pub type ToolNames = Arc<[String]>;

/// Pieces in order; text is appended to the last one where it is of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputDeltas(Vec<OutputDelta>);

/// A machine that reads one format. `finish` comes once, after the last character.
trait ToolCallParser: std::fmt::Debug + Send {
    fn push(&mut self, c: char, out: &mut OutputDeltas);
    fn finish(&mut self, out: &mut OutputDeltas);
    /// Whether what comes next belongs to a call: its mark has come, or where it has none its name.
    fn in_call(&self) -> bool;
}

impl ToolFormat {
    /// All, with the names that people type.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Hermes, "hermes"),
        (Self::Brook, "brook"),
        (Self::Llama3Json, "llama3-json"),
        (Self::Mistral, "mistral"),
        (Self::Pythonic, "pythonic"),
    ];

    /// The format that a chat template shows its model.
    pub fn from_template(source: &str) -> Option<Self> {
        let has = |mark: &str| source.contains(mark);
        if has("<tool_call>{\"name\":") {
            Some(Self::Brook)
        } else if has("<tool_call>") && !has("<function=") && !has("<arg_key>") {
            Some(Self::Hermes)
        } else if has("[TOOL_CALLS]") {
            Some(Self::Mistral)
        } else if has("<|python_start|>") || has("[func_name1(") {
            Some(Self::Pythonic)
        } else if has("\"parameters\": ") && has("<|start_header_id|>") {
            Some(Self::Llama3Json)
        } else {
            None
        }
    }

    /// Marks that may be special tokens: the parser must see them.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Brook => &[hermes::OPEN, hermes::CLOSE],
            Self::Llama3Json => &[llama::MARK],
            Self::Mistral => &[mistral::MARK, mistral::ARGUMENTS, mistral::ID],
            Self::Pythonic => &pythonic::MARKS,
        }
    }

    /// Whether ids of calls must have the nine characters that Mistral's templates insist on.
    pub fn short_ids(self) -> bool {
        self == Self::Mistral
    }

    fn parser(self, names: ToolNames, order: KeyOrder) -> Box<dyn ToolCallParser> {
        match self {
            Self::Hermes | Self::Brook => Box::new(hermes::HermesParser::new()),
            Self::Llama3Json => Box::new(llama::LlamaParser::new(names, order)),
            Self::Mistral => Box::new(mistral::MistralParser::new()),
            Self::Pythonic => Box::new(pythonic::PythonicParser::new(names)),
        }
    }
}

impl ReasoningFormat {
    /// All, with the names that people type.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Think, "think"), (Self::Mistral, "mistral")];

    /// The format that a chat template shows.
    pub fn from_template(source: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter().map(|(format, _)| format);
        all.find(|format| format.marks().iter().any(|mark| source.contains(mark)))
    }

    /// What opens and what closes the thoughts. They may be special tokens.
    pub fn marks(self) -> &'static [&'static str; 2] {
        match self {
            Self::Think => &["<think>", "</think>"],
            Self::Mistral => &["[THINK]", "[/THINK]"],
        }
    }

    /// Whether a prompt ends inside the model's thoughts.
    pub fn is_open_after(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.marks()[0])
    }

    /// Whether a prompt ends behind them: there are none then.
    pub fn is_closed_after(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.marks()[1])
    }
}

impl OutputDeltas {
    fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(OutputDelta::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(OutputDelta::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(OutputDelta::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(OutputDelta::Reasoning(text.to_owned())),
        }
    }

    fn call(&mut self, name: String) {
        self.0.push(OutputDelta::CallStart(name));
    }

    fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(OutputDelta::Arguments(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(OutputDelta::Arguments(text.to_owned())),
        }
    }

    fn end_call(&mut self) {
        self.0.push(OutputDelta::CallEnd);
    }

    /// Takes all pieces; the room that they took is kept.
    pub fn drain(&mut self) -> impl Iterator<Item = OutputDelta> + '_ {
        self.0.drain(..)
    }

    /// Leaves out what comes after the first call that is complete; says whether there is one.
    fn cut_after_call(&mut self) -> bool {
        let end = self
            .0
            .iter()
            .position(|piece| *piece == OutputDelta::CallEnd);
        self.0.truncate(end.map_or(self.0.len(), |at| at + 1));
        end.is_some()
    }
}
