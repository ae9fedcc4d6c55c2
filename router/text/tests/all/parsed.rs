//! An output's text, parsed.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use penstock_text::tool_parsers::{
    OutputDelta, OutputDeltas, OutputParserOptions, ReasoningFormat, ToolFields, ToolFormat,
};

/// The names of the tool fields in requests.
pub(crate) const TOOL_FIELDS: ToolFields = ToolFields {
    list: "tools",
    name: "name",
    parameters: "parameters",
    choice: "tool_choice",
    forcing: "`required`",
};

/// An output after its deltas are joined.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ParsedOutput {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<(String, String)>,
    /// The number of complete calls.
    pub(crate) complete: usize,
}

pub(crate) fn parser_options(format: ToolFormat) -> OutputParserOptions {
    let names = ["f", "get_weather", "a.b-c"].map(str::to_owned);
    OutputParserOptions {
        tools: Some((format, Arc::from(names))),
        reasoning: Some(ReasoningFormat::Think),
        ..OutputParserOptions::default()
    }
}

pub(crate) fn read_with<'a>(
    parser_options: &OutputParserOptions,
    parts: impl IntoIterator<Item = &'a str>,
) -> ParsedOutput {
    let mut parser = parser_options.parser();
    let mut pieces = OutputDeltas::default();
    let mut read = ParsedOutput::default();
    for part in parts {
        parser.feed(part, &mut pieces);
        read.take(&mut pieces);
    }
    parser.finish(&mut pieces);
    read.take(&mut pieces);
    read
}

pub(crate) fn read(format: ToolFormat, text: &str) -> ParsedOutput {
    read_with(&parser_options(format), [text])
}

impl ParsedOutput {
    fn take(&mut self, pieces: &mut OutputDeltas) {
        for piece in pieces.drain() {
            match piece {
                OutputDelta::Content(text) => self.content += &text,
                OutputDelta::Reasoning(text) => self.reasoning += &text,
                OutputDelta::CallStart { name, .. } => self.calls.push((name, String::new())),
                OutputDelta::Arguments(text) => self.calls.last_mut().unwrap().1 += &text,
                OutputDelta::CallEnd => self.complete += 1,
            }
        }
    }
}

/// A text, its content, and its calls with their arguments.
pub(crate) type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

pub(crate) fn check(format: ToolFormat, cases: &[Case<'_>]) {
    for (text, content, calls) in cases {
        let read = read(format, text);
        assert_eq!(read.content, *content, "{text}");
        let found: Vec<_> = read
            .calls
            .iter()
            .map(|(n, a)| (n.as_str(), a.as_str()))
            .collect();
        assert_eq!(found, *calls, "{text}");
    }
}
