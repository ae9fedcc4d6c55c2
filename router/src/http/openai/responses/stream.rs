//! A response as OpenAI's events: items, each added, filled and done. An answer in one piece is made
//! the same way, without the events.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use super::answer::{
    IncompleteDetails, InputDetails, OutputDetails, OutputItem, OutputPart, ResponseError,
    ResponseUsage, Status, Told,
};
use super::asked::Asked;
use super::kept::Keeping;
use crate::error::ApiError;
use crate::generation::{FinishReason, Generation, TextEvent};
use crate::http::blocks::{Block, Change, Teller};
use crate::http::openai::kind::Kind;
use crate::http::openai::logprobs::{ChatToken, Gathering};
use crate::http::openai::unix_time;
use crate::http::reading::ReadEnd;
use crate::http::sse::{put_json, put_named};

/// Makes one response, and writes its events.
pub(super) struct ResponseTeller {
    told: Told,
    asked: Asked,
    /// Taken when it is whole.
    keeping: Option<Keeping>,
    events: Events,
    /// Of the tokens since the last text, if log-probabilities are told.
    gathering: Option<Gathering>,
    /// Whether thoughts may come, whose tokens are counted.
    thinks: bool,
    /// Tokens so far; counted only if one of these two is.
    tokens: u32,
    reasoning_tokens: u32,
}

/// Writes events, if there is a stream.
struct Events {
    on: bool,
    /// How many there were.
    count: u64,
}

/// An event about a part of the answer; which members it has follows from its type.
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

impl ResponseTeller {
    /// For an answer that has begun; `stream`: with events.
    pub(super) fn new(
        told: Told,
        asked: Asked,
        keeping: Option<Keeping>,
        generation: &Generation,
        stream: bool,
    ) -> Self {
        Self {
            told,
            asked,
            keeping,
            events: Events {
                on: stream,
                count: 0,
            },
            gathering: Gathering::begin(Kind::Chat, generation),
            thinks: generation.reading().thoughts.is_some(),
            tokens: 0,
            reasoning_tokens: 0,
        }
    }

    /// The response as JSON.
    pub(super) fn body(&self) -> BytesMut {
        let mut out = BytesMut::new();
        put_response(&mut out, &self.told, &self.asked);
        out
    }

    fn begin_item(&mut self, block: Block, out: &mut BytesMut) {
        let at = self.told.output.len();
        self.told.output.push(OutputItem::of(block));
        let item = &mut self.told.output[at];
        let added = Event {
            item: Some(item),
            ..Event::of("response.output_item.added", at)
        };
        self.events.put(out, added);
        item.begin_part();
        if let Some(part) = item.part() {
            let event = Event::in_part("response.content_part.added", at, item);
            let part = Some(part);
            self.events.put(out, Event { part, ..event });
        }
    }

    fn add(&mut self, text: &str, out: &mut BytesMut) {
        // Tokens that showed no text of a message are told nowhere.
        let gathered = self.gathering.as_mut().map(Gathering::take_tokens);
        let gathered = gathered.unwrap_or_default();
        let at = self.told.output.len().saturating_sub(1);
        let Some(item) = self.told.output.last_mut() else {
            return;
        };
        let event = Event {
            delta: Some(text),
            logprobs: item.logprobs().map(|_| gathered.as_slice()),
            ..Event::in_part(item.names().0, at, item)
        };
        self.events.put(out, event);
        item.add(text, gathered);
    }

    fn end_item(&mut self, cut: bool, out: &mut BytesMut) {
        let at = self.told.output.len().saturating_sub(1);
        let Some(item) = self.told.output.last_mut() else {
            return;
        };
        *item.status() = if cut {
            Status::Incomplete
        } else {
            Status::Completed
        };
        if matches!(item, OutputItem::Reasoning { .. }) {
            // The token at hand has shown something else, unless the thoughts were cut off.
            self.reasoning_tokens = self.tokens.saturating_sub(u32::from(!cut));
        }
        self.events.put(out, Event::of_whole(at, item));
        if let Some(part) = item.part() {
            let event = Event::in_part("response.content_part.done", at, item);
            let part = Some(part);
            self.events.put(out, Event { part, ..event });
        }
        let done = Event {
            item: Some(item),
            ..Event::of("response.output_item.done", at)
        };
        self.events.put(out, done);
    }

    fn put(&mut self, kind: &'static str, out: &mut BytesMut) {
        self.events
            .put_response(out, kind, (&self.told, &self.asked));
    }
}

impl Teller for ResponseTeller {
    fn begin(&mut self, out: &mut BytesMut) {
        self.put("response.created", out);
        self.put("response.in_progress", out);
    }

    fn change(&mut self, change: Change, out: &mut BytesMut) {
        match change {
            Change::Begin(block) => self.begin_item(block, out),
            Change::More(text) => self.add(&text, out),
            Change::End { cut } => self.end_item(cut, out),
        }
    }

    fn finish(&mut self, generation: &Generation, end: &ReadEnd, out: &mut BytesMut) {
        let cut = end.reason == FinishReason::Length;
        if self.told.output.is_empty() {
            self.begin_item(Block::Text, out);
            self.end_item(cut, out);
        }
        let facts = generation.facts();
        self.told.usage = Some(ResponseUsage {
            input_tokens: facts.prompt_tokens,
            input_tokens_details: InputDetails::cached(facts.cached_tokens),
            output_tokens: facts.generated_tokens,
            output_tokens_details: OutputDetails {
                reasoning_tokens: self.reasoning_tokens,
            },
            total_tokens: facts.prompt_tokens + facts.generated_tokens as usize,
        });
        let kind = if cut {
            self.told.status = Status::Incomplete;
            self.told.incomplete_details = Some(IncompleteDetails::MAX_OUTPUT_TOKENS);
            "response.incomplete"
        } else {
            self.told.status = Status::Completed;
            self.told.completed_at = Some(unix_time());
            "response.completed"
        };
        // Before it is told that it is: the client may ask for it at once.
        if let Some(keeping) = self.keeping.take() {
            let output = self.told.output.iter().map(OutputItem::kept).collect();
            let body = self.body().freeze();
            self.told.store = keeping.keep(&self.told.id, output, body);
        }
        self.put(kind, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        let status = self.told.output.last_mut().map(OutputItem::status);
        if let Some(status) = status.filter(|status| **status == Status::InProgress) {
            *status = Status::Incomplete;
        }
        self.told.status = Status::Failed;
        self.told.store = false;
        self.told.error = Some(ResponseError::from(error));
        self.put("response.failed", out);
    }

    fn heeds_tokens(&self) -> bool {
        self.thinks || self.gathering.is_some()
    }

    fn token(&mut self, generation: &Generation, event: &TextEvent, index: usize, text: &str) {
        self.tokens += 1;
        if let Some(gathering) = &mut self.gathering {
            gathering.add(generation, event, index, text);
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
            put_named(out, event.r#type, |out| put_json(out, &event));
        }
    }

    fn put_response(
        &mut self,
        out: &mut BytesMut,
        kind: &'static str,
        (told, asked): (&Told, &Asked),
    ) {
        let Some(number) = self.next() else { return };
        put_named(out, kind, |out| {
            let head = format!("{{\"type\":\"{kind}\",\"sequence_number\":{number},\"response\":");
            out.put_slice(head.as_bytes());
            put_response(out, told, asked);
            out.put_u8(b'}');
        });
    }

    /// The number of the next event, if it is written.
    fn next(&mut self) -> Option<u64> {
        let number = self.count;
        self.count += 1;
        self.on.then_some(number)
    }
}

/// Appends a response: one object of both parts.
fn put_response(out: &mut BytesMut, told: &Told, asked: &Asked) {
    put_json(out, told);
    out.truncate(out.len().saturating_sub(1));
    out.put_slice(asked.members.as_bytes());
    out.put_u8(b'}');
}

impl<'a> Event<'a> {
    fn of(kind: &'static str, output_index: usize) -> Self {
        Self {
            r#type: kind,
            output_index,
            ..Self::default()
        }
    }

    /// About an item's text.
    fn in_part(kind: &'static str, output_index: usize, item: &'a OutputItem) -> Self {
        Self {
            item_id: Some(item.id()),
            content_index: item.part().map(|_| 0),
            ..Self::of(kind, output_index)
        }
    }

    /// That an item's text is whole.
    fn of_whole(output_index: usize, item: &'a OutputItem) -> Self {
        let event = Self::in_part(item.names().1, output_index, item);
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
