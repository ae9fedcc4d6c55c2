//! An answer as blocks of one kind each, begun, filled and ended one after the other.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;

use super::ids::call_id;
use super::parsed_output::{GenerationParser, OutputEnd, poll_step};
use super::sse::{EventSource, Flow, FrameBuffer};
use crate::error::ApiError;
use crate::generation::{FinishReason, Generation, TextEvent};
use crate::tool_parsers::{OutputDelta, OutputParserOptions};

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Text for the user.
    Text,
    /// What the model thought.
    Reasoning,
    /// A call, whose text is its arguments.
    Call {
        /// Its id.
        id: String,
        /// The function's name.
        name: String,
    },
}

/// What happens to an answer's blocks. One is open at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockChange {
    /// A block begins.
    Begin(Block),
    /// The open block has more text.
    Delta(String),
    /// The open block ends; `cut`: because the tokens ran out.
    End { cut: bool },
}

/// Tells an answer's blocks to a client.
pub(super) trait BlockWriter: Send + Unpin + 'static {
    /// Appends what comes before the first block.
    fn begin(&mut self, out: &mut BytesMut);

    /// Appends what a change says.
    fn write_change(&mut self, change: BlockChange, out: &mut BytesMut);

    /// Appends what comes after the last block.
    fn finish(&mut self, generation: &Generation, end: &OutputEnd, out: &mut BytesMut);

    /// Appends how the answer failed.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut);

    /// Whether each token is shown to `token` before the changes that it brings.
    fn wants_tokens(&self) -> bool {
        false
    }

    /// Takes note of the token at `index` of an event, with its own text.
    fn on_token(&mut self, _: &Generation, _: &TextEvent, _index: usize, _text: &str) {}
}

/// Reads an answer and has it told.
pub(super) struct BlockStream<T> {
    generation: Generation,
    parser: GenerationParser,
    blocks: BlockBuilder,
    writer: T,
    started: bool,
}

/// Makes blocks of pieces.
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

    /// Runs the answer to its end. What the teller writes on the way is dropped.
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
                self.more(OpenBlockKind::Reasoning, Block::Reasoning, text, emit)
            }
            OutputDelta::CallStart(name) => {
                self.end(false, emit);
                self.open = Some(OpenBlockKind::Call);
                let id = call_id(parser_options);
                emit(BlockChange::Begin(Block::Call { id, name }));
            }
            OutputDelta::Arguments(text) => emit(BlockChange::Delta(text)),
            OutputDelta::CallEnd => self.end(false, emit),
        }
    }

    /// Adds to the open block if it is of this kind, or to a new one.
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
