//! Streams of chunks: one chunk per token that shows text, one that tells the end.

use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

use super::kind::Kind;
use super::logprobs::Gathering;
use super::token_ids::TokenIds;
use super::wire::StreamUsage;
use super::wire::answer::{FinishReason, Usage};
use super::{Answering, finish_reason};
use crate::error::ApiError;
use crate::generation::{Cost, Facts, Generation};
use crate::http::error::openai_json;
use crate::http::ids::call_id;
use crate::http::reading::Read;
use crate::http::sse::{Desk, EventSource, Flow, put_event, put_json};
use crate::tools::Piece;

/// Writes the chunks of one or several answers.
pub(super) struct ChunkStream {
    kind: Kind,
    answering: Answering,
    choices: Vec<Choice>,
    usage: StreamUsage,
}

struct Choice {
    generation: Generation,
    /// Everything before a chunk's text, `{"content":` or `"text":` included.
    head: Vec<u8>,
    state: State,
    /// Set if the answer's text is more than content.
    read: Option<Box<Read>>,
    /// Whether text was streamed.
    said: bool,
    /// Calls that have begun.
    calls: usize,
    /// If the log-probabilities of its tokens are told: each then has a chunk.
    gathering: Option<Gathering>,
    /// If the ids of its tokens are told: each with the next chunk.
    ids: Option<Box<TokenIds>>,
    /// If each chunk tells the usage: tokens up to the next one.
    counted: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was sent: the first chunk of a chat tells the role.
    Fresh,
    Running,
    Ended,
}

impl ChunkStream {
    pub(super) fn new(
        kind: Kind,
        answering: Answering,
        generations: Vec<Generation>,
        usage: StreamUsage,
    ) -> Self {
        let choice = |(index, generation): (usize, Generation)| {
            let head = format!(
                "data: {}[{{\"index\":{index},{}",
                answering.head(kind.object()),
                kind.before_text()
            );
            let reading = generation.reading();
            let read = (!reading.is_plain()).then(|| Box::new(Read::new(reading)));
            Choice {
                gathering: Gathering::begin(kind, &generation),
                ids: TokenIds::begin(&generation),
                counted: (usage == StreamUsage::Always).then_some(0),
                head: head.into_bytes(),
                state: State::Fresh,
                read,
                said: false,
                calls: 0,
                generation,
            }
        };
        let choices = generations.into_iter().enumerate().map(choice).collect();
        Self {
            kind,
            answering,
            choices,
            usage,
        }
    }

    /// Polls one answer; writes what it brought.
    fn poll_choice(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        desk: &mut Desk,
    ) -> Poll<Result<(), ApiError>> {
        let choice = &mut self.choices[index];
        if choice.read.is_some() {
            return self.poll_read(index, cx, desk);
        }
        let Desk { event, out } = desk;
        match choice.generation.poll_event(cx, event) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(()))) => {}
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
            Poll::Ready(None) => {
                choice.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
        }
        let tail: &[u8] = self.kind.tail(self.usage);
        choice.count(event.tokens.len());
        if choice.state == State::Fresh {
            choice.put_prompt(self.kind, &self.answering, (index, tail), out);
        }
        for (at, (token, text, delta)) in event.tokens().enumerate() {
            choice.count_one();
            if let Some(ids) = &mut choice.ids {
                ids.add(token.id);
            }
            if let Some(gathering) = &mut choice.gathering {
                gathering.add(&choice.generation, event, at, text);
            }
            if !delta.is_empty() || choice.gathering.is_some() {
                choice.put_text(self.kind, &self.answering, index, (delta, tail), out);
            }
        }
        let rest = event.rest();
        if !rest.is_empty() {
            choice.put_text(self.kind, &self.answering, index, (rest, tail), out);
        }
        if let Some(end) = &event.end {
            let before = std::mem::replace(&mut choice.state, State::Ended);
            self.put_end(index, before, end.reason.into(), out);
        }
        Poll::Ready(Ok(()))
    }

    /// The same, for an answer that is read as thoughts, content and calls.
    fn poll_read(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        desk: &mut Desk,
    ) -> Poll<Result<(), ApiError>> {
        let Desk { event, out } = desk;
        let choice = &mut self.choices[index];
        let Some(mut read) = choice.read.take() else {
            return Poll::Ready(Ok(()));
        };
        let polled = read.poll(&mut choice.generation, event, cx);
        if let Poll::Ready(Ok(())) = polled {
            choice.count(0);
            if choice.state == State::Fresh {
                let tail = self.kind.tail(self.usage);
                choice.put_prompt(self.kind, &self.answering, (index, tail), out);
            }
            if let Some(gathering) = &mut choice.gathering {
                gathering.add_event(&choice.generation, event);
            }
            if let Some(ids) = &mut choice.ids {
                ids.add_event(event);
            }
            for piece in read.drain() {
                self.put_piece(index, piece, out);
            }
        }
        if let Some(reason) = read.end().map(|end| end.reason) {
            let choice = &mut self.choices[index];
            let before = std::mem::replace(&mut choice.state, State::Ended);
            let reason = finish_reason(reason, choice.calls > 0, choice.generation.reading());
            self.put_end(index, before, reason, out);
        } else {
            self.choices[index].read = Some(read);
        }
        polled
    }

    fn put_piece(&mut self, index: usize, piece: Piece, out: &mut BytesMut) {
        let choice = &mut self.choices[index];
        let call = choice.calls.saturating_sub(1);
        let mut delta = match piece {
            Piece::Content(text) => {
                let tail = self.kind.tail(self.usage);
                return choice.put_text(self.kind, &self.answering, index, (&text, tail), out);
            }
            Piece::Thought(text) => json!({ "reasoning_content": text, "reasoning": text }),
            Piece::Call(name) => {
                choice.calls += 1;
                let function = json!({ "name": name, "arguments": "" });
                let (index, id) = (choice.calls - 1, call_id(choice.generation.reading()));
                let call =
                    json!({ "index": index, "id": id, "type": "function", "function": function });
                told_call(choice, call)
            }
            Piece::Arguments(text) => {
                let call = json!({ "index": call, "function": { "arguments": text } });
                told_call(choice, call)
            }
            Piece::CallEnd => return,
        };
        if std::mem::replace(&mut choice.state, State::Running) == State::Fresh {
            delta["role"] = json!("assistant");
            delta["content"] = json!(null);
        }
        let logprobs = choice.gathering.as_mut().and_then(Gathering::take_some);
        let told = json!({
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null,
        });
        self.put_chunk(index, told, out);
    }

    /// `before` is the choice's state until now: an answer without text tells its role here.
    fn put_end(&mut self, index: usize, before: State, reason: FinishReason, out: &mut BytesMut) {
        let mut choice = json!({ "index": index });
        match (self.kind, before) {
            (Kind::Chat, State::Fresh) => {
                choice["delta"] = json!({ "role": "assistant", "content": "" });
            }
            // As vLLM and TGI do where text was streamed: some clients read `content` of every delta.
            (Kind::Chat, _) if self.choices[index].said => {
                choice["delta"] = json!({ "content": "" });
            }
            (Kind::Chat, _) => choice["delta"] = json!({}),
            (Kind::Text, _) => choice["text"] = json!(""),
        }
        // Of tokens that have shown nothing: those of a call's end, say.
        let gathering = self.choices[index].gathering.as_mut();
        choice["logprobs"] = json!(gathering.and_then(Gathering::take_some));
        choice["finish_reason"] = json!(reason);
        self.put_chunk(index, choice, out);
    }

    /// Appends a chunk of one choice.
    fn put_chunk(&mut self, index: usize, mut told: Value, out: &mut BytesMut) {
        let choice = &mut self.choices[index];
        let head = choice.chunk_head(self.kind, &self.answering);
        if let Some(ids) = &mut choice.ids {
            ids.tell(&mut told);
        }
        let usage = match self.usage {
            StreamUsage::AtEnd => ",\"usage\":null",
            StreamUsage::Never | StreamUsage::Always => "",
        };
        put_event(out, &format!("{head}[{told}]{usage}}}"));
        choice.put_usage(out);
    }

    fn put_last(&self, out: &mut BytesMut) {
        if self.usage != StreamUsage::Never {
            let facts = self.choices.iter().map(|choice| choice.generation.facts());
            let usage = Usage::sum(facts.map(Facts::cost));
            let head = self.answering.head(self.kind.object());
            put_event(out, &format!("{head}[],\"usage\":{}}}", json!(usage)));
        }
        put_event(out, "[DONE]");
    }
}

/// A call's part as a delta tells it, by its older name if it was asked for by that.
fn told_call(choice: &Choice, mut call: Value) -> Value {
    if choice.generation.reading().older {
        return json!({ "function_call": call["function"].take() });
    }
    json!({ "tool_calls": [call] })
}

impl Choice {
    /// Counts the tokens so far but for the last `waiting` ones, if each chunk tells the usage.
    fn count(&mut self, waiting: usize) {
        if let Some(counted) = &mut self.counted {
            let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
            *counted = (self.generation.facts().generated_tokens).saturating_sub(waiting);
        }
    }

    fn count_one(&mut self) {
        if let Some(counted) = &mut self.counted {
            *counted += 1;
        }
    }

    /// Adds the usage so far to the chunk that was written last, if each chunk tells it.
    fn put_usage(&self, out: &mut BytesMut) {
        const END: &[u8] = b"}\n\n";
        let Some(tokens) = self.counted else { return };
        let cost = Cost {
            generated: tokens,
            ..self.generation.facts().own_cost()
        };
        out.truncate(out.len().saturating_sub(END.len()));
        out.put_slice(b",\"usage\":");
        put_json(out, &Usage::sum(std::iter::once(cost)));
        out.put_slice(END);
    }

    /// Appends a chunk with what is echoed, if anything is.
    fn put_prompt(
        &mut self,
        kind: Kind,
        answering: &Answering,
        (index, tail): (usize, &[u8]),
        out: &mut BytesMut,
    ) {
        let wanted = self.generation.facts().wanted;
        let text = self.generation.prompt().text.clone();
        if let Some(gathering) = &mut self.gathering
            && wanted.echo
        {
            gathering.add_prompt(&self.generation);
        }
        if wanted.echo || !text.is_empty() {
            self.put_text(kind, answering, index, (&text, tail), out);
        }
    }

    /// The JSON of a chunk up to the value of `choices`. In chats the first tells the prompt's ids.
    fn chunk_head(&mut self, kind: Kind, answering: &Answering) -> String {
        let head = answering.head(kind.object());
        match &mut self.ids {
            Some(ids) if kind == Kind::Chat => ids.head(head),
            _ => head,
        }
    }

    /// Appends a chunk with text; by hand, for this runs for every token.
    fn put_text(
        &mut self,
        kind: Kind,
        answering: &Answering,
        index: usize,
        (text, tail): (&str, &[u8]),
        out: &mut BytesMut,
    ) {
        self.said = true;
        if self.state == State::Fresh {
            self.state = State::Running;
            let head = self.chunk_head(kind, answering);
            let before = kind.before_first_text();
            out.put_slice(format!("data: {head}[{{\"index\":{index},{before}").as_bytes());
        } else {
            out.put_slice(&self.head);
        }
        put_json(out, text);
        if self.gathering.is_none() && self.ids.is_none() {
            out.put_slice(tail);
        } else {
            self.put_told(kind, tail, out);
        }
        self.put_usage(out);
    }

    /// Appends a chunk's tail with what is told beside its text.
    fn put_told(&mut self, kind: Kind, tail: &[u8], out: &mut BytesMut) {
        // The same with log-probabilities instead of null, and with ids behind them.
        let (before, after) = tail.split_at(kind.before_logprobs().len());
        out.put_slice(before);
        put_json(out, &self.gathering.as_mut().and_then(Gathering::take_some));
        if let Some(ids) = &mut self.ids {
            ids.put(out);
        }
        out.put_slice(after.strip_prefix(b"null").unwrap_or(after));
    }
}

impl EventSource for ChunkStream {
    fn poll_events(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Flow> {
        let mut flow = Poll::Pending;
        for index in 0..self.choices.len() {
            if self.choices[index].state == State::Ended {
                continue;
            }
            match self.poll_choice(index, cx, desk) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => flow = Poll::Ready(Flow::More),
                Poll::Ready(Err(error)) => {
                    put_event(&mut desk.out, &openai_json(&error));
                    return Poll::Ready(Flow::End);
                }
            }
        }
        if self
            .choices
            .iter()
            .all(|choice| choice.state == State::Ended)
        {
            self.put_last(&mut desk.out);
            return Poll::Ready(Flow::End);
        }
        flow
    }
}
