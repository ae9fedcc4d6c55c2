//! An answer's text, piece by piece.

use super::json_call::KeyOrder;
use super::reasoning::ReasoningSplitter;
use super::{OutputDeltas, ReasoningFormat, ToolCallParser, ToolFormat, ToolNames};
use crate::engine::types::ReasoningMarkers;

/// How an answer is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputParserOptions {
    /// Calls in this format, of functions of these names. `None`: all text is content.
    pub tools: Option<(ToolFormat, ToolNames)>,
    /// Whether calls that nothing forces are guided: only what a guide begins with is one then.
    pub strict: bool,
    /// Thoughts in this format.
    pub reasoning: Option<ReasoningFormat>,
    /// Whether the prompt ends inside the thoughts.
    pub in_reasoning: bool,
    /// Whether the answer ends with its first call.
    pub one_call: bool,
    /// Whether the request says which function is called: that is no decision of the model then.
    pub named_choice: bool,
    /// Whether its call is told by the older name, `function_call`.
    pub legacy_function_call: bool,
    /// Whether thoughts may come first; known when the prompt is.
    pub may_think: bool,
    /// Where the answer shows its thoughts.
    pub reasoning_display: ReasoningDisplay,
}

/// Where an answer shows its thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningDisplay {
    /// Apart from the content.
    #[default]
    Separate,
    /// In the content, as the model wrote them, marks and blanks included.
    InContent,
    /// Nowhere.
    Hidden,
}

/// Reads one answer.
#[derive(Debug)]
pub struct OutputParser {
    splitter: Option<ReasoningSplitter>,
    tools: Option<Box<dyn ToolCallParser>>,
    one_call: bool,
    over: bool,
}

impl OutputParserOptions {
    /// Whether all text is content.
    pub fn is_plain(&self) -> bool {
        let separate = self.reasoning_display != ReasoningDisplay::InContent;
        self.tools.is_none() && (self.reasoning.is_none() || !separate)
    }

    /// Marks that may be special tokens, whose text must be part of the answer then.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let tools = self.tools.iter().flat_map(|(format, _)| format.marks());
        let reasoning = self.reasoning.iter().flat_map(|format| format.marks());
        tools.chain(reasoning).copied()
    }

    /// The same, for an answer to this prompt, which goes on with what the model has said if it
    /// `continues`.
    #[must_use]
    pub fn after_prompt(self, prompt: &str, continues: bool) -> Self {
        let in_reasoning = self
            .reasoning
            .is_some_and(|format| format.is_open_after(prompt));
        let may_think = |format: ReasoningFormat| {
            in_reasoning || !(continues || format.is_closed_after(prompt))
        };
        Self {
            in_reasoning,
            may_think: self.reasoning.is_some_and(may_think),
            ..self
        }
    }

    /// The thoughts that may come before what the answer must spell.
    pub fn expected_reasoning(&self) -> Option<ReasoningMarkers> {
        let format = self.reasoning.filter(|_| self.may_think)?;
        Some(ReasoningMarkers {
            marks: *format.marks(),
            started: self.in_reasoning,
        })
    }

    /// A reader at the start of an answer.
    pub fn parser(&self) -> OutputParser {
        let splitter =
            |format| ReasoningSplitter::new(format, self.in_reasoning, self.reasoning_display);
        let order = match self.strict {
            true => KeyOrder::NameFirst,
            false => KeyOrder::Any,
        };
        OutputParser {
            splitter: self.reasoning.map(splitter),
            tools: self
                .tools
                .as_ref()
                .map(|(format, names)| format.parser(names.clone(), order)),
            one_call: self.one_call,
            over: false,
        }
    }
}

impl OutputParser {
    /// Reads more text of the answer.
    pub fn feed(&mut self, text: &str, out: &mut OutputDeltas) {
        if self.over {
            return;
        }
        let tools = &mut self.tools;
        let mut rest = |text: &str, out: &mut OutputDeltas| feed(tools, text, out);
        match &mut self.splitter {
            Some(splitter) => text.chars().for_each(|c| splitter.push(c, out, &mut rest)),
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
    pub fn finish(&mut self, out: &mut OutputDeltas) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let tools = &mut self.tools;
        if let Some(splitter) = &mut self.splitter {
            splitter.finish(out, &mut |text, out| feed(tools, text, out));
        }
        if let Some(tools) = tools {
            tools.finish(out);
        }
    }
}

fn feed(tools: &mut Option<Box<dyn ToolCallParser>>, text: &str, out: &mut OutputDeltas) {
    match tools {
        Some(tools) => text.chars().for_each(|c| tools.push(c, out)),
        None => out.content(text),
    }
}
