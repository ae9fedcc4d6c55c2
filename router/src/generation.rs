//! Text in, text events out: what every HTTP route and the Python package use.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;

use crate::backend::{Backend, TokenSource};
use crate::budget::Charge;
use crate::config::RouterConfig;
use crate::detokenize::Detokenizer;
use crate::engine::types::{End, Token, TokenEvent};
use crate::engine::{EngineState, Limits};
use crate::error::{ApiError, ErrorKind};
use crate::metrics::{Metrics, RequestTimer, Timings};
use crate::model_text::ModelText;
use crate::stop::StopMatcher;
use crate::tokenize::{self, SpecialTokens, TextPiece, TokenizerPool};
use crate::validate::{
    GenerateInput, Prompt, TokenLimits, ValidParameters, ValidRequest, too_long,
};

/// Turns prompts into answers. Cheap to clone.
#[derive(Clone)]
pub struct Generator {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Box<dyn Backend>,
    text: ModelText,
    pool: TokenizerPool,
    config: RouterConfig,
    metrics: Arc<Metrics>,
}

/// One answer on its way. Dropping it before its end aborts the request at once.
pub struct Generation {
    source: Option<Box<dyn TokenSource>>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    text: ModelText,
    /// The answer's text so far, special tokens left out.
    answer: String,
    /// How much of it went into deltas.
    sent: usize,
    /// Said by the engine beside its last tokens, to be told after them.
    failure: Option<String>,
    facts: Facts,
    timer: RequestTimer,
}

/// What is known of a request when its answer begins, and how many tokens it has by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens of the prompt as the model gets it.
    pub prompt_tokens: usize,
    /// Generated so far, a stop token included.
    pub generated_tokens: u32,
    /// `None` if the answer is greedy.
    pub seed: Option<u64>,
    /// The token generated last; 0 before the first.
    pub last_token: u32,
    min_new_tokens: u32,
}

/// What one step brought, as text. One value may be filled again and again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextEvent {
    /// In order; empty only beside `end`.
    pub tokens: Vec<TextToken>,
    /// Set on the last event.
    pub end: Option<TextEnd>,
    text: String,
    delta: String,
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextToken {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability.
    pub logprob: f32,
    /// Whether it is a special token, whose text is not part of the answer.
    pub special: bool,
    text_end: usize,
    delta_end: usize,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEnd {
    /// Why it ended.
    pub reason: FinishReason,
    /// All of it, up to the end of the stop string that ended it.
    pub text: String,
    /// Bytes of `text` before that stop string.
    pub content_len: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// As many tokens as allowed.
    Length,
    /// One of the model's end tokens.
    StopToken,
    /// A stop string.
    StopString,
}

impl Generator {
    /// Joins an engine with a model's text side; starts the tokenizer threads.
    pub fn new(
        engine: impl Backend,
        model: ModelText,
        config: &RouterConfig,
        metrics: Arc<Metrics>,
    ) -> Self {
        let pool = TokenizerPool::start(config.tokenizer_threads, config.tokenizer_queue);
        let config = config.clone();
        let backend = Box::new(engine);
        Self {
            inner: Arc::new(Inner {
                backend,
                text: model,
                pool,
                config,
                metrics,
            }),
        }
    }

    /// Begins an answer. When this returns, the request is valid, accepted and prepared; dropping
    /// the future withdraws it.
    pub async fn generate(&self, input: GenerateInput) -> Result<Generation, ApiError> {
        let mut timer = RequestTimer::start(&self.inner.metrics.text);
        let begun = async {
            let request = self.prepare(input).await?;
            let begun = Begun::new(&self.inner.text, &request);
            let source = self.inner.backend.submit(request.engine).await?;
            Ok((begun, source))
        };
        let (begun, source) = begun
            .await
            .inspect_err(|e: &ApiError| timer.failed(e.kind))?;
        timer.accepted(begun.facts.prompt_tokens, begun.max_new_tokens);
        Ok(Generation {
            source: Some(source),
            detokenizer: begun.detokenizer,
            stop: begun.stop,
            text: self.inner.text.clone(),
            answer: String::new(),
            sent: 0,
            failure: None,
            facts: begun.facts,
            timer,
        })
    }

    /// The tokens of `text` as a prompt, with their places in it. A text that is longer than the
    /// context is refused, under the name `inputs`.
    pub async fn tokenize(&self, text: String, charge: Charge) -> Result<Vec<TextPiece>, ApiError> {
        let ModelText {
            tokenizer, bound, ..
        } = self.inner.text.clone();
        let max = self
            .token_limits()
            .map_or(usize::MAX, |limits| limits.max_total);
        let least = bound.least_tokens(text.len());
        if least > max {
            return Err(too_long("inputs", max, format_args!("at least {least}")));
        }
        let size = text.len();
        let work = move || {
            let pieces = tokenize::pieces(&tokenizer, &text)?;
            drop((text, charge));
            match pieces.len() {
                given if given > max => Err(too_long("inputs", max, given)),
                _ => Ok(pieces),
            }
        };
        self.inner.pool.run(size, work).await
    }

    /// What the engine is doing.
    pub fn state(&self) -> EngineState {
        self.inner.backend.state()
    }

    /// Why a request sent now would not run; `None` if it would.
    pub fn unready(&self) -> Option<String> {
        obstacle(&self.state())
    }

    /// What the engine can take; `None` until its model is loaded.
    pub fn limits(&self) -> Option<Limits> {
        self.inner.backend.limits()
    }

    /// What a request may ask for; an error while the model is not loaded.
    pub fn token_limits(&self) -> Result<TokenLimits, ApiError> {
        let limits = self.limits().ok_or_else(|| not_loaded(&self.state()))?;
        let max_total = limits.max_sequence_tokens as usize;
        Ok(TokenLimits::new(
            &self.inner.config,
            max_total,
            limits.vocab_size as usize,
        ))
    }

    /// The model's text side.
    pub fn model_text(&self) -> &ModelText {
        &self.inner.text
    }

    /// The metrics that requests are counted in.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    async fn prepare(&self, input: GenerateInput) -> Result<ValidRequest, ApiError> {
        let limits = self.token_limits()?;
        let charge = input.charge.clone();
        let (prompt, parameters) = input.validate(&self.inner.config, limits)?;
        let text = &self.inner.text;
        let prompt = match prompt {
            Prompt::Ids(ids) => return parameters.with_ids(ids, &text.eos_ids),
            prompt => prompt,
        };
        if let Prompt::Text(prompt, _) = &prompt {
            parameters.check_length(prompt, text.bound)?;
        }
        let size = prompt.size();
        let text = text.clone();
        let work = move || {
            // Until here, also when the client has left meanwhile.
            let _charge = charge;
            to_ids(&text, prompt, parameters)
        };
        self.inner.pool.run(size, work).await
    }
}

/// Runs on the tokenizer pool.
fn to_ids(
    model: &ModelText,
    prompt: Prompt,
    parameters: ValidParameters,
) -> Result<ValidRequest, ApiError> {
    let ids = match prompt {
        Prompt::Text(text, special) => tokenize::encode(&model.tokenizer, &text, special)?,
        Prompt::Chat(chat) => {
            let template = model.chat_template.as_ref().ok_or_else(no_template)?;
            let text = template.render(&chat)?;
            parameters.check_length(&text, model.bound)?;
            tokenize::encode(&model.tokenizer, &text, SpecialTokens::AsIs)?
        }
        Prompt::Ids(ids) => ids,
    };
    parameters.with_ids(ids, &model.eos_ids)
}

fn no_template() -> ApiError {
    let message = "this model has no chat template. Send a text to /v1/completions or /generate, \
                   or serve a model with chat_template.jinja or `chat_template` in \
                   tokenizer_config.json";
    ApiError::new(ErrorKind::Template, message)
}

fn not_loaded(state: &EngineState) -> ApiError {
    // It may have become ready since its limits were asked for.
    let why = obstacle(state).unwrap_or_else(|| "model was loading until just now".to_owned());
    ApiError::new(ErrorKind::Unavailable, why).retry(Duration::from_secs(5))
}

/// What keeps an engine in this state from running a request; `None` if nothing does.
fn obstacle(state: &EngineState) -> Option<String> {
    match state {
        EngineState::Ready => None,
        EngineState::Loading {
            phase,
            done,
            total: 0,
        } => Some(format!("model is loading ({phase}: {done})")),
        EngineState::Loading { phase, done, total } => {
            let percent = *done as f64 * 100.0 / *total as f64;
            Some(format!("model is loading ({phase}: {percent:.0}%)"))
        }
        EngineState::Restarting { reason } => Some(format!("workers are restarting: {reason}")),
        EngineState::Draining => Some("server is shutting down".to_owned()),
        EngineState::Stopped { reason } => Some(format!("server has stopped: {reason}")),
    }
}

/// What an answer needs to know of its request after the request has gone to the engine.
struct Begun {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    facts: Facts,
    max_new_tokens: u32,
}

impl Begun {
    fn new(model: &ModelText, request: &ValidRequest) -> Self {
        let engine = &request.engine;
        let facts = Facts {
            prompt_tokens: engine.prompt.len(),
            generated_tokens: 0,
            seed: Some(engine.sampling.seed).filter(|_| engine.sampling.temperature > 0.0),
            last_token: 0,
            min_new_tokens: engine.stopping.min_new_tokens,
        };
        Self {
            detokenizer: Detokenizer::new(Arc::clone(&model.vocabulary), &engine.prompt),
            stop: StopMatcher::new(&request.stop),
            facts,
            max_new_tokens: engine.stopping.max_new_tokens,
        }
    }
}

impl Generation {
    /// What is known of the request, and how many tokens it has by now.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How long things took so far.
    pub fn timings(&self) -> Timings {
        self.timer.timings()
    }

    /// Fills `event` with what the next step brought. `None` after the end or an error.
    pub fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        event: &mut TextEvent,
    ) -> Poll<Option<Result<(), ApiError>>> {
        event.clear();
        if let Some(message) = self.failure.take() {
            return Poll::Ready(Some(Err(self.fail(message))));
        }
        let Some(source) = &mut self.source else {
            return Poll::Ready(None);
        };
        let Some(step) = ready!(Pin::new(source).poll_next(cx)) else {
            return Poll::Ready(Some(Err(
                self.fail("the engine gave up on the request".into())
            )));
        };
        if let Some(End::Failed(message)) = &step.end {
            if step.tokens.is_empty() {
                return Poll::Ready(Some(Err(self.fail(message.clone()))));
            }
            self.failure = Some(message.clone());
        }
        self.take(&step, event);
        self.timer.tokens(event.tokens.len());
        if event.end.is_some() {
            self.timer.succeeded();
        }
        Poll::Ready(Some(Ok(())))
    }

    /// The next event; `None` after the end or an error.
    pub async fn next(&mut self, event: &mut TextEvent) -> Option<Result<(), ApiError>> {
        poll_fn(|cx| self.poll_event(cx, event)).await
    }

    fn fail(&mut self, message: String) -> ApiError {
        self.source = None;
        self.timer.failed(ErrorKind::Generation);
        ApiError::new(ErrorKind::Generation, message)
    }

    fn take(&mut self, step: &TokenEvent, event: &mut TextEvent) {
        let end = match step.end {
            Some(End::Length) => Some(FinishReason::Length),
            Some(End::StopToken) => Some(FinishReason::StopToken),
            Some(End::Failed(_)) | None => None,
        };
        for (index, token) in step.tokens.iter().enumerate() {
            let last = end.filter(|_| index + 1 == step.tokens.len());
            if self.take_token(*token, last, event) {
                return;
            }
        }
        if let Some(reason) = end.filter(|_| step.tokens.is_empty()) {
            self.detokenizer.finish(&mut self.answer);
            self.end(reason, (self.answer.len(), self.answer.len()), event);
        }
    }

    /// Adds one token to the event; `last` if the answer ends with it. Says whether it has ended.
    fn take_token(
        &mut self,
        token: Token,
        last: Option<FinishReason>,
        event: &mut TextEvent,
    ) -> bool {
        self.facts.generated_tokens += 1;
        self.facts.last_token = token.id;
        let before = self.answer.len();
        let mut special = self.text.vocabulary.is_special(token.id);
        if last == Some(FinishReason::StopToken) {
            special = true;
        } else if !special {
            self.detokenizer.push(token.id, &mut self.answer);
        }
        if last.is_some() {
            self.detokenizer.finish(&mut self.answer);
        }
        // A special token shows itself, unless text that was held back must be shown now.
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
            (None, Some(reason)) => ((self.answer.len(), self.answer.len()), Some(reason)),
            (None, None) => ((self.answer.len() - self.stop.held(), 0), None),
        };
        event.delta.push_str(&self.answer[self.sent..cut.0]);
        self.sent = cut.0;
        if let Some(token) = event.tokens.last_mut() {
            token.delta_end = event.delta.len();
        }
        match reason {
            Some(reason) => self.end(reason, cut, event),
            None => return false,
        }
        true
    }

    /// Looks for a stop string in what the answer has from `from` on: (its start, its end).
    fn find_stop(&mut self, mut from: usize) -> Option<(usize, usize)> {
        loop {
            let found = self.stop.feed(&self.answer[from..])?;
            if self.facts.generated_tokens >= self.facts.min_new_tokens {
                return Some((found.start, found.end));
            }
            from = found.end;
        }
    }

    /// Ends the answer; of its text, `cut` is (content, content and stop string) in bytes.
    fn end(&mut self, reason: FinishReason, cut: (usize, usize), event: &mut TextEvent) {
        event.delta.push_str(&self.answer[self.sent..cut.0]);
        let mut text = std::mem::take(&mut self.answer);
        text.truncate(cut.1);
        event.end = Some(TextEnd {
            reason,
            text,
            content_len: cut.0,
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

impl TextEvent {
    /// Each token with its own text, and with the part of the answer that may be shown since the
    /// token before it: whole characters that cannot become part of a stop string.
    pub fn tokens(&self) -> impl Iterator<Item = (&TextToken, &str, &str)> {
        let starts = std::iter::once((0, 0)).chain(
            self.tokens
                .iter()
                .map(|token| (token.text_end, token.delta_end)),
        );
        self.tokens
            .iter()
            .zip(starts)
            .map(|(token, (text, delta))| {
                (
                    token,
                    &self.text[text..token.text_end],
                    &self.delta[delta..token.delta_end],
                )
            })
    }

    /// What the event adds to the answer that may be shown.
    pub fn delta(&self) -> &str {
        &self.delta
    }

    /// What of the delta belongs to no token: there is some only in an end without tokens.
    pub fn rest(&self) -> &str {
        &self.delta[self.tokens.last().map_or(0, |token| token.delta_end)..]
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.text.clear();
        self.delta.clear();
        self.end = None;
    }
}

impl TextToken {
    /// A token without text, for an end that brings no token.
    pub(crate) fn special(id: u32) -> Self {
        Self {
            id,
            logprob: 0.0,
            special: true,
            text_end: 0,
            delta_end: 0,
        }
    }
}

impl TextEnd {
    /// The answer without the stop string that ended it.
    pub fn content(&self) -> &str {
        &self.text[..self.content_len]
    }
}
