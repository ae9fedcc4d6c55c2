//! Delivers events from tokio's threads to Python. A dedicated thread waits for the GIL, so that
//! Python code that holds it never blocks the engine.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use penstock_request::logprobs::rank_candidates;
use penstock_request::types::Candidate;
use penstock_request::{ApiError, ErrorKind};
use penstock_text::generation::{FinishReason, Generation, TextEvent};
use penstock_text::tool_parsers::{OutputDelta, OutputDeltas, OutputParser};
use pyo3::prelude::*;

/// Events delivered before other Python threads get a turn.
const BATCH: usize = 256;

/// The output of one step for one choice of a request.
#[pyclass(frozen, get_all)]
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// Index of the choice.
    choice: u32,
    /// New text of the choice.
    text: String,
    /// Other new output, in order: ("reasoning" | "call" | "arguments", text).
    pieces: Vec<(&'static str, String)>,
    /// New tokens.
    token_ids: Vec<u32>,
    /// Natural log of each new token's probability.
    logprobs: Vec<f32>,
    /// For each new token, the top-k candidates of its position and the token itself; empty unless
    /// requested.
    top_logprobs: Vec<Vec<TokenLogprob>>,
    /// The same for the prompt's tokens, empty for the first; on the first event, if requested.
    prompt_logprobs: Option<Vec<Vec<TokenLogprob>>>,
    /// Set on the last event of a choice: "length" or "stop".
    finish_reason: Option<&'static str>,
    /// Error message, on the last event of a request that failed.
    error: Option<String>,
    /// Whether the request is invalid; false for a failure of the engine.
    invalid: bool,
    /// Number of prompt tokens.
    prompt_tokens: usize,
}

/// Calls Python functions with events.
#[derive(Debug)]
pub(crate) struct Delivery {
    // The queue is bounded by the tokens that requests generate.
    queue: Sender<QueuedEvent>,
    thread: JoinHandle<()>,
}

/// A sender to the Python function that takes one request's events.
#[derive(Clone)]
pub(crate) struct EventSender {
    queue: Sender<QueuedEvent>,
    deliver: Arc<Py<PyAny>>,
}

/// A candidate token: its id, the natural log of its probability, its rank if known, and its text.
type TokenLogprob = (u32, f32, Option<u32>, String);

type QueuedEvent = (Arc<Py<PyAny>>, Event);

impl Event {
    /// Converts one step's output; the `first` event also carries the prompt's logprobs.
    pub(crate) fn step(event: &TextEvent, generation: &Generation, first: bool) -> Self {
        let facts = generation.facts();
        Self {
            choice: facts.choice,
            text: event.delta().to_owned(),
            token_ids: event.tokens.iter().map(|token| token.id).collect(),
            logprobs: event.tokens.iter().map(|token| token.logprob).collect(),
            top_logprobs: top_logprobs(event, generation),
            prompt_logprobs: first.then(|| prompt_logprobs(generation)).flatten(),
            finish_reason: event.end.as_ref().map(|end| match end.reason {
                FinishReason::Length => "length",
                FinishReason::StopToken | FinishReason::StopString => "stop",
            }),
            prompt_tokens: facts.prompt_tokens,
            ..Self::default()
        }
    }

    /// Parses the event's text into content, reasoning and tool calls. Returns whether the output
    /// ends here although the model would go on.
    pub(crate) fn parse(&mut self, event: &TextEvent, reader: &mut OutputParser) -> bool {
        let mut pieces = OutputDeltas::default();
        reader.feed(event.delta(), &mut pieces);
        let over = event.end.is_none() && reader.is_over();
        if event.end.is_some() {
            reader.finish(&mut pieces);
        } else if over {
            self.finish_reason = Some("stop");
        }
        self.text.clear();
        for piece in pieces.drain() {
            match piece {
                OutputDelta::Content(text) => self.text.push_str(&text),
                OutputDelta::Reasoning(text) => self.pieces.push(("reasoning", text)),
                OutputDelta::CallStart { name, id } => {
                    self.pieces.push(("call", name));
                    self.pieces.extend(id.map(|id| ("call_id", id)));
                }
                OutputDelta::Arguments(text) => self.pieces.push(("arguments", text)),
                OutputDelta::CallEnd => {}
            }
        }
        over
    }

    /// The last event of a request that failed.
    pub(crate) fn failed(error: &ApiError) -> Self {
        use ErrorKind::{BatchSize, ContextLength, Template, TooLarge, Unsupported, Validation};
        let invalid = matches!(
            error.kind,
            Validation | ContextLength | Unsupported | Template | BatchSize | TooLarge
        );
        Self {
            error: Some(error.to_string()),
            invalid,
            ..Self::default()
        }
    }
}

fn top_logprobs(event: &TextEvent, generation: &Generation) -> Vec<Vec<TokenLogprob>> {
    let Some(count) = generation.facts().logprob_request.tokens else {
        return Vec::new();
    };
    let tokens = event.tokens.iter().enumerate();
    let each = tokens.map(|(index, token)| {
        let (id, logprob) = (token.id, token.logprob);
        let top = event.top(index);
        let top = &top[..top.len().min(count as usize)];
        token_logprobs(generation, (Candidate { id, logprob }, None), top)
    });
    each.collect()
}

fn prompt_logprobs(generation: &Generation) -> Option<Vec<Vec<TokenLogprob>>> {
    let count = generation.facts().logprob_request.prompt? as usize;
    let prompt = generation.prompt();
    let recorded = prompt.ids.iter().skip(1).zip(&prompt.tokens);
    let each = recorded.map(|(&id, recorded)| {
        let logprob = recorded.logprob;
        let top = &recorded.top[..recorded.top.len().min(count)];
        token_logprobs(
            generation,
            (Candidate { id, logprob }, Some(recorded.rank)),
            top,
        )
    });
    Some(std::iter::once(Vec::new()).chain(each).collect())
}

/// Returns the candidates of one position and the token itself, with its rank if known.
fn token_logprobs(
    generation: &Generation,
    (own, rank): (Candidate, Option<u32>),
    top: &[Candidate],
) -> Vec<TokenLogprob> {
    let vocabulary = &generation.model_text().vocabulary;
    let entries = rank_candidates(own, rank, top).into_iter();
    entries
        .map(|token| {
            let text = vocabulary.piece_text(token.id);
            (token.id, token.logprob, token.rank, text)
        })
        .collect()
}

impl Delivery {
    /// Starts the delivery thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (queue, inbox) = channel();
        let name = "penstock-delivery".to_owned();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || deliver_all(&inbox))?;
        Ok(Self { queue, thread })
    }

    /// Returns a sender to `deliver`.
    pub(crate) fn sender(&self, deliver: Py<PyAny>) -> EventSender {
        EventSender {
            queue: self.queue.clone(),
            deliver: Arc::new(deliver),
        }
    }

    /// Waits until every event is delivered. All senders must be dropped, and the caller must not
    /// hold the GIL.
    pub(crate) fn finish(self) {
        drop(self.queue);
        // A callback on the delivery thread must not join that thread.
        if self.thread.thread().id() != thread::current().id() {
            // Nothing is left to do if the thread panicked.
            let _ = self.thread.join();
        }
    }
}

impl EventSender {
    /// Queues an event.
    pub(crate) fn send(&self, event: Event) {
        // The send fails only after the thread has ended; the event is then irrelevant.
        let _ = self.queue.send((Arc::clone(&self.deliver), event));
    }
}

fn deliver_all(inbox: &Receiver<QueuedEvent>) {
    while let Ok(first) = inbox.recv() {
        let handed = Python::try_attach(|py| {
            hand_over(py, first);
            inbox
                .try_iter()
                .take(BATCH)
                .for_each(|queued| hand_over(py, queued));
        });
        if handed.is_none() {
            // The interpreter is shutting down.
            return;
        }
    }
}

fn hand_over(py: Python<'_>, (deliver, event): QueuedEvent) {
    if let Err(error) = deliver.call1(py, (event,)) {
        error.write_unraisable(py, None);
    }
}
