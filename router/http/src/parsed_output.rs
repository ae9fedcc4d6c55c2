//! Parses outputs into reasoning, content and tool calls, as a stream or as a whole.

use std::task::{Context, Poll, ready};

use penstock_request::error::ApiError;
use penstock_request::grammar_spec::{GrammarFormat, OutputConstraint};
use penstock_text::generation::{FinishReason, Generation, Generator, TextEnd, TextEvent};
use penstock_text::tool_parsers::{
    OutputDelta, OutputDeltas, OutputParser, OutputParserOptions, ParameterTypes, ToolChoiceMode,
    ToolFields, ToolFormat, ToolSet,
};

use super::ids::call_id;
use super::response_headers;

/// Parses the output of a generation as it streams.
pub(super) struct GenerationParser {
    reader: OutputParser,
    pieces: OutputDeltas,
    end: Option<OutputEnd>,
}

/// How an output ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OutputEnd {
    pub(super) reason: FinishReason,
    /// The stop string that ended it.
    pub(super) stop_string: Option<String>,
}

/// A parsed output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedOutput {
    pub(super) content: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<Call>,
}

/// A tool call, complete unless the output was cut off in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
}

impl GenerationParser {
    pub(super) fn new(parser_options: &OutputParserOptions) -> Self {
        Self {
            reader: parser_options.parser(),
            pieces: OutputDeltas::default(),
            end: None,
        }
    }

    /// Waits for the next step of the generation and parses its text; `drain` returns the pieces.
    pub(super) fn poll(
        &mut self,
        generation: &mut Generation,
        event: &mut TextEvent,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ApiError>> {
        ready!(poll_step(generation, event, cx))?;
        self.feed(event.delta());
        self.close(generation, event);
        Poll::Ready(Ok(()))
    }

    /// Parses more of a step's text. Callers of `poll_step` pass each part of it.
    pub(super) fn feed(&mut self, text: &str) {
        self.reader.feed(text, &mut self.pieces);
    }

    /// Takes the end of the output from a step, after its text was parsed.
    pub(super) fn close(&mut self, generation: &mut Generation, event: &mut TextEvent) {
        self.end = event.end.take().as_ref().map(OutputEnd::from_text_end);
        if self.end.is_some() {
            self.reader.finish(&mut self.pieces);
        } else if self.reader.is_over() {
            generation.finish();
            self.end = Some(OutputEnd {
                reason: FinishReason::StopToken,
                stop_string: None,
            });
        }
    }

    /// Returns the pieces parsed since the last call.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = OutputDelta> + '_ {
        self.pieces.drain()
    }

    /// Returns how the output ended, if it has.
    pub(super) fn end(&self) -> Option<&OutputEnd> {
        self.end.as_ref()
    }
}

/// Waits for the next step of a generation. A stream that ends without an end event is an error.
pub(super) fn poll_step(
    generation: &mut Generation,
    event: &mut TextEvent,
    cx: &mut Context<'_>,
) -> Poll<Result<(), ApiError>> {
    let outcome = ready!(generation.poll_event(cx, event));
    Poll::Ready(outcome.unwrap_or_else(|| Err(response_headers::incomplete_generation())))
}

/// Runs a generation to its end and calls `on_event` with each event.
pub(super) async fn collect(
    generation: &mut Generation,
    mut on_event: impl FnMut(&Generation, &TextEvent),
) -> Result<(ParsedOutput, OutputEnd), ApiError> {
    let mut parser = GenerationParser::new(generation.parser_options());
    let mut event = TextEvent::default();
    let mut answer = ParsedOutput::default();
    loop {
        std::future::poll_fn(|cx| parser.poll(generation, &mut event, cx)).await?;
        on_event(generation, &event);
        for piece in parser.drain() {
            answer.take(piece, generation.parser_options());
        }
        if let Some(end) = parser.end.take() {
            return Ok((answer, end));
        }
    }
}

impl OutputEnd {
    pub(super) fn from_text_end(end: &TextEnd) -> Self {
        Self {
            reason: end.reason,
            stop_string: end.stop_string().map(str::to_owned),
        }
    }
}

impl ParsedOutput {
    fn take(&mut self, piece: OutputDelta, parser_options: &OutputParserOptions) {
        match (piece, self.calls.last_mut()) {
            (OutputDelta::Content(text), _) => self.content.push_str(&text),
            (OutputDelta::Reasoning(text), _) => self.reasoning.push_str(&text),
            (OutputDelta::CallStart { name, id }, _) => self.calls.push(Call {
                id: call_id(id, parser_options),
                name,
                arguments: String::new(),
            }),
            (OutputDelta::Arguments(text), Some(call)) => call.arguments.push_str(&text),
            (OutputDelta::Arguments(_), None) | (OutputDelta::CallEnd, _) => {}
        }
    }
}

/// How a request's tools affect its prompt and its output.
#[derive(Debug, Default)]
pub(super) struct ToolPlan {
    /// The tools as JSON for the chat template.
    pub(super) tools: Option<String>,
    /// How the output is parsed.
    pub(super) parser_options: OutputParserOptions,
    /// The grammar of the output, if any.
    pub(super) grammar: Option<OutputConstraint>,
}

/// Combines the tools with the response grammar, which applies to outputs that are no tool call.
pub(super) fn plan_tools(
    tool_set: Option<&ToolSet>,
    generator: &Generator,
    grammar: Option<OutputConstraint>,
) -> Result<ToolPlan, ApiError> {
    let mut parser_options = OutputParserOptions {
        reasoning: generator.reasoning_format(),
        ..OutputParserOptions::default()
    };
    let Some(tool_set) = tool_set.filter(|tool_set| tool_set.choice != ToolChoiceMode::None) else {
        return Ok(ToolPlan {
            parser_options,
            grammar,
            ..ToolPlan::default()
        });
    };
    let format = generator.tool_format();
    let Some(format) = format else {
        let rule =
            "cannot be used: the server has no tool-call parser for this model; set --tool-parser";
        return Err(ApiError::at(tool_set.fields.list, rule));
    };
    parser_options.tools = Some((format, tool_set.names()));
    if format.needs_types() {
        parser_options.parameter_types = ParameterTypes::new(tool_set);
    }
    parser_options.one_call = !tool_set.parallel;
    parser_options.named_choice = matches!(tool_set.choice, ToolChoiceMode::Named(_));
    parser_options.strict = tool_set.is_strict();
    Ok(ToolPlan {
        tools: Some(tool_set.to_json()),
        parser_options,
        grammar: grammar_with_calls(format, tool_set, grammar)?,
    })
}

/// Returns the grammar of an output that may contain tool calls.
fn grammar_with_calls(
    format: ToolFormat,
    tool_set: &ToolSet,
    grammar: Option<OutputConstraint>,
) -> Result<Option<OutputConstraint>, ApiError> {
    let fields = tool_set.fields;
    let Some(document) = grammar else {
        let text = format.call_grammar(tool_set);
        return Ok(text.map(|text| calls_grammar(fields.list, text)));
    };
    let field = document.field;
    if tool_set.forces_call() {
        let rule = format!("that forces a call cannot go with `{field}`: the output is only calls");
        return Err(ApiError::at(fields.choice, &rule));
    }
    let text = format.call_grammar_or(tool_set, &document).ok_or_else(|| {
        let ToolFields {
            list,
            choice,
            forcing,
            ..
        } = fields;
        let rule = format!(
            "`{field}` cannot go with `{list}` and `{choice}` `auto`: {}. Send `{choice}` `none` or \
             {forcing}",
            format.why_no_document()
        );
        ApiError::validation(field, rule)
    })?;
    Ok(Some(calls_grammar(field, text)))
}

fn calls_grammar(field: &'static str, text: String) -> OutputConstraint {
    OutputConstraint {
        kind: GrammarFormat::ToolCalls,
        field,
        text,
        complete: true,
    }
}
