//! An answer as Anthropic's events: a message of blocks, each begun, filled and ended.

use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

use super::answer::{MessageAnswer, stop_reason};
use crate::error::ApiError;
use crate::generation::Generation;
use crate::http::error::anthropic_json;
use crate::http::reading::{Read, call_id};
use crate::http::sse::{Desk, EventSource, Flow};
use crate::tools::Piece;

/// Writes the events of one answer.
pub(super) struct MessageStream {
    generation: Generation,
    read: Read,
    /// What the first event tells.
    start: Option<MessageAnswer>,
    /// Blocks that have begun.
    blocks: usize,
    open: Option<Open>,
    calls: usize,
}

/// The kind of the block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    Call,
}

impl MessageStream {
    pub(super) fn new(generation: Generation, start: MessageAnswer) -> Self {
        Self {
            read: Read::new(generation.reading()),
            generation,
            start: Some(start),
            blocks: 0,
            open: None,
            calls: 0,
        }
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if let Some(message) = self.start.take() {
            put(out, &json!({"type": "message_start", "message": message}));
            put(out, &json!({"type": "ping"}));
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut BytesMut) {
        match piece {
            Piece::Content(text) => {
                self.open(Open::Text, || json!({"type": "text", "text": ""}), out);
                self.delta(&json!({"type": "text_delta", "text": text}), out);
            }
            Piece::Thought(text) => {
                let block = || json!({"type": "thinking", "thinking": "", "signature": ""});
                self.open(Open::Thinking, block, out);
                self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Piece::Call(name) => {
                self.close(out);
                self.calls += 1;
                let id = call_id(self.generation.reading());
                let block = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.open(Open::Call, block, out);
            }
            Piece::Arguments(text) => {
                self.delta(
                    &json!({"type": "input_json_delta", "partial_json": text}),
                    out,
                );
            }
            Piece::CallEnd => self.close(out),
        }
    }

    /// Begins a block, unless one of this kind is open.
    fn open(&mut self, kind: Open, block: impl FnOnce() -> Value, out: &mut BytesMut) {
        if self.open == Some(kind) {
            return;
        }
        self.close(out);
        self.open = Some(kind);
        let event = json!({
            "type": "content_block_start", "index": self.blocks, "content_block": block()
        });
        put(out, &event);
    }

    fn delta(&self, delta: &Value, out: &mut BytesMut) {
        let event = json!({"type": "content_block_delta", "index": self.blocks, "delta": delta});
        put(out, &event);
    }

    fn close(&mut self, out: &mut BytesMut) {
        if self.open.take().is_some() {
            put(
                out,
                &json!({"type": "content_block_stop", "index": self.blocks}),
            );
            self.blocks += 1;
        }
    }

    fn finish(&mut self, out: &mut BytesMut) {
        self.close(out);
        let reason = self.read.end().map(|end| stop_reason(end, self.calls > 0));
        let delta = json!({"stop_reason": reason, "stop_sequence": self.read.stop_string()});
        let output = self.generation.facts().generated_tokens;
        let usage = json!({"output_tokens": output});
        put(
            out,
            &json!({"type": "message_delta", "delta": delta, "usage": usage}),
        );
        put(out, &json!({"type": "message_stop"}));
    }

    fn poll(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Result<Flow, ApiError>> {
        let Desk { event, out } = desk;
        self.begin(out);
        let polled = self.read.poll(&mut self.generation, event, cx);
        if let Poll::Ready(outcome) = polled {
            outcome?;
            let pieces: Vec<Piece> = self.read.drain().collect();
            for piece in pieces {
                self.piece(piece, out);
            }
            if self.read.end().is_some() {
                self.finish(out);
                return Poll::Ready(Ok(Flow::End));
            }
            return Poll::Ready(Ok(Flow::More));
        }
        Poll::Pending
    }
}

impl EventSource for MessageStream {
    fn poll_events(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Flow> {
        match self.poll(cx, desk) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(flow)) => Poll::Ready(flow),
            Poll::Ready(Err(error)) => {
                desk.out.put_slice(b"event: error\ndata: ");
                desk.out.put_slice(anthropic_json(&error).as_bytes());
                desk.out.put_slice(b"\n\n");
                Poll::Ready(Flow::End)
            }
        }
    }
}

/// Appends an event, named by its type.
fn put(out: &mut BytesMut, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    out.put_slice(format!("event: {name}\ndata: {event}\n\n").as_bytes());
}
