//! Streams an output as Anthropic's events: a message whose blocks start, grow and stop.

use bytes::{BufMut, BytesMut};
use penstock_request::error::ApiError;
use penstock_text::generation::Generation;
use serde_json::{Value, json};

use super::response::{MessageResponse, Usage, stop_reason};
use crate::blocks::{Block, BlockChange, BlockWriter};
use crate::error::anthropic_json;
use crate::parsed_output::OutputEnd;
use crate::sse::put_named_event;

/// Writes the events of one message.
pub(super) struct MessageWriter {
    /// The message in the first event.
    start: MessageResponse,
    /// Number of blocks that have ended: the index of the open one.
    blocks: usize,
    /// Type of the open block's deltas, and the name of their text field.
    delta: (&'static str, &'static str),
    calls: bool,
}

impl MessageWriter {
    pub(super) fn new(start: MessageResponse) -> Self {
        Self {
            start,
            blocks: 0,
            delta: ("", ""),
            calls: false,
        }
    }

    /// Returns the block of a `content_block_start` event, and sets the type of its deltas.
    fn open(&mut self, block: Block) -> Value {
        match block {
            Block::Text => {
                self.delta = ("text_delta", "text");
                json!({"type": "text", "text": ""})
            }
            Block::Reasoning => {
                self.delta = ("thinking_delta", "thinking");
                json!({"type": "thinking", "thinking": "", "signature": ""})
            }
            Block::Call { id, name } => {
                self.calls = true;
                self.delta = ("input_json_delta", "partial_json");
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        }
    }
}

impl BlockWriter for MessageWriter {
    fn begin(&mut self, out: &mut BytesMut) {
        put(
            out,
            &json!({"type": "message_start", "message": self.start}),
        );
        put(out, &json!({"type": "ping"}));
    }

    fn write_change(&mut self, change: BlockChange, out: &mut BytesMut) {
        let index = self.blocks;
        let event = match change {
            BlockChange::Begin(block) => {
                let block = self.open(block);
                json!({"type": "content_block_start", "index": index, "content_block": block})
            }
            BlockChange::Delta(text) => {
                let (kind, name) = self.delta;
                let delta = json!({"type": kind, name: text});
                json!({"type": "content_block_delta", "index": index, "delta": delta})
            }
            BlockChange::End { .. } => {
                self.blocks += 1;
                json!({"type": "content_block_stop", "index": index})
            }
        };
        put(out, &event);
    }

    fn finish(&mut self, generation: &Generation, end: &OutputEnd, out: &mut BytesMut) {
        let reason = stop_reason(end.reason, self.calls);
        let delta = json!({"stop_reason": reason, "stop_sequence": end.stop_string});
        // Repeat all counts: at the start the number of cached tokens was unknown.
        let usage = Usage::from_facts(generation.facts());
        put(
            out,
            &json!({"type": "message_delta", "delta": delta, "usage": usage}),
        );
        put(out, &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        put_named_event(out, "error", |out| {
            out.put_slice(anthropic_json(error).as_bytes());
        });
    }
}

/// Appends an event; its name is its `type`.
fn put(out: &mut BytesMut, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    put_named_event(out, name, |out| {
        out.put_slice(event.to_string().as_bytes());
    });
}
