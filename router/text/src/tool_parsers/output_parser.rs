//! The incremental parser of a model's output, and the byte ranges of its tool calls, where stop
//! strings are ignored.

use penstock_request::grammar_spec::{ExpectedReasoning, GrammarFormat, ReasoningMarkers};

use super::answer_tags::AnswerTags;
use super::harmony::{self, HarmonyParser};
use super::reasoning::ReasoningSplitter;
use super::{OutputDeltas, ParameterTypes, ReasoningFormat, ToolCallParser, ToolFormat, ToolNames};

/// How to parse an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputParserOptions {
    /// The format of calls and the names of the tools. `None`: all text is content.
    pub tools: Option<(ToolFormat, ToolNames)>,
    /// The types of the tools' parameters, for formats that need them.
    pub parameter_types: ParameterTypes,
    /// Whether a grammar constrains calls under `auto`. Only what begins as the grammar says is
    /// then a call.
    pub strict: bool,
    /// The format of reasoning, if any.
    pub reasoning: Option<ReasoningFormat>,
    /// Whether the output begins inside the reasoning.
    pub in_reasoning: bool,
    /// Whether the output ends with its first call.
    pub one_call: bool,
    /// Whether the request names the function to call; the finish reason is then not `tool_calls`.
    pub named_choice: bool,
    /// Whether the call is reported in the deprecated field `function_call`.
    pub legacy_function_call: bool,
    /// Whether the output may begin with reasoning; known once the prompt is.
    pub may_think: bool,
    /// Where the reply shows reasoning.
    pub reasoning_display: ReasoningDisplay,
    /// The part of the prompt that the output continues, for harmony's headers.
    pub continued: String,
}

/// Where the reply shows reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningDisplay {
    /// Apart from the content.
    #[default]
    Separate,
    /// In the content as the model wrote it, including marks and whitespace.
    InContent,
    /// Nowhere.
    Hidden,
}

/// A parser of one output.
#[derive(Debug)]
pub struct OutputParser {
    splitter: Option<ReasoningSplitter>,
    answer_tags: Option<AnswerTags>,
    tools: Option<Box<dyn ToolCallParser>>,
    one_call: bool,
    over: bool,
}

/// The calls in the output parsed so far.
#[derive(Debug)]
pub struct CallSpans {
    parser: OutputParser,
    parsed: usize,
    /// (start, end) byte offsets in the output. The end of the last span is `None` while it is
    /// open.
    spans: Vec<(usize, Option<usize>)>,
}

impl OutputParserOptions {
    /// Whether all text is content.
    pub fn is_plain(&self) -> bool {
        let separate = self.reasoning_display != ReasoningDisplay::InContent;
        self.tools.is_none() && (self.reasoning.is_none() || !separate) && !self.is_harmony()
    }

    /// Whether the output consists of harmony messages.
    pub fn is_harmony(&self) -> bool {
        let tools = self.tools.as_ref().map(|(format, _)| *format);
        self.reasoning == Some(ReasoningFormat::Harmony) || tools == Some(ToolFormat::Harmony)
    }

    /// Returns the marks that may be special tokens and must appear in the output's text.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let tools = self.tools.iter().flat_map(|(format, _)| format.marks());
        let reasoning = self.reasoning.iter().flat_map(|format| format.all_marks());
        let tags = self.reasoning.and_then(ReasoningFormat::answer_tags);
        tools
            .chain(reasoning)
            .chain(tags.into_iter().flatten())
            .copied()
    }

    /// Returns these options for an output to `prompt`, which ends in the model's own text if it
    /// `continues`.
    #[must_use]
    pub fn after_prompt(self, prompt: &str, continues: bool) -> Self {
        let in_reasoning = self
            .reasoning
            .is_some_and(|format| format.is_open_after(prompt, continues));
        let may_think = |format: ReasoningFormat| {
            in_reasoning || !(continues || format.is_closed_after(prompt))
        };
        let continued = match prompt.rsplit_once(harmony::PROMPT_END) {
            Some((_, text)) if self.is_harmony() => text.to_owned(),
            _ => String::new(),
        };
        Self {
            in_reasoning,
            continued,
            may_think: self.reasoning.is_some_and(may_think),
            ..self
        }
    }

    /// Returns the reasoning that may precede an answer to which a grammar gives a `format`.
    pub fn expected_reasoning(&self, format: Option<GrammarFormat>) -> ExpectedReasoning {
        let harmony = self.reasoning == Some(ReasoningFormat::Harmony);
        match self.reasoning {
            None => ExpectedReasoning::Unknown,
            Some(_) if !self.may_think || (harmony && !self.in_reasoning) => {
                ExpectedReasoning::Closed
            }
            Some(reasoning) => ExpectedReasoning::Between(ReasoningMarkers {
                marks: *reasoning.marks(),
                started: self.in_reasoning,
                header: match format.filter(|_| harmony) {
                    Some(format) => harmony::header_after_reasoning(format, self.strict),
                    None => "",
                },
            }),
        }
    }

    /// Returns what a prompt needs so that reasoning, or the answer to which a grammar gives a
    /// `format`, can follow it directly.
    pub fn header_after(&self, prompt: &str, format: GrammarFormat) -> &'static str {
        if !self.is_harmony() || !prompt.ends_with(harmony::PROMPT_END) {
            ""
        } else if self.reasoning.is_some() {
            harmony::ANALYSIS
        } else if format.document_name().is_some() {
            harmony::FINAL
        } else {
            ""
        }
    }

    /// Returns a parser at the start of an output.
    pub fn parser(&self) -> OutputParser {
        let splitter =
            |format| ReasoningSplitter::new(format, self.in_reasoning, self.reasoning_display);
        let harmony = self.is_harmony();
        let tools = match &self.tools {
            _ if harmony => Some(self.harmony_parser()),
            Some((format, names)) => Some(format.parser(self, names.clone())),
            None => None,
        };
        let separate = self.reasoning_display != ReasoningDisplay::InContent;
        let tags = self.reasoning.and_then(ReasoningFormat::answer_tags);
        OutputParser {
            answer_tags: tags.filter(|_| separate).map(AnswerTags::new),
            splitter: self.reasoning.filter(|_| !harmony).map(splitter),
            tools,
            one_call: self.one_call,
            over: false,
        }
    }

    /// Returns a parser of harmony messages; it parses the reasoning, too.
    pub(super) fn harmony_parser(&self) -> Box<dyn ToolCallParser> {
        let display = match self.reasoning {
            Some(_) => self.reasoning_display,
            None => ReasoningDisplay::InContent,
        };
        let tools = self.tools.as_ref();
        let names = tools.filter(|(format, _)| *format == ToolFormat::Harmony);
        let parser = HarmonyParser::new(names.map(|(_, names)| names.clone()), display);
        Box::new(parser.after(&self.continued))
    }
}

impl OutputParser {
    /// Parses more text of the output.
    pub fn feed(&mut self, text: &str, out: &mut OutputDeltas) {
        if self.over {
            return;
        }
        let (tags, tools) = (&mut self.answer_tags, &mut self.tools);
        let mut rest = |text: &str, out: &mut OutputDeltas| feed(tags, tools, text, out);
        match &mut self.splitter {
            Some(splitter) => text.chars().for_each(|c| splitter.push(c, out, &mut rest)),
            None => rest(text, out),
        }
        self.over = self.one_call && out.cut_after_call();
    }

    /// Whether the only allowed call is complete; later text is ignored.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the next character belongs to a call.
    pub fn is_in_call(&self) -> bool {
        !self.over && self.tools.as_ref().is_some_and(|tools| tools.in_call())
    }

    /// Handles the end of the output.
    pub fn finish(&mut self, out: &mut OutputDeltas) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let (tags, tools) = (&mut self.answer_tags, &mut self.tools);
        if let Some(splitter) = &mut self.splitter {
            splitter.finish(out, &mut |text, out| feed(tags, tools, text, out));
        }
        if let Some(tags) = tags {
            tags.finish(out, &mut |text, out| feed_tools(tools, text, out));
        }
        if let Some(tools) = tools {
            tools.finish(out);
        }
    }
}

/// Parses text that is no reasoning.
fn feed(
    tags: &mut Option<AnswerTags>,
    tools: &mut Option<Box<dyn ToolCallParser>>,
    text: &str,
    out: &mut OutputDeltas,
) {
    let mut rest = |text: &str, out: &mut OutputDeltas| feed_tools(tools, text, out);
    match tags {
        Some(tags) => text.chars().for_each(|c| tags.push(c, out, &mut rest)),
        None => rest(text, out),
    }
}

/// Parses text of the reply.
fn feed_tools(tools: &mut Option<Box<dyn ToolCallParser>>, text: &str, out: &mut OutputDeltas) {
    match tools {
        Some(tools) => text.chars().for_each(|c| tools.push(c, out)),
        None => out.content(text),
    }
}

impl CallSpans {
    /// Creates one for an output with these options; `None` if it cannot contain calls.
    pub fn for_options(parser_options: &OutputParserOptions) -> Option<Box<Self>> {
        parser_options.tools.as_ref()?;
        Some(Box::new(Self {
            parser: parser_options.parser(),
            parsed: 0,
            spans: Vec::new(),
        }))
    }

    /// Returns whether the byte at `position` of `answer` belongs to a call. `answer` must extend
    /// the text of the previous call.
    pub fn contains(&mut self, answer: &str, position: usize) -> bool {
        for c in answer[self.parsed..].chars() {
            self.parsed += c.len_utf8();
            self.parser
                .feed(c.encode_utf8(&mut [0; 4]), &mut OutputDeltas::default());
            let open = self.spans.last().is_some_and(|(_, end)| end.is_none());
            match self.spans.last_mut() {
                Some((_, end)) if open && !self.parser.is_in_call() => *end = Some(self.parsed),
                _ if !open && self.parser.is_in_call() => self.spans.push((self.parsed, None)),
                _ => {}
            }
        }
        let holds = |&(start, end): &(usize, Option<usize>)| {
            start <= position && end.is_none_or(|end| position < end)
        };
        self.spans.iter().any(holds)
    }
}
