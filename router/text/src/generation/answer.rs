//! One choice: tokens in, text events out.

use std::future::poll_fn;
use std::iter::once;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use penstock_request::backend::{Sources, TokenSource};
use penstock_request::error::{ApiError, ErrorKind};
use penstock_request::sampling_params::SamplingParams;
use penstock_request::types::{End, PromptToken, Token, TokenEvent};
use penstock_request::validate::OutputTextOptions;

use super::TextRequest;
use super::event::{FinishReason, GenerationFacts, TextEnd, TextEvent, TextToken};
use crate::detokenize::Detokenizer;
use crate::metrics::{RequestTimer, Timings};
use crate::model_text::ModelText;
use crate::stop::StopMatcher;
use crate::tool_parsers::{CallSpans, OutputParserOptions};

/// Initial capacity of the text, so that the first tokens do not reallocate it.
const ANSWER_BYTES: usize = 256;

/// A choice being generated. Dropping it before its end aborts it immediately.
///
/// Every token touches the fields up to the start of `timer`; the others are needed only at the
/// beginning and the end. With hundreds of streams each first touch misses the cache, and those
/// misses are most of a token's cost here.
#[repr(C)]
pub struct Generation {
    source: Option<Box<dyn TokenSource>>,
    text: Arc<ModelText>,
    detokenizer: Detokenizer,
    /// The text so far, without special tokens.
    answer: String,
    /// Bytes of it that went into deltas.
    sent: usize,
    stop: StopMatcher,
    facts: GenerationFacts,
    timer: RequestTimer,
    /// A failure that came with the last tokens, to be reported after them; `source` is `None`
    /// then.
    failure: Option<(ErrorKind, String)>,
    parser_options: OutputParserOptions,
    /// Tool calls, parsed up to the last stop string found.
    calls: Option<Box<CallSpans>>,
    /// Special tokens that are part of the text.
    visible: VisibleSpecialTokens,
    /// Whether the text includes the stop string that ends it.
    keeps_stop: bool,
    /// The request's own stop tokens, which are not end tokens of the model.
    stop_token_ids: Vec<u32>,
    prompt: PromptOutput,
}

/// The parts of the prompt that the output includes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptOutput {
    /// Its ids, if the output refers to them.
    pub ids: Vec<u32>,
    /// Its text, if echoed.
    pub text: String,
    /// Logprobs from the second token on, if requested; complete once the first event has arrived.
    pub tokens: Vec<PromptToken>,
}

/// What a generation needs from its request after the request has gone to the engine.
#[derive(Clone)]
pub(super) struct PendingGeneration {
    text: Arc<ModelText>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    parser_options: OutputParserOptions,
    output_text: OutputTextOptions,
    facts: GenerationFacts,
    sampling: SamplingParams,
    stop_token_ids: Vec<u32>,
    prompt: PromptOutput,
    max_new_tokens: u32,
}

/// Returns the stop tokens that are not end tokens of the model.
fn own_stop_tokens(stop_token_ids: &[u32], eos_ids: &[u32]) -> Vec<u32> {
    let own = stop_token_ids.iter().filter(|id| !eos_ids.contains(id));
    own.copied().collect()
}

/// Where the output ends, in bytes of the text.
struct Cut {
    /// Length of the content.
    content: usize,
    /// The stop string; empty if none ends it.
    stop: Range<usize>,
}

impl Cut {
    /// Creates the end of a text of `length` bytes without a stop string.
    fn at(length: usize) -> Self {
        Self {
            content: length,
            stop: length..length,
        }
    }
}

/// Special tokens that are part of the text.
enum VisibleSpecialTokens {
    These(Vec<u32>),
    All,
}

impl PendingGeneration {
    pub(super) fn new(model: &Arc<ModelText>, request: &TextRequest) -> Self {
        let valid = &request.valid;
        let engine = &valid.engine;
        let facts = GenerationFacts {
            prompt_tokens: engine.prompt.len(),
            cached_tokens: 0,
            generated_tokens: 0,
            seed: None,
            last_token: 0,
            logprob_sum: 0.0,
            choice: 0,
            logprob_request: valid.logprob_request,
            min_new_tokens: engine.stopping.min_new_tokens,
            prompt_only: valid.prompt_only,
        };
        let keep_ids = valid.logprob_request.includes_prompt();
        let prompt = PromptOutput {
            ids: if keep_ids {
                engine.prompt.clone()
            } else {
                Vec::new()
            },
            text: request.echoed.clone(),
            tokens: Vec::new(),
        };
        Self {
            text: Arc::clone(model),
            detokenizer: Detokenizer::new(Arc::clone(&model.vocabulary), &engine.prompt),
            stop: StopMatcher::new(&valid.stop),
            parser_options: request.parser_options.clone(),
            output_text: valid.output_text,
            facts,
            sampling: engine.sampling.clone(),
            stop_token_ids: own_stop_tokens(&engine.stopping.stop_token_ids, &model.eos_ids),
            prompt,
            max_new_tokens: engine.stopping.max_new_tokens,
        }
    }

    /// Reports to the timer that the engine accepted the request.
    pub(super) fn count(&self, timer: &mut RequestTimer) {
        timer.accepted(self.facts.prompt_tokens, self.max_new_tokens);
    }

    /// Returns the generations of `sources`, one per choice.
    pub(super) fn generations(self, sources: Sources, timer: RequestTimer) -> Vec<Generation> {
        let others = (1..sources.len()).map(|_| timer.for_choice());
        let timers: Vec<_> = others.collect();
        let choices = sources
            .into_iter()
            .zip((0_u32..).zip(once(timer).chain(timers)));
        let generation = |(source, (choice, timer))| self.generation(source, choice, timer);
        choices.map(generation).collect()
    }

    fn generation(
        &self,
        source: Box<dyn TokenSource>,
        choice: u32,
        timer: RequestTimer,
    ) -> Generation {
        let sampled = self.sampling.temperature > 0.0;
        let facts = GenerationFacts {
            choice,
            seed: sampled.then(|| self.sampling.choice_seed(choice)),
            ..self.facts.clone()
        };
        Generation {
            source: Some(source),
            detokenizer: self.detokenizer.clone(),
            stop: self.stop.clone(),
            visible: self.visible_special_tokens(),
            keeps_stop: self.output_text.stop_string,
            stop_token_ids: self.stop_token_ids.clone(),
            calls: CallSpans::for_options(&self.parser_options),
            parser_options: self.parser_options.clone(),
            text: Arc::clone(&self.text),
            answer: String::with_capacity(ANSWER_BYTES),
            sent: 0,
            failure: None,
            facts,
            prompt: self.prompt.clone(),
            timer,
        }
    }

    /// Returns the special tokens that the client requested or that the output parser needs.
    fn visible_special_tokens(&self) -> VisibleSpecialTokens {
        if self.output_text.special_tokens {
            return VisibleSpecialTokens::All;
        }
        let (text, marks) = (&self.text, self.parser_options.marks());
        let ids = marks.filter_map(|mark| text.tokenizer.token_to_id(mark));
        VisibleSpecialTokens::These(ids.filter(|id| text.vocabulary.is_special(*id)).collect())
    }
}

impl VisibleSpecialTokens {
    fn contain(&self, id: u32) -> bool {
        match self {
            Self::These(ids) => ids.contains(&id),
            Self::All => true,
        }
    }
}

/// Returns the failure that ends a step's event, if one does.
fn failure(step: &mut TokenEvent) -> Option<(ErrorKind, String)> {
    match step.end.take() {
        Some(End::Failed(message)) => Some((ErrorKind::Generation, message)),
        Some(End::DeadlinePassed(message)) => Some((ErrorKind::Deadline, message)),
        other => {
            step.end = other;
            None
        }
    }
}

impl Generation {
    /// Returns the last token if it is one of the request's own stop tokens.
    pub fn stop_token(&self) -> Option<u32> {
        let last = self.facts.last_token;
        self.stop_token_ids.contains(&last).then_some(last)
    }

    /// Returns how to parse the output.
    pub fn parser_options(&self) -> &OutputParserOptions {
        &self.parser_options
    }

    /// Ends the output here; the model generates no more.
    pub fn finish(&mut self) {
        if let Some(source) = self.source.take() {
            source.finish();
            self.timer.succeeded();
        }
    }

    /// Returns facts about the request, and its token counts so far.
    pub fn facts(&self) -> &GenerationFacts {
        &self.facts
    }

    /// Returns the parts of the prompt that the output includes.
    pub fn prompt(&self) -> &PromptOutput {
        &self.prompt
    }

    /// Returns the model's text side.
    pub fn model_text(&self) -> &ModelText {
        &self.text
    }

    /// Returns the request's timings so far.
    pub fn timings(&self) -> Timings {
        self.timer.timings()
    }

    /// Fills `event` with the next step's output. `None` after the end or an error.
    pub fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        event: &mut TextEvent,
    ) -> Poll<Option<Result<(), ApiError>>> {
        event.clear();
        let mut step = loop {
            let Some(source) = &mut self.source else {
                let failure = self.failure.take();
                return Poll::Ready(failure.map(|failure| Err(self.fail(failure))));
            };
            let Some(mut step) = ready!(Pin::new(&mut *source).poll_next(cx)) else {
                let message = "the engine gave up on the request".to_owned();
                return Poll::Ready(Some(Err(self.fail((ErrorKind::Generation, message)))));
            };
            if !self.timer.has_entered() {
                let entry = source.entered();
                self.timer.entered(entry.map(|entry| entry.at));
                self.facts.cached_tokens = entry.map_or(0, |entry| entry.cached_tokens as usize);
            }
            if let Some(logprobs) = &mut step.logprobs {
                self.prompt.tokens.append(&mut logprobs.prompt);
            }
            // Hold prompt logprobs back until tokens or an end follow.
            if !step.tokens.is_empty() || step.end.is_some() {
                break step;
            }
        };
        if let Some(failure) = failure(&mut step) {
            if step.tokens.is_empty() {
                return Poll::Ready(Some(Err(self.fail(failure))));
            }
            self.failure = Some(failure);
            self.source = None;
        }
        self.take(&mut step, event);
        self.timer.tokens(event.tokens.len());
        if event.end.is_some() {
            self.timer.succeeded();
        }
        Poll::Ready(Some(Ok(())))
    }

    /// Waits for the next event; `None` after the end or an error.
    pub async fn next(&mut self, event: &mut TextEvent) -> Option<Result<(), ApiError>> {
        poll_fn(|cx| self.poll_event(cx, event)).await
    }

    fn fail(&mut self, (kind, message): (ErrorKind, String)) -> ApiError {
        self.source = None;
        self.timer.failed(kind);
        ApiError::new(kind, message)
    }

    fn take(&mut self, step: &mut TokenEvent, event: &mut TextEvent) {
        if self.facts.prompt_only {
            return self.end(FinishReason::Length, &Cut::at(0), event);
        }
        if let Some(logprobs) = &mut step.logprobs {
            event.top_logprobs = std::mem::take(&mut logprobs.top_logprobs);
        }
        let end = match step.end {
            Some(End::Length) => Some(FinishReason::Length),
            Some(End::StopToken) => Some(FinishReason::StopToken),
            // Failures were taken out.
            Some(End::Failed(_) | End::DeadlinePassed(_)) | None => None,
        };
        for (index, token) in step.tokens.iter().enumerate() {
            let last = end.filter(|_| index + 1 == step.tokens.len());
            if self.take_token(*token, last, event) {
                return;
            }
        }
        if let Some(reason) = end.filter(|_| step.tokens.is_empty()) {
            self.detokenizer.finish(&mut self.answer);
            self.end(reason, &Cut::at(self.answer.len()), event);
        }
    }

    /// Adds one token to the event; `last` is set if the output ends with it. Returns whether the
    /// output has ended.
    fn take_token(
        &mut self,
        token: Token,
        last: Option<FinishReason>,
        event: &mut TextEvent,
    ) -> bool {
        self.facts.generated_tokens += 1;
        self.facts.last_token = token.id;
        self.facts.logprob_sum += f64::from(token.logprob);
        let before = self.answer.len();
        let mut special = self.text.vocabulary.is_special(token.id);
        if last == Some(FinishReason::StopToken) {
            special = true;
        } else if !special {
            self.detokenizer.push(token.id, &mut self.answer);
        } else if self.visible.contain(token.id) {
            self.detokenizer.finish(&mut self.answer);
            self.answer
                .push_str(&self.text.vocabulary.special_text(token.id));
            special = false;
        }
        if last.is_some() {
            self.detokenizer.finish(&mut self.answer);
        }
        // A special token's event shows its own text, unless it released text that was held back.
        special &= self.answer.len() == before;
        if special {
            event
                .text
                .push_str(&self.text.vocabulary.special_text(token.id));
        } else {
            event.text.push_str(&self.answer[before..]);
        }
        let (text_end, delta_end) = (event.text.len(), event.delta.len());
        let Token { id, logprob } = token;
        event.tokens.push(TextToken {
            id,
            logprob,
            special,
            text_end,
            delta_end,
        });
        let (cut, reason) = match (self.find_stop(before), last) {
            (Some(cut), _) => (cut, Some(FinishReason::StopString)),
            (None, Some(reason)) => (Cut::at(self.answer.len()), Some(reason)),
            (None, None) => (Cut::at(self.answer.len() - self.stop.held()), None),
        };
        event.delta.push_str(&self.answer[self.sent..cut.content]);
        self.sent = cut.content;
        if let Some(token) = event.tokens.last_mut() {
            token.delta_end = event.delta.len();
        }
        match reason {
            Some(reason) => self.end(reason, &cut, event),
            None => return false,
        }
        true
    }

    /// Looks for a stop string in the text from `from` on. A stop string that begins inside a tool
    /// call does not count.
    fn find_stop(&mut self, from: usize) -> Option<Cut> {
        let early = self.facts.generated_tokens < self.facts.min_new_tokens;
        let (answer, calls) = (&self.answer, &mut self.calls);
        let mut called = |start| {
            let calls = calls.as_mut();
            calls.is_some_and(|calls| calls.contains(answer, start))
        };
        let counts = |start| !early && !called(start);
        let found = self.stop.feed(&answer[from..], counts)?;
        let kept = if self.keeps_stop {
            found.end
        } else {
            found.start
        };
        Some(Cut {
            content: kept,
            stop: found.start..found.end,
        })
    }

    /// Ends the output.
    fn end(&mut self, reason: FinishReason, cut: &Cut, event: &mut TextEvent) {
        event.delta.push_str(&self.answer[self.sent..cut.content]);
        let mut text = std::mem::take(&mut self.answer);
        text.truncate(cut.stop.end);
        event.end = Some(TextEnd {
            reason,
            text,
            content_len: cut.content,
            stop_start: cut.stop.start,
        });
        match self.source.take() {
            Some(source) if reason == FinishReason::StopString => source.finish(),
            _ => {}
        }
    }
}

impl Stream for Generation {
    type Item = Result<TextEvent, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut event = TextEvent::default();
        let polled = ready!(self.poll_event(cx, &mut event));
        Poll::Ready(polled.map(|outcome| outcome.map(|()| event)))
    }
}
