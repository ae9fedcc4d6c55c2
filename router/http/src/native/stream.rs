//! The native event stream: one event per token, sent without delay.

use std::task::{Context, Poll, ready};

use bytes::{BufMut, BytesMut};
use penstock_request::types::Candidate;
use penstock_text::generation::{Generation, TextEnd, TextEvent, TextToken};

use super::parameters::ResponseOptions;
use super::{candidates, finish_reason, wire};
use crate::error::native_json;
use crate::sse::{EventSource, Flow, FrameBuffer, put_event, put_json};

/// Writes the events of an output.
pub(super) struct NativeStream {
    generation: Generation,
    options: ResponseOptions,
}

impl NativeStream {
    pub(super) fn new(generation: Generation, options: ResponseOptions) -> Self {
        Self {
            generation,
            options,
        }
    }

    fn put_tokens(&self, event: &TextEvent, out: &mut BytesMut) {
        let facts = self.generation.facts();
        let mut left = event.tokens.len();
        for (position, (token, text, _)) in event.tokens().enumerate() {
            left -= 1;
            let index = facts.generated_tokens as usize - left;
            put_token(out, index, token, text);
            self.put_top(out, event.top(position));
            let end = event.end.as_ref().filter(|_| left == 0);
            self.put_rest(out, end);
        }
        if let Some(end) = event.end.as_ref().filter(|_| event.tokens.is_empty()) {
            // The output ended without a new token: repeat the last token, with the rest of the
            // text.
            let token = TextToken::special(facts.last_token);
            let index = facts.generated_tokens as usize;
            put_token(out, index, &token, event.rest());
            self.put_rest(out, Some(end));
        }
    }

    fn put_top(&self, out: &mut BytesMut, top: &[Candidate]) {
        if !top.is_empty() {
            out.put_slice(b",\"top_tokens\":");
            put_json(out, &candidates(&self.generation, top));
        }
    }

    fn put_rest(&self, out: &mut BytesMut, end: Option<&TextEnd>) {
        let Some(end) = end else {
            out.put_slice(b",\"generated_text\":null,\"details\":null}\n\n");
            return;
        };
        let text = format!("{}{}", self.options.prefix, end.text);
        out.put_slice(b",\"generated_text\":");
        put_json(out, &text);
        out.put_slice(b",\"details\":");
        let facts = self.generation.facts();
        let details = self.options.details.then(|| wire::StreamDetails {
            finish_reason: finish_reason(end.reason),
            generated_tokens: facts.generated_tokens,
            seed: facts.seed,
            input_length: facts.prompt_tokens,
        });
        put_json(out, &details);
        out.put_slice(b"}\n\n");
    }
}

/// Writes the start of an event, up to the end of its token. Hand-written, since it runs for every
/// token.
fn put_token(out: &mut BytesMut, index: usize, token: &TextToken, text: &str) {
    out.put_slice(b"data: {\"index\":");
    put_json(out, &index);
    out.put_slice(b",\"token\":{\"id\":");
    put_json(out, &token.id);
    out.put_slice(b",\"text\":");
    put_json(out, text);
    out.put_slice(b",\"logprob\":");
    put_json(out, &token.logprob);
    out.put_slice(if token.special {
        b",\"special\":true}"
    } else {
        b",\"special\":false}"
    });
}

impl EventSource for NativeStream {
    fn poll_events(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow> {
        let FrameBuffer { event, out } = buffer;
        Poll::Ready(match ready!(self.generation.poll_event(cx, event)) {
            Some(Ok(())) => {
                self.put_tokens(event, out);
                if event.end.is_some() {
                    Flow::End
                } else {
                    Flow::More
                }
            }
            Some(Err(error)) => {
                put_event(out, &native_json(&error));
                Flow::End
            }
            None => Flow::End,
        })
    }
}
