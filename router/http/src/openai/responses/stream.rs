//! Writes a response as OpenAI's events: each item is added, extended and done. A response without
//! streaming is built in the same way, without events.

use bytes::{BufMut, BytesMut};
use penstock_request::error::ApiError;
use penstock_text::generation::{FinishReason, Generation, TextEvent};
use serde::Serialize;

use super::request_echo::RequestEcho;
use super::response_object::{
    IncompleteDetails, InputDetails, OutputDetails, OutputItem, OutputPart, ResponseError,
    ResponseState, ResponseUsage, Status,
};
use super::stored_responses::PendingStore;
use crate::blocks::{Block, BlockChange, BlockWriter};
use crate::openai::logprobs::{ChatToken, LogprobsBuilder};
use crate::openai::{ChunkKind, unix_time};
use crate::parsed_output::OutputEnd;
use crate::sse::{put_json, put_named_event};

/// Builds a response and writes its events.
pub(super) struct ResponseWriter {
    state: ResponseState,
    echo: RequestEcho,
    /// Taken when the response is complete.
    pending_store: Option<PendingStore>,
    events: Events,
    /// Logprobs of the tokens since the last text, if requested.
    logprobs_builder: Option<LogprobsBuilder>,
    /// Whether the model may reason; then reasoning tokens are counted.
    thinks: bool,
    /// Output tokens so far; counted only if logprobs or reasoning tokens are needed.
    tokens: u32,
    reasoning_tokens: u32,
}

/// Writes events if the response is streamed.
struct Events {
    on: bool,
    /// Number of events so far.
    count: u64,
}

/// An event about an item. Its type decides which members it has.
#[derive(Clone, Copy, Default, Serialize)]
struct Event<'a> {
    r#type: &'static str,
    sequence_number: u64,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<&'a OutputItem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<&'a OutputPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [ChatToken]>,
}

impl ResponseWriter {
    /// Creates the writer of a generation that has begun; `stream` enables events.
    pub(super) fn new(
        state: ResponseState,
        echo: RequestEcho,
        pending_store: Option<PendingStore>,
        generation: &Generation,
        stream: bool,
    ) -> Self {
        Self {
            state,
            echo,
            pending_store,
            events: Events {
                on: stream,
                count: 0,
            },
            logprobs_builder: LogprobsBuilder::begin(ChunkKind::Chat, generation),
            thinks: generation.parser_options().reasoning.is_some(),
            tokens: 0,
            reasoning_tokens: 0,
        }
    }

    /// Returns the response as JSON.
    pub(super) fn body(&self) -> BytesMut {
        let mut out = BytesMut::new();
        put_response(&mut out, &self.state, &self.echo);
        out
    }

    fn begin_item(&mut self, block: Block, out: &mut BytesMut) {
        let at = self.state.output.len();
        self.state.output.push(OutputItem::from_block(block));
        let item = &mut self.state.output[at];
        let added = Event {
            item: Some(item),
            ..Event::new("response.output_item.added", at)
        };
        self.events.put(out, added);
        item.begin_part();
        if let Some(part) = item.part() {
            let event = Event::for_part("response.content_part.added", at, item);
            let part = Some(part);
            self.events.put(out, Event { part, ..event });
        }
    }

    fn add(&mut self, text: &str, out: &mut BytesMut) {
        // Logprobs of tokens without text of a message are dropped.
        let gathered = self
            .logprobs_builder
            .as_mut()
            .map(LogprobsBuilder::take_tokens);
        let gathered = gathered.unwrap_or_default();
        let at = self.state.output.len().saturating_sub(1);
        let Some(item) = self.state.output.last_mut() else {
            return;
        };
        let event = Event {
            delta: Some(text),
            logprobs: item.logprobs().map(|_| gathered.as_slice()),
            ..Event::for_part(item.names().0, at, item)
        };
        self.events.put(out, event);
        item.add(text, gathered);
    }

    fn end_item(&mut self, cut: bool, out: &mut BytesMut) {
        let at = self.state.output.len().saturating_sub(1);
        let Some(item) = self.state.output.last_mut() else {
            return;
        };
        *item.status() = if cut {
            Status::Incomplete
        } else {
            Status::Completed
        };
        if matches!(item, OutputItem::Reasoning { .. }) {
            // The current token already belongs to the next block, unless the reasoning was cut
            // off.
            self.reasoning_tokens = self.tokens.saturating_sub(u32::from(!cut));
        }
        self.events.put(out, Event::text_done(at, item));
        if let Some(part) = item.part() {
            let event = Event::for_part("response.content_part.done", at, item);
            let part = Some(part);
            self.events.put(out, Event { part, ..event });
        }
        let done = Event {
            item: Some(item),
            ..Event::new("response.output_item.done", at)
        };
        self.events.put(out, done);
    }

    fn put(&mut self, kind: &'static str, out: &mut BytesMut) {
        self.events
            .put_response(out, kind, (&self.state, &self.echo));
    }
}

impl BlockWriter for ResponseWriter {
    fn begin(&mut self, out: &mut BytesMut) {
        self.put("response.created", out);
        self.put("response.in_progress", out);
    }

    fn write_change(&mut self, change: BlockChange, out: &mut BytesMut) {
        match change {
            BlockChange::Begin(block) => self.begin_item(block, out),
            BlockChange::Delta(text) => self.add(&text, out),
            BlockChange::End { cut } => self.end_item(cut, out),
        }
    }

    fn finish(&mut self, generation: &Generation, end: &OutputEnd, out: &mut BytesMut) {
        let cut = end.reason == FinishReason::Length;
        if self.state.output.is_empty() {
            self.begin_item(Block::Text, out);
            self.end_item(cut, out);
        }
        let facts = generation.facts();
        self.state.usage = Some(ResponseUsage {
            input_tokens: facts.prompt_tokens,
            input_tokens_details: InputDetails::cached(facts.cached_tokens),
            output_tokens: facts.generated_tokens,
            output_tokens_details: OutputDetails {
                reasoning_tokens: self.reasoning_tokens,
            },
            total_tokens: facts.prompt_tokens + facts.generated_tokens as usize,
        });
        let kind = if cut {
            self.state.status = Status::Incomplete;
            self.state.incomplete_details = Some(IncompleteDetails::MAX_OUTPUT_TOKENS);
            "response.incomplete"
        } else {
            self.state.status = Status::Completed;
            self.state.completed_at = Some(unix_time());
            "response.completed"
        };
        // Store the response before the event: the client may retrieve it at once.
        if let Some(pending_store) = self.pending_store.take() {
            let output = self
                .state
                .output
                .iter()
                .map(OutputItem::to_stored)
                .collect();
            let body = self.body().freeze();
            self.state.store = pending_store.store(&self.state.id, output, body);
        }
        self.put(kind, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        let status = self.state.output.last_mut().map(OutputItem::status);
        if let Some(status) = status.filter(|status| **status == Status::InProgress) {
            *status = Status::Incomplete;
        }
        self.state.status = Status::Failed;
        self.state.store = false;
        self.state.error = Some(ResponseError::from(error));
        self.put("response.failed", out);
    }

    fn wants_tokens(&self) -> bool {
        self.thinks || self.logprobs_builder.is_some()
    }

    fn on_token(&mut self, generation: &Generation, event: &TextEvent, index: usize, text: &str) {
        self.tokens += 1;
        if let Some(logprobs_builder) = &mut self.logprobs_builder {
            logprobs_builder.add(generation, event, index, text);
        }
    }
}

impl Events {
    fn put(&mut self, out: &mut BytesMut, event: Event<'_>) {
        if let Some(sequence_number) = self.next() {
            let event = Event {
                sequence_number,
                ..event
            };
            put_named_event(out, event.r#type, |out| put_json(out, &event));
        }
    }

    fn put_response(
        &mut self,
        out: &mut BytesMut,
        kind: &'static str,
        (state, echo): (&ResponseState, &RequestEcho),
    ) {
        let Some(number) = self.next() else { return };
        put_named_event(out, kind, |out| {
            let head = format!("{{\"type\":\"{kind}\",\"sequence_number\":{number},\"response\":");
            out.put_slice(head.as_bytes());
            put_response(out, state, echo);
            out.put_u8(b'}');
        });
    }

    /// Returns the number of the next event; `None` without streaming.
    fn next(&mut self) -> Option<u64> {
        let number = self.count;
        self.count += 1;
        self.on.then_some(number)
    }
}

/// Appends a response: one object made of both parts.
fn put_response(out: &mut BytesMut, state: &ResponseState, echo: &RequestEcho) {
    put_json(out, state);
    out.truncate(out.len().saturating_sub(1));
    out.put_slice(echo.members.as_bytes());
    out.put_u8(b'}');
}

impl<'a> Event<'a> {
    fn new(kind: &'static str, output_index: usize) -> Self {
        Self {
            r#type: kind,
            output_index,
            ..Self::default()
        }
    }

    /// Creates an event about an item's text.
    fn for_part(kind: &'static str, output_index: usize, item: &'a OutputItem) -> Self {
        Self {
            item_id: Some(item.id()),
            content_index: item.part().map(|_| 0),
            ..Self::new(kind, output_index)
        }
    }

    /// Creates the event that completes an item's text.
    fn text_done(output_index: usize, item: &'a OutputItem) -> Self {
        let event = Self::for_part(item.names().1, output_index, item);
        match item {
            OutputItem::FunctionCall {
                name, arguments, ..
            } => Self {
                name: Some(name),
                arguments: Some(arguments),
                ..event
            },
            _ => Self {
                text: item.part().map(OutputPart::text),
                logprobs: item.logprobs(),
                ..event
            },
        }
    }
}
