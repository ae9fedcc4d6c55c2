//! The handle to the engine, which the text layer uses as its backend, and its streams of tokens.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use futures_core::Stream;
use penstock_request::{
    EngineState, Limits,
    backend::{Backend, Sources, TokenSource},
    client::Client,
    deadline::Deadline,
    tenant::Caller,
    types::{EngineRequest, Entry, SubmitError, TokenEvent},
};
use penstock_scheduler::{
    FairShare, Policy,
    ids::{RequestId, SequenceId},
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    EngineConfig, EngineMetrics, Workers,
    event_router::{EventRouter, EventSender, Inbox},
    records::Submission,
    state::Shared,
    task::{Command, Task},
};

/// A handle that submits requests to the engine's task. The task ends when it is drained, after
/// too many losses of the workers, or when all handles and token streams are dropped.
#[derive(Clone)]
pub struct Engine {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
    next_id: Arc<AtomicU64>,
    event_router: EventRouter,
}

/// The tokens of one choice of a request. Yields an event whenever tokens have arrived, and ends
/// after the event with `end` set. Dropping it earlier aborts the choice immediately, at any stage.
///
/// Unread tokens accumulate in a single event, which holds at most `max_new_tokens` tokens.
#[derive(Debug)]
pub struct TokenStream {
    id: SequenceId,
    inbox: Arc<Inbox>,
    event_router: EventRouter,
    commands: mpsc::UnboundedSender<Command>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The engine sends no more events and needs no command on drop.
    Ended,
}

impl Engine {
    /// Spawns the engine's task on the current tokio runtime; the task starts the workers. Streams
    /// of the returned handle must be polled on this runtime too.
    pub fn start(workers: Box<dyn Workers>, config: EngineConfig, metrics: EngineMetrics) -> Self {
        Self::start_with(workers, config, metrics, || Box::new(FairShare))
    }

    /// Like `start`, with another scheduling policy. `policy` is called for every scheduler that
    /// the engine creates: one, unless a panic ends it.
    pub fn start_with(
        workers: Box<dyn Workers>,
        config: EngineConfig,
        metrics: EngineMetrics,
        policy: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        // Bounded by its senders: one submission per request, one end per choice, one drain per
        // caller.
        let (commands, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new());
        let task = Task::new(queue, Arc::clone(&shared), config, metrics);
        let task = task.with_policy(Arc::new(policy));
        tokio::spawn(task.run(workers));
        Self {
            commands,
            shared,
            next_id: Arc::default(),
            event_router: EventRouter::start(),
        }
    }

    /// Returns a handle for streams that are polled on the current tokio runtime, when that is not
    /// the engine's: one wake-up per step carries the tokens of all of them there.
    pub fn on_this_runtime(&self) -> Self {
        Self {
            event_router: EventRouter::start(),
            ..self.clone()
        }
    }

    /// Submits a request and returns its first choice once the request is accepted and prepared.
    /// Dropping the future withdraws it.
    pub async fn submit(&self, request: EngineRequest) -> Result<TokenStream, SubmitError> {
        let mut streams = self.submit_all(request).await?;
        Ok(streams.swap_remove(0))
    }

    /// Submits a request and returns a stream per choice once the request is accepted and prepared.
    /// Dropping the future withdraws it.
    pub async fn submit_all(
        &self,
        request: EngineRequest,
    ) -> Result<Vec<TokenStream>, SubmitError> {
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let ids = (0..request.choices.max(1)).map(|choice| SequenceId {
            request: id,
            index: choice,
        });
        let ends =
            ids.map(|id| TokenStream::new(id, self.event_router.clone(), self.commands.clone()));
        let (event_senders, mut streams): (Vec<_>, Vec<_>) = ends.unzip();
        let (sender, answer) = oneshot::channel();
        let submission = Box::new(Submission {
            id,
            request,
            client: Client::current(),
            deadline: Deadline::current(),
            caller: Caller::current(),
            event_senders,
            answer: sender,
        });
        let sent = self.commands.send(Command::Submit(submission)).is_ok();
        // Without a reply the engine's task has ended, and the state has the reason.
        let answer = if sent { answer.await.ok() } else { None };
        match answer.unwrap_or_else(|| Err(self.stopped())) {
            Ok(()) => Ok(streams),
            Err(error) => {
                streams.iter_mut().for_each(TokenStream::disarm);
                Err(error)
            }
        }
    }

    /// Returns the engine's current state.
    pub fn state(&self) -> EngineState {
        self.shared.state()
    }

    /// Returns for how long a step has been overdue by its cost model: the workers may hang. `None`
    /// while all steps are in time.
    pub fn overdue(&self) -> Option<Duration> {
        self.shared.overdue()
    }

    /// Returns a receiver that follows the engine's state.
    pub fn watch(&self) -> watch::Receiver<EngineState> {
        self.shared.watch()
    }

    /// Returns the limits of the loaded model; `None` until it is loaded.
    pub fn limits(&self) -> Option<Limits> {
        self.shared.limits()
    }

    /// Refuses new requests, lets accepted ones finish within `grace`, fails the rest and stops the
    /// workers. Returns when all of this is done.
    pub async fn drain(&self, grace: Duration) {
        let mut state = self.watch();
        // A stopped engine is already drained.
        let _ = self.commands.send(Command::Drain { grace });
        let stopped = |state: &EngineState| matches!(state, EngineState::Stopped { .. });
        // An error means that the task has ended; there is nothing to wait for.
        let _ = state.wait_for(stopped).await;
    }

    fn stopped(&self) -> SubmitError {
        match self.state() {
            EngineState::Stopped { .. } => SubmitError::Unavailable {
                reason: "the engine has stopped; the server's log says why".into(),
                retry_after: Duration::from_secs(30),
            },
            EngineState::Draining => SubmitError::Draining,
            // The task panicked while it accepted the request.
            _ => SubmitError::Internal(
                "the engine failed on this request; the server's log says why".into(),
            ),
        }
    }
}

impl TokenStream {
    fn new(
        id: SequenceId,
        event_router: EventRouter,
        commands: mpsc::UnboundedSender<Command>,
    ) -> (EventSender, Self) {
        let (event_sender, inbox) = event_router.stream(id);
        let stream = Self {
            id,
            inbox,
            event_router,
            commands,
            state: State::Running,
        };
        (event_sender, stream)
    }

    /// Ends the choice because its output is complete (a stop string was found), as dropping it
    /// does: its computed blocks may serve later requests in both cases.
    pub fn finish(self) {}

    /// Returns the first entry into a slot; `None` while the sequence waits.
    pub fn entered(&self) -> Option<Entry> {
        self.inbox.entered()
    }

    fn disarm(&mut self) {
        self.state = State::Ended;
    }
}

impl Stream for TokenStream {
    type Item = TokenEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        if self.state == State::Ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.inbox.poll(cx));
        if event.end.is_some() {
            self.state = State::Ended;
        }
        Poll::Ready(Some(event))
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.event_router.close(self.id);
        if self.state == State::Running {
            // A stopped engine has no requests left to end.
            let _ = self.commands.send(Command::Abort(self.id));
        }
    }
}

#[async_trait]
impl Backend for Engine {
    async fn submit(&self, request: EngineRequest) -> Result<Sources, SubmitError> {
        let boxed = |stream| Box::new(stream) as Box<dyn TokenSource>;
        let streams = self.submit_all(request).await?;
        Ok(streams.into_iter().map(boxed).collect())
    }

    fn on_this_runtime(&self) -> Arc<dyn Backend> {
        Arc::new(Self::on_this_runtime(self))
    }

    fn state(&self) -> EngineState {
        Self::state(self)
    }

    fn limits(&self) -> Option<Limits> {
        Self::limits(self)
    }

    fn overdue(&self) -> Option<Duration> {
        Self::overdue(self)
    }
}

impl TokenSource for TokenStream {
    fn finish(self: Box<Self>) {
        Self::finish(*self);
    }

    fn entered(&self) -> Option<Entry> {
        Self::entered(self)
    }
}
