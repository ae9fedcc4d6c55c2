//! The way of events from tokio's threads to Python. One thread of its own waits for the
//! interpreter's lock, so that Python code that holds it never holds up the engine.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use penstock_router::engine::Candidate;
use penstock_router::generation::{FinishReason, Generation, TextEvent};
use penstock_router::logprobs::rank_candidates;
use penstock_router::tool_parsers::{OutputDelta, OutputDeltas, OutputParser};
use penstock_router::{ApiError, ErrorKind};
use pyo3::prelude::*;

/// Events that are handed over before other Python threads get a turn.
const BATCH: usize = 256;

/// What one step brought for one answer of a request.
#[pyclass(frozen, get_all)]
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// Which of the request's answers.
    choice: u32,
    /// What the answer's text grows by.
    text: String,
    /// What else the answer's text grows by, in order: ("reasoning" | "call" | "arguments", text).
    pieces: Vec<(&'static str, String)>,
    /// New tokens.
    token_ids: Vec<u32>,
    /// Natural log of each new token's probability.
    logprobs: Vec<f32>,
    /// For each new token what might have been in its place, itself included; empty unless asked for.
    top_logprobs: Vec<Vec<TokenLogprob>>,
    /// The same of the prompt's tokens, nothing for the first; on the first event, if asked for.
    prompt_logprobs: Option<Vec<Vec<TokenLogprob>>>,
    /// Set on the last event of an answer: "length" or "stop".
    finish_reason: Option<&'static str>,
    /// Set on the last event of a request that failed: what is wrong, for people.
    error: Option<String>,
    /// Whether the request itself is at fault.
    invalid: bool,
    /// Tokens of the prompt.
    prompt_tokens: usize,
}

/// Hands events to Python functions.
#[derive(Debug)]
pub(crate) struct Delivery {
    // Bounded by the tokens that requests ask for.
    queue: Sender<QueuedEvent>,
    thread: JoinHandle<()>,
}

/// The Python function that takes one request's events.
#[derive(Clone)]
pub(crate) struct EventSender {
    queue: Sender<QueuedEvent>,
    deliver: Arc<Py<PyAny>>,
}

/// A token in some place: its id, the natural log of its probability, its rank if that is known, and
/// its text.
type TokenLogprob = (u32, f32, Option<u32>, String);

type QueuedEvent = (Arc<Py<PyAny>>, Event);

impl Event {
    /// What a step brought; with the `first`, what is told of the prompt.
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

    /// Takes the event's text apart: content, thoughts, calls. Says whether the answer ends here
    /// though the model would go on.
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
                OutputDelta::CallStart(name) => self.pieces.push(("call", name)),
                OutputDelta::Arguments(text) => self.pieces.push(("arguments", text)),
                OutputDelta::CallEnd => {}
            }
        }
        over
    }

    /// The end of a request that failed.
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

/// The likely tokens in a place and the one that is there, with its rank if that is known.
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
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (queue, inbox) = channel();
        let name = "penstock-delivery".to_owned();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || deliver_all(&inbox))?;
        Ok(Self { queue, thread })
    }

    /// A way to `deliver`.
    pub(crate) fn sender(&self, deliver: Py<PyAny>) -> EventSender {
        EventSender {
            queue: self.queue.clone(),
            deliver: Arc::new(deliver),
        }
    }

    /// Waits until everything is handed over; all mailboxes must be gone, and the caller must not
    /// hold Python's lock.
    pub(crate) fn finish(self) {
        drop(self.queue);
        // A function that is called from the thread cannot wait for it.
        if self.thread.thread().id() != thread::current().id() {
            // It only ends by itself.
            let _ = self.thread.join();
        }
    }
}

impl EventSender {
    /// Sends an event on its way.
    pub(crate) fn send(&self, event: Event) {
        // Without the thread, nobody listens any more.
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
            // The interpreter is ending.
            return;
        }
    }
}

fn hand_over(py: Python<'_>, (deliver, event): QueuedEvent) {
    if let Err(error) = deliver.call1(py, (event,)) {
        error.write_unraisable(py, None);
    }
}
