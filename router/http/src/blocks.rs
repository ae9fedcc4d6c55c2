//! Splits an output into typed blocks, which stream one after the other. Used by the Messages and
//! Responses APIs.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use penstock_request::error::ApiError;
use penstock_text::generation::{FinishReason, Generation, TextEvent};
use penstock_text::tool_parsers::{OutputDelta, OutputParserOptions};

use super::ids::call_id;
use super::parsed_output::{GenerationParser, OutputEnd, poll_step};
use super::sse::{EventSource, Flow, FrameBuffer};

/// The type of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Text for the user.
    Text,
    /// Reasoning.
    Reasoning,
    /// A tool call, whose text is its arguments.
    Call {
        /// The call's id.
        id: String,
        /// The function's name.
        name: String,
    },
}

/// A change of an output's blocks. At most one block is open at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockChange {
    /// A block begins.
    Begin(Block),
    /// The open block is extended.
    Delta(String),
    /// The open block ends; `cut` if the token limit was reached.
    End { cut: bool },
}

/// Writes an output's blocks in the format of an API.
pub(super) trait BlockWriter: Send + Unpin + 'static {
    /// Appends the events before the first block.
    fn begin(&mut self, out: &mut BytesMut);

    /// Appends the events of a change.
    fn write_change(&mut self, change: BlockChange, out: &mut BytesMut);

    /// Appends the events after the last block.
    fn finish(&mut self, generation: &Generation, end: &OutputEnd, out: &mut BytesMut);

    /// Appends the event of an error.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut);

    /// Whether `on_token` is called with each token, before the changes that it causes.
    fn wants_tokens(&self) -> bool {
        false
    }

    /// Records the token at `index` of an event; `text` is the token's own text.
    fn on_token(&mut self, _: &Generation, _: &TextEvent, _index: usize, _text: &str) {}
}

/// Parses an output and writes its blocks.
pub(super) struct BlockStream<T> {
    generation: Generation,
    parser: GenerationParser,
    blocks: BlockBuilder,
    writer: T,
    started: bool,
}

/// Turns parsed pieces into block changes.
#[derive(Debug, Default)]
struct BlockBuilder {
    open: Option<OpenBlockKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlockKind {
    Text,
    Reasoning,
    Call,
}

impl<T: BlockWriter> BlockStream<T> {
    pub(super) fn new(generation: Generation, writer: T) -> Self {
        Self {
            parser: GenerationParser::new(generation.parser_options()),
            generation,
            blocks: BlockBuilder::default(),
            writer,
            started: false,
        }
    }

    /// Runs the generation to its end and drops the events that were written.
    pub(super) async fn run(mut self) -> Result<(Generation, T), ApiError> {
        let mut event = TextEvent::default();
        let mut out = BytesMut::new();
        while poll_fn(|cx| self.poll(cx, &mut event, &mut out)).await? == Flow::More {
            out.clear();
        }
        Ok((self.generation, self.writer))
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        event: &mut TextEvent,
        out: &mut BytesMut,
    ) -> Poll<Result<Flow, ApiError>> {
        if !std::mem::replace(&mut self.started, true) {
            self.writer.begin(out);
        }
        ready!(poll_step(&mut self.generation, event, cx))?;
        if self.writer.wants_tokens() {
            for (index, (_, text, delta)) in event.tokens().enumerate() {
                self.writer.on_token(&self.generation, event, index, text);
                self.parser.feed(delta);
                self.write_pieces(out);
            }
            self.parser.feed(event.rest());
        } else {
            self.parser.feed(event.delta());
        }
        self.parser.close(&mut self.generation, event);
        self.write_pieces(out);
        let Some(end) = self.parser.end() else {
            return Poll::Ready(Ok(Flow::More));
        };
        let cut = end.reason == FinishReason::Length;
        let writer = &mut self.writer;
        self.blocks
            .end(cut, &mut |change| writer.write_change(change, out));
        writer.finish(&self.generation, end, out);
        Poll::Ready(Ok(Flow::End))
    }

    fn write_pieces(&mut self, out: &mut BytesMut) {
        let writer = &mut self.writer;
        let mut emit = |change| writer.write_change(change, out);
        for piece in self.parser.drain() {
            self.blocks
                .take(piece, self.generation.parser_options(), &mut emit);
        }
    }
}

impl<T: BlockWriter> EventSource for BlockStream<T> {
    fn poll_events(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow> {
        let FrameBuffer { event, out } = buffer;
        let flow = ready!(self.poll(cx, event, out)).unwrap_or_else(|error| {
            self.writer.fail(&error, out);
            Flow::End
        });
        Poll::Ready(flow)
    }
}

impl BlockBuilder {
    fn take(
        &mut self,
        piece: OutputDelta,
        parser_options: &OutputParserOptions,
        emit: &mut impl FnMut(BlockChange),
    ) {
        match piece {
            OutputDelta::Content(text) => self.more(OpenBlockKind::Text, Block::Text, text, emit),
            OutputDelta::Reasoning(text) => {
                self.more(OpenBlockKind::Reasoning, Block::Reasoning, text, emit);
            }
            OutputDelta::CallStart { name, id } => {
                self.end(false, emit);
                self.open = Some(OpenBlockKind::Call);
                let id = call_id(id, parser_options);
                emit(BlockChange::Begin(Block::Call { id, name }));
            }
            OutputDelta::Arguments(text) => emit(BlockChange::Delta(text)),
            OutputDelta::CallEnd => self.end(false, emit),
        }
    }

    /// Extends the open block if it has this kind; otherwise opens a new one.
    fn more(
        &mut self,
        kind: OpenBlockKind,
        block: Block,
        text: String,
        emit: &mut impl FnMut(BlockChange),
    ) {
        if self.open != Some(kind) {
            self.end(false, emit);
            self.open = Some(kind);
            emit(BlockChange::Begin(block));
        }
        emit(BlockChange::Delta(text));
    }

    fn end(&mut self, cut: bool, emit: &mut impl FnMut(BlockChange)) {
        if self.open.take().is_some() {
            emit(BlockChange::End { cut });
        }
    }
}
