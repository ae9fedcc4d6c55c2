//! An answer as blocks of one kind each, begun, filled and ended one after the other.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;

use super::ids::call_id;
use super::reading::{Read, ReadEnd, poll_step};
use super::sse::{Desk, EventSource, Flow};
use crate::error::ApiError;
use crate::generation::{FinishReason, Generation, TextEvent};
use crate::tools::{Piece, Reading};

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Text for the user.
    Text,
    /// What the model thought.
    Thought,
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
pub(super) enum Change {
    /// A block begins.
    Begin(Block),
    /// The open block has more text.
    More(String),
    /// The open block ends; `cut`: because the tokens ran out.
    End { cut: bool },
}

/// Tells an answer's blocks to a client.
pub(super) trait Teller: Send + Unpin + 'static {
    /// Appends what comes before the first block.
    fn begin(&mut self, out: &mut BytesMut);

    /// Appends what a change says.
    fn change(&mut self, change: Change, out: &mut BytesMut);

    /// Appends what comes after the last block.
    fn finish(&mut self, generation: &Generation, end: &ReadEnd, out: &mut BytesMut);

    /// Appends how the answer failed.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut);

    /// Whether each token is shown to `token` before the changes that it brings.
    fn heeds_tokens(&self) -> bool {
        false
    }

    /// Takes note of the token at `index` of an event, with its own text.
    fn token(&mut self, _: &Generation, _: &TextEvent, _index: usize, _text: &str) {}
}

/// Reads an answer and has it told.
pub(super) struct BlockStream<T> {
    generation: Generation,
    read: Read,
    blocks: Blocks,
    teller: T,
    begun: bool,
}

/// Makes blocks of pieces.
#[derive(Debug, Default)]
struct Blocks {
    open: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thought,
    Call,
}

impl<T: Teller> BlockStream<T> {
    pub(super) fn new(generation: Generation, teller: T) -> Self {
        Self {
            read: Read::new(generation.reading()),
            generation,
            blocks: Blocks::default(),
            teller,
            begun: false,
        }
    }

    /// Runs the answer to its end. What the teller writes on the way is dropped.
    pub(super) async fn run(mut self) -> Result<(Generation, T), ApiError> {
        let mut event = TextEvent::default();
        let mut out = BytesMut::new();
        while poll_fn(|cx| self.poll(cx, &mut event, &mut out)).await? == Flow::More {
            out.clear();
        }
        Ok((self.generation, self.teller))
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        event: &mut TextEvent,
        out: &mut BytesMut,
    ) -> Poll<Result<Flow, ApiError>> {
        if !std::mem::replace(&mut self.begun, true) {
            self.teller.begin(out);
        }
        ready!(poll_step(&mut self.generation, event, cx))?;
        if self.teller.heeds_tokens() {
            for (index, (_, text, delta)) in event.tokens().enumerate() {
                self.teller.token(&self.generation, event, index, text);
                self.read.feed(delta);
                self.tell(out);
            }
            self.read.feed(event.rest());
        } else {
            self.read.feed(event.delta());
        }
        self.read.close(&mut self.generation, event);
        self.tell(out);
        let Some(end) = self.read.end() else {
            return Poll::Ready(Ok(Flow::More));
        };
        let cut = end.reason == FinishReason::Length;
        let teller = &mut self.teller;
        self.blocks
            .end(cut, &mut |change| teller.change(change, out));
        teller.finish(&self.generation, end, out);
        Poll::Ready(Ok(Flow::End))
    }

    fn tell(&mut self, out: &mut BytesMut) {
        let teller = &mut self.teller;
        let mut tell = |change| teller.change(change, out);
        for piece in self.read.drain() {
            self.blocks
                .take(piece, self.generation.reading(), &mut tell);
        }
    }
}

impl<T: Teller> EventSource for BlockStream<T> {
    fn poll_events(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Flow> {
        let Desk { event, out } = desk;
        let flow = ready!(self.poll(cx, event, out)).unwrap_or_else(|error| {
            self.teller.fail(&error, out);
            Flow::End
        });
        Poll::Ready(flow)
    }
}

impl Blocks {
    fn take(&mut self, piece: Piece, reading: &Reading, tell: &mut impl FnMut(Change)) {
        match piece {
            Piece::Content(text) => self.more(Kind::Text, Block::Text, text, tell),
            Piece::Thought(text) => self.more(Kind::Thought, Block::Thought, text, tell),
            Piece::Call(name) => {
                self.end(false, tell);
                self.open = Some(Kind::Call);
                let id = call_id(reading);
                tell(Change::Begin(Block::Call { id, name }));
            }
            Piece::Arguments(text) => tell(Change::More(text)),
            Piece::CallEnd => self.end(false, tell),
        }
    }

    /// Adds to the open block if it is of this kind, or to a new one.
    fn more(&mut self, kind: Kind, block: Block, text: String, tell: &mut impl FnMut(Change)) {
        if self.open != Some(kind) {
            self.end(false, tell);
            self.open = Some(kind);
            tell(Change::Begin(block));
        }
        tell(Change::More(text));
    }

    fn end(&mut self, cut: bool, tell: &mut impl FnMut(Change)) {
        if self.open.take().is_some() {
            tell(Change::End { cut });
        }
    }
}
