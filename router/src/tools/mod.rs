//! What an answer's text means: thoughts, content and tool calls.
//!
//! Each format is a machine that takes one character at a time, so the result cannot depend on how
//! the text is cut into tokens. Text that begins like a call and turns out to be none is content.

mod guided;
mod json_call;
mod llama;
mod mistral;
mod offer;
mod prose;
mod pythonic;
mod reader;
mod spans;
mod tagged;
mod thought;

use std::sync::Arc;

use self::json_call::Order;
pub use self::offer::{Choice, MOST_TOOLS, Offer, OfferFields, Tool};
pub(crate) use self::offer::{LONGEST_NAME, NAME_SYMBOLS};
pub use self::reader::{AnswerReader, Reading, ShownThoughts};
pub use self::spans::CallSpans;

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
pub enum ThoughtFormat {
    /// `<think>..</think>`: DeepSeek R1, Qwen 3 and many more.
    Think,
    /// `[THINK]..[/THINK]`: Magistral.
    Mistral,
}

/// A part of an answer. Parts of one kind that follow each other belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text for the user.
    Content(String),
    /// What the model thought before it answered.
    Thought(String),
    /// A call begins, of the function of this name.
    Call(String),
    /// More of the arguments of the call that began last: JSON in pieces.
    Arguments(String),
    /// The call that began last is complete.
    CallEnd,
}

/// Names of the functions that a request offers.
pub type ToolNames = Arc<[String]>;

/// Pieces in order; text is appended to the last one where it is of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Piece>);

/// A machine that reads one format. `finish` comes once, after the last character.
trait Machine: std::fmt::Debug + Send {
    fn push(&mut self, c: char, out: &mut Pieces);
    fn finish(&mut self, out: &mut Pieces);
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
    pub fn of_template(source: &str) -> Option<Self> {
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
            Self::Hermes | Self::Brook => &[tagged::OPEN, tagged::CLOSE],
            Self::Llama3Json => &[llama::MARK],
            Self::Mistral => &[mistral::MARK, mistral::ARGUMENTS, mistral::ID],
            Self::Pythonic => &pythonic::MARKS,
        }
    }

    /// Whether ids of calls must have the nine characters that Mistral's templates insist on.
    pub fn short_ids(self) -> bool {
        self == Self::Mistral
    }

    fn machine(self, names: ToolNames, order: Order) -> Box<dyn Machine> {
        match self {
            Self::Hermes | Self::Brook => Box::new(tagged::Tagged::new()),
            Self::Llama3Json => Box::new(llama::Llama::new(names, order)),
            Self::Mistral => Box::new(mistral::Mistral::new()),
            Self::Pythonic => Box::new(pythonic::Pythonic::new(names)),
        }
    }
}

impl ThoughtFormat {
    /// All, with the names that people type.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Think, "think"), (Self::Mistral, "mistral")];

    /// The format that a chat template shows.
    pub fn of_template(source: &str) -> Option<Self> {
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

impl Pieces {
    fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Content(text.to_owned())),
        }
    }

    fn thought(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Thought(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Thought(text.to_owned())),
        }
    }

    fn call(&mut self, name: String) {
        self.0.push(Piece::Call(name));
    }

    fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Arguments(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Arguments(text.to_owned())),
        }
    }

    fn end_call(&mut self) {
        self.0.push(Piece::CallEnd);
    }

    /// Takes all pieces; the room that they took is kept.
    pub fn drain(&mut self) -> impl Iterator<Item = Piece> + '_ {
        self.0.drain(..)
    }

    /// Leaves out what comes after the first call that is complete; says whether there is one.
    fn cut_after_call(&mut self) -> bool {
        let end = self.0.iter().position(|piece| *piece == Piece::CallEnd);
        self.0.truncate(end.map_or(self.0.len(), |at| at + 1));
        end.is_some()
    }
}
