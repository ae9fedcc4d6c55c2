//! Streams of chunks: one per token that completes text, and one for the end.

use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use penstock_request::error::ApiError;
use penstock_text::generation::{Generation, GenerationFacts, TokenUsage};
use penstock_text::tool_parsers::OutputDelta;
use serde_json::{Value, json};

use super::logprobs::{LogprobsBuilder, TokenIds};
use super::wire::StreamUsage;
use super::wire::answer::Usage;
use super::{ChunkKind, ResponseMeta, finish_reason, stop_reason};
use crate::error::openai_json;
use crate::ids::call_id;
use crate::parsed_output::{GenerationParser, OutputEnd};
use crate::sse::{EventSource, Flow, FrameBuffer, put_event, put_json};

/// Writes the chunks of one or several choices.
pub(super) struct ChunkStream {
    kind: ChunkKind,
    meta: ResponseMeta,
    choices: Vec<Choice>,
    usage: StreamUsage,
}

struct Choice {
    generation: Generation,
    /// The chunk up to its text, including `{"content":` or `"text":`.
    head: Vec<u8>,
    state: State,
    /// Set if the output may have reasoning or tool calls.
    parser: Option<Box<GenerationParser>>,
    /// Whether text was streamed.
    has_text: bool,
    /// Number of tool calls that have begun.
    calls: usize,
    /// Set if logprobs were requested. Each token then has its own chunk.
    logprobs_builder: Option<LogprobsBuilder>,
    /// Set if token ids were requested. They are sent with the next chunk.
    ids: Option<Box<TokenIds>>,
    /// Set if every chunk has the usage: output tokens up to the next chunk.
    counted: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was sent yet: the first chunk of a chat has the role.
    Fresh,
    Running,
    Ended,
}

impl ChunkStream {
    pub(super) fn new(
        kind: ChunkKind,
        meta: ResponseMeta,
        generations: Vec<Generation>,
        usage: StreamUsage,
    ) -> Self {
        let choice = |(index, generation): (usize, Generation)| {
            let head = format!(
                "data: {}[{{\"index\":{index},{}",
                meta.head(kind.object()),
                kind.before_text()
            );
            let parser_options = generation.parser_options();
            let parser = (!parser_options.is_plain())
                .then(|| Box::new(GenerationParser::new(parser_options)));
            Choice {
                logprobs_builder: LogprobsBuilder::begin(kind, &generation),
                ids: TokenIds::begin(&generation),
                counted: (usage == StreamUsage::Always).then_some(0),
                head: head.into_bytes(),
                state: State::Fresh,
                parser,
                has_text: false,
                calls: 0,
                generation,
            }
        };
        let choices = generations.into_iter().enumerate().map(choice).collect();
        Self {
            kind,
            meta,
            choices,
            usage,
        }
    }

    /// Polls a choice and writes its chunks.
    fn poll_choice(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        buffer: &mut FrameBuffer,
    ) -> Poll<Result<(), ApiError>> {
        let choice = &mut self.choices[index];
        if choice.parser.is_some() {
            return self.poll_parsed(index, cx, buffer);
        }
        let FrameBuffer { event, out } = buffer;
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
            choice.put_prompt(self.kind, &self.meta, (index, tail), out);
        }
        for (at, (token, text, delta)) in event.tokens().enumerate() {
            choice.count_one();
            if let Some(ids) = &mut choice.ids {
                ids.add(token.id);
            }
            if let Some(logprobs_builder) = &mut choice.logprobs_builder {
                logprobs_builder.add(&choice.generation, event, at, text);
            }
            if !delta.is_empty() || choice.logprobs_builder.is_some() {
                choice.put_text(self.kind, &self.meta, index, (delta, tail), out);
            }
        }
        let rest = event.rest();
        if !rest.is_empty() {
            choice.put_text(self.kind, &self.meta, index, (rest, tail), out);
        }
        if let Some(end) = &event.end {
            let before = std::mem::replace(&mut choice.state, State::Ended);
            self.put_end(index, before, OutputEnd::from_text_end(end), out);
        }
        Poll::Ready(Ok(()))
    }

    /// Polls a choice whose output is parsed into reasoning, content and tool calls.
    fn poll_parsed(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        buffer: &mut FrameBuffer,
    ) -> Poll<Result<(), ApiError>> {
        let FrameBuffer { event, out } = buffer;
        let choice = &mut self.choices[index];
        let Some(mut parser) = choice.parser.take() else {
            return Poll::Ready(Ok(()));
        };
        let polled = parser.poll(&mut choice.generation, event, cx);
        if let Poll::Ready(Ok(())) = polled {
            choice.count(0);
            if choice.state == State::Fresh {
                let tail = self.kind.tail(self.usage);
                choice.put_prompt(self.kind, &self.meta, (index, tail), out);
            }
            if let Some(logprobs_builder) = &mut choice.logprobs_builder {
                logprobs_builder.add_event(&choice.generation, event);
            }
            if let Some(ids) = &mut choice.ids {
                ids.add_event(event);
            }
            for piece in parser.drain() {
                self.put_piece(index, piece, out);
            }
        }
        if let Some(end) = parser.end().cloned() {
            let choice = &mut self.choices[index];
            let before = std::mem::replace(&mut choice.state, State::Ended);
            self.put_end(index, before, end, out);
        } else {
            self.choices[index].parser = Some(parser);
        }
        polled
    }

    fn put_piece(&mut self, index: usize, piece: OutputDelta, out: &mut BytesMut) {
        let choice = &mut self.choices[index];
        let call = choice.calls.saturating_sub(1);
        let mut delta = match piece {
            OutputDelta::Content(text) => {
                let tail = self.kind.tail(self.usage);
                return choice.put_text(self.kind, &self.meta, index, (&text, tail), out);
            }
            OutputDelta::Reasoning(text) => json!({ "reasoning_content": text, "reasoning": text }),
            OutputDelta::CallStart { name, id } => {
                choice.calls += 1;
                let function = json!({ "name": name, "arguments": "" });
                let (index, id) = (
                    choice.calls - 1,
                    call_id(id, choice.generation.parser_options()),
                );
                let call =
                    json!({ "index": index, "id": id, "type": "function", "function": function });
                call_delta(choice, call)
            }
            OutputDelta::Arguments(text) => {
                let call = json!({ "index": call, "function": { "arguments": text } });
                call_delta(choice, call)
            }
            OutputDelta::CallEnd => return,
        };
        if std::mem::replace(&mut choice.state, State::Running) == State::Fresh {
            delta["role"] = json!("assistant");
            delta["content"] = json!(null);
        }
        let logprobs = choice
            .logprobs_builder
            .as_mut()
            .and_then(LogprobsBuilder::take_some);
        let choice_json = json!({
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null,
        });
        self.put_chunk(index, choice_json, out);
    }

    /// Writes the last chunk of a choice. `before` is its state before the end: if nothing was
    /// sent, this chunk has the role.
    fn put_end(&mut self, index: usize, before: State, end: OutputEnd, out: &mut BytesMut) {
        let ended = &self.choices[index];
        let generation = &ended.generation;
        let reason = finish_reason(end.reason, ended.calls > 0, generation.parser_options());
        let stop_reason = stop_reason(end.reason, end.stop_string, generation);
        let mut choice = json!({ "index": index });
        match (self.kind, before) {
            (ChunkKind::Chat, State::Fresh) => {
                choice["delta"] = json!({ "role": "assistant", "content": "" });
            }
            // As in vLLM and TGI, if text was streamed: some clients read `content` of every delta.
            (ChunkKind::Chat, _) if self.choices[index].has_text => {
                choice["delta"] = json!({ "content": "" });
            }
            (ChunkKind::Chat, _) => choice["delta"] = json!({}),
            (ChunkKind::Text, _) => choice["text"] = json!(""),
        }
        // Remaining logprobs, of tokens without text, such as the end of a tool call.
        let logprobs_builder = self.choices[index].logprobs_builder.as_mut();
        choice["logprobs"] = json!(logprobs_builder.and_then(LogprobsBuilder::take_some));
        choice["finish_reason"] = json!(reason);
        if let Some(stop_reason) = stop_reason {
            choice["stop_reason"] = json!(stop_reason);
        }
        self.put_chunk(index, choice, out);
    }

    /// Appends a chunk of a choice.
    fn put_chunk(&mut self, index: usize, mut choice_json: Value, out: &mut BytesMut) {
        let choice = &mut self.choices[index];
        let head = choice.chunk_head(self.kind, &self.meta);
        if let Some(ids) = &mut choice.ids {
            ids.add_to(&mut choice_json);
        }
        let usage = match self.usage {
            StreamUsage::AtEnd => ",\"usage\":null",
            StreamUsage::Never | StreamUsage::Always => "",
        };
        put_event(out, &format!("{head}[{choice_json}]{usage}}}"));
        choice.put_usage(out);
    }

    fn put_last(&self, out: &mut BytesMut) {
        if self.usage != StreamUsage::Never {
            let facts = self.choices.iter().map(|choice| choice.generation.facts());
            let usage = Usage::sum(facts.map(GenerationFacts::usage));
            let head = self.meta.head(self.kind.object());
            put_event(out, &format!("{head}[],\"usage\":{}}}", json!(usage)));
        }
        put_event(out, "[DONE]");
    }
}

/// Returns the delta of a part of a tool call; as the legacy `function_call` if the request used
/// `functions`.
fn call_delta(choice: &Choice, mut call: Value) -> Value {
    if choice.generation.parser_options().legacy_function_call {
        return json!({ "function_call": call["function"].take() });
    }
    json!({ "tool_calls": [call] })
}

impl Choice {
    /// Sets the count of output tokens for the usage in chunks, without the last `waiting` tokens.
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

    /// Adds the usage so far to the last chunk, if every chunk has the usage.
    fn put_usage(&self, out: &mut BytesMut) {
        const END: &[u8] = b"}\n\n";
        let Some(tokens) = self.counted else { return };
        let cost = TokenUsage {
            generated: tokens,
            ..self.generation.facts().own_usage()
        };
        out.truncate(out.len().saturating_sub(END.len()));
        out.put_slice(b",\"usage\":");
        put_json(out, &Usage::sum(std::iter::once(cost)));
        out.put_slice(END);
    }

    /// Appends a chunk with the echoed prompt, if any.
    fn put_prompt(
        &mut self,
        kind: ChunkKind,
        meta: &ResponseMeta,
        (index, tail): (usize, &[u8]),
        out: &mut BytesMut,
    ) {
        let logprob_request = self.generation.facts().logprob_request;
        let text = self.generation.prompt().text.clone();
        if let Some(logprobs_builder) = &mut self.logprobs_builder
            && logprob_request.echo
        {
            logprobs_builder.add_prompt(&self.generation);
        }
        if logprob_request.echo || !text.is_empty() {
            self.put_text(kind, meta, index, (&text, tail), out);
        }
    }

    /// Returns the JSON of a chunk up to the value of `choices`. The first chunk of a chat has the
    /// prompt's token ids.
    fn chunk_head(&mut self, kind: ChunkKind, meta: &ResponseMeta) -> String {
        let head = meta.head(kind.object());
        match &mut self.ids {
            Some(ids) if kind == ChunkKind::Chat => ids.head(head),
            _ => head,
        }
    }

    /// Appends a chunk with text. Hand-written, since it runs for every token.
    fn put_text(
        &mut self,
        kind: ChunkKind,
        meta: &ResponseMeta,
        index: usize,
        (text, tail): (&str, &[u8]),
        out: &mut BytesMut,
    ) {
        self.has_text = true;
        if self.state == State::Fresh {
            self.state = State::Running;
            let head = self.chunk_head(kind, meta);
            let before = kind.before_first_text();
            out.put_slice(format!("data: {head}[{{\"index\":{index},{before}").as_bytes());
        } else {
            out.put_slice(&self.head);
        }
        put_json(out, text);
        if self.logprobs_builder.is_none() && self.ids.is_none() {
            out.put_slice(tail);
        } else {
            self.put_text_tail(kind, tail, out);
        }
        self.put_usage(out);
    }

    /// Appends a chunk's tail with logprobs and token ids.
    fn put_text_tail(&mut self, kind: ChunkKind, tail: &[u8], out: &mut BytesMut) {
        // The tail with logprobs instead of null, followed by the token ids.
        let (before, after) = tail.split_at(kind.before_logprobs().len());
        out.put_slice(before);
        put_json(
            out,
            &self
                .logprobs_builder
                .as_mut()
                .and_then(LogprobsBuilder::take_some),
        );
        if let Some(ids) = &mut self.ids {
            ids.put(out);
        }
        out.put_slice(after.strip_prefix(b"null").unwrap_or(after));
    }
}

impl EventSource for ChunkStream {
    fn poll_events(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow> {
        let mut flow = Poll::Pending;
        for index in 0..self.choices.len() {
            if self.choices[index].state == State::Ended {
                continue;
            }
            match self.poll_choice(index, cx, buffer) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => flow = Poll::Ready(Flow::More),
                Poll::Ready(Err(error)) => {
                    put_event(&mut buffer.out, &openai_json(&error));
                    return Poll::Ready(Flow::End);
                }
            }
        }
        if self
            .choices
            .iter()
            .all(|choice| choice.state == State::Ended)
        {
            self.put_last(&mut buffer.out);
            return Poll::Ready(Flow::End);
        }
        flow
    }
}
