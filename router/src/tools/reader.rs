//! An answer's text, piece by piece.

use super::json_call::Order;
use super::thought::Thought;
use super::{Machine, Pieces, ThoughtFormat, ToolFormat, ToolNames};
use crate::engine::types::Thoughts;

/// How an answer is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Calls in this format, of functions of these names. `None`: all text is content.
    pub tools: Option<(ToolFormat, ToolNames)>,
    /// Whether calls that nothing forces are guided: only what a guide begins with is one then.
    pub strict: bool,
    /// Thoughts in this format.
    pub thoughts: Option<ThoughtFormat>,
    /// Whether the prompt ends inside the thoughts.
    pub in_thought: bool,
    /// Whether the answer ends with its first call.
    pub one_call: bool,
    /// Whether the request says which function is called: that is no decision of the model then.
    pub named: bool,
    /// Whether its call is told by the older name, `function_call`.
    pub older: bool,
    /// Whether thoughts may come first; known when the prompt is.
    pub may_think: bool,
    /// Where the answer shows its thoughts.
    pub shown: ShownThoughts,
}

/// Where an answer shows its thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownThoughts {
    /// Apart from the content.
    #[default]
    Apart,
    /// In the content, as the model wrote them, marks and blanks included.
    InContent,
    /// Nowhere.
    Nowhere,
}

/// Reads one answer.
#[derive(Debug)]
pub struct AnswerReader {
    thought: Option<Thought>,
    tools: Option<Box<dyn Machine>>,
    one_call: bool,
    over: bool,
}

impl Reading {
    /// Whether all text is content.
    pub fn is_plain(&self) -> bool {
        let apart = self.shown != ShownThoughts::InContent;
        self.tools.is_none() && (self.thoughts.is_none() || !apart)
    }

    /// Marks that may be special tokens, whose text must be part of the answer then.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let tools = self.tools.iter().flat_map(|(format, _)| format.marks());
        let thoughts = self.thoughts.iter().flat_map(|format| format.marks());
        tools.chain(thoughts).copied()
    }

    /// The same, for an answer to this prompt, which goes on with what the model has said if it
    /// `continues`.
    #[must_use]
    pub fn after(self, prompt: &str, continues: bool) -> Self {
        let in_thought = self
            .thoughts
            .is_some_and(|format| format.is_open_after(prompt));
        let may_think =
            |format: ThoughtFormat| in_thought || !(continues || format.is_closed_after(prompt));
        Self {
            in_thought,
            may_think: self.thoughts.is_some_and(may_think),
            ..self
        }
    }

    /// The thoughts that may come before what the answer must spell.
    pub fn thoughts_to_come(&self) -> Option<Thoughts> {
        let format = self.thoughts.filter(|_| self.may_think)?;
        Some(Thoughts {
            marks: *format.marks(),
            begun: self.in_thought,
        })
    }

    /// A reader at the start of an answer.
    pub fn reader(&self) -> AnswerReader {
        let thought = |format| Thought::new(format, self.in_thought, self.shown);
        let order = match self.strict {
            true => Order::NameFirst,
            false => Order::Any,
        };
        AnswerReader {
            thought: self.thoughts.map(thought),
            tools: self
                .tools
                .as_ref()
                .map(|(format, names)| format.machine(names.clone(), order)),
            one_call: self.one_call,
            over: false,
        }
    }
}

impl AnswerReader {
    /// Reads more text of the answer.
    pub fn feed(&mut self, text: &str, out: &mut Pieces) {
        if self.over {
            return;
        }
        let tools = &mut self.tools;
        let mut rest = |text: &str, out: &mut Pieces| feed(tools, text, out);
        match &mut self.thought {
            Some(thought) => text.chars().for_each(|c| thought.push(c, out, &mut rest)),
            None => rest(text, out),
        }
        self.over = self.one_call && out.cut_after_call();
    }

    /// Whether the answer has had its one call: nothing more of it counts.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether what comes next belongs to a call.
    pub fn is_in_call(&self) -> bool {
        !self.over && self.tools.as_ref().is_some_and(|tools| tools.in_call())
    }

    /// Reads the answer's end.
    pub fn finish(&mut self, out: &mut Pieces) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let tools = &mut self.tools;
        if let Some(thought) = &mut self.thought {
            thought.finish(out, &mut |text, out| feed(tools, text, out));
        }
        if let Some(tools) = tools {
            tools.finish(out);
        }
    }
}

fn feed(tools: &mut Option<Box<dyn Machine>>, text: &str, out: &mut Pieces) {
    match tools {
        Some(tools) => text.chars().for_each(|c| tools.push(c, out)),
        None => out.content(text),
    }
}
