//! Routes tokens from the engine's task to the threads that write them out.
//!
//! A thread that serves hundreds of streams is woken once per step, by one message with the step's
//! events for all of them. It then fills their inboxes and wakes their tasks itself, which costs no
//! system call. Waking every task from the engine would cost one each.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use foldhash::HashMap;
use penstock_scheduler::ids::SequenceId;
use tokio::sync::mpsc;

use penstock_request::types::{End, Entry, TokenEvent};

/// Maximum tokens in an event, however long its stream was not polled.
const MAX_EVENT_TOKENS: usize = 64;

/// Routes events to the streams of one runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EventRouter {
    sender: mpsc::UnboundedSender<Vec<RoutedEvent>>,
    inboxes: Inboxes,
}

type RoutedEvent = (SequenceId, TokenEvent);
type Inboxes = Arc<Mutex<HashMap<SequenceId, Arc<Inbox>>>>;

/// Events of one stream that were not polled yet, merged into one.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    /// The sequence's first entry into a slot.
    entered: OnceLock<Entry>,
}

#[derive(Debug, Default)]
struct Waiting {
    event: Option<TokenEvent>,
    reader: Option<Waker>,
}

/// The engine's end of one stream. If it is dropped before it has sent an end, the stream ends with
/// an error.
#[derive(Debug)]
pub(super) struct EventSender {
    event_router: EventRouter,
    id: SequenceId,
    inbox: Arc<Inbox>,
    ended: bool,
}

/// Events of a step until `flush` sends them: one message per router.
#[derive(Default)]
pub(super) struct EventBatch(Vec<(EventRouter, Vec<RoutedEvent>)>);

impl EventRouter {
    /// Starts a router on the current runtime. Its task ends with the last handle, stream and event
    /// sender.
    pub(super) fn start() -> Self {
        // Bounded by the tokens that the router's requests may generate.
        let (sender, arrivals) = mpsc::unbounded_channel();
        let inboxes = Inboxes::default();
        tokio::spawn(distribute(arrivals, Arc::clone(&inboxes)));
        Self { sender, inboxes }
    }

    /// Creates both ends of a stream.
    pub(super) fn stream(&self, id: SequenceId) -> (EventSender, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::default());
        lock(&self.inboxes).insert(id, Arc::clone(&inbox));
        let event_sender = EventSender {
            event_router: self.clone(),
            id,
            inbox: Arc::clone(&inbox),
            ended: false,
        };
        (event_sender, inbox)
    }

    /// Removes a stream that was dropped.
    pub(super) fn close(&self, id: SequenceId) {
        let inbox = lock(&self.inboxes).remove(&id);
        drop(inbox);
    }

    fn same_channel(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}

impl Inbox {
    /// Takes the tokens that arrived since the last call, up to `MAX_EVENT_TOKENS`.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<TokenEvent> {
        let mut waiting = lock(&self.waiting);
        if let Some(event) = waiting.take() {
            return Poll::Ready(event);
        }
        match &mut waiting.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader => *reader = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the first entry into a slot; `None` while the sequence waits.
    pub(super) fn entered(&self) -> Option<Entry> {
        self.entered.get().copied()
    }

    fn put(&self, event: TokenEvent) {
        let mut waiting = lock(&self.waiting);
        match &mut waiting.event {
            None => waiting.event = Some(event),
            Some(unread) => {
                unread.tokens.extend(event.tokens);
                match (&mut unread.logprobs, event.logprobs) {
                    (Some(logprobs), Some(later)) => logprobs.extend(*later),
                    (logprobs @ None, later) => *logprobs = later,
                    (Some(_), None) => {}
                }
                unread.end = unread.end.take().or(event.end);
            }
        }
        if let Some(reader) = &waiting.reader {
            reader.wake_by_ref();
        }
    }
}

impl Waiting {
    fn take(&mut self) -> Option<TokenEvent> {
        let event = self.event.as_mut()?;
        if event.tokens.len() <= MAX_EVENT_TOKENS {
            return self.event.take();
        }
        let logprobs = event
            .logprobs
            .as_mut()
            .map(|logprobs| logprobs.split_off_front(MAX_EVENT_TOKENS));
        Some(TokenEvent {
            tokens: event.tokens.drain(..MAX_EVENT_TOKENS).collect(),
            end: None,
            logprobs: logprobs.map(Box::new),
        })
    }
}

impl EventSender {
    /// Adds an event to the batch.
    pub(super) fn put(&mut self, event: TokenEvent, event_batch: &mut EventBatch) {
        self.ended |= event.end.is_some();
        event_batch.put(&self.event_router, (self.id, event));
    }

    /// Records that the sequence entered a slot with this many tokens from the prefix cache. Only
    /// the first entry counts: later ones follow a preemption.
    pub(super) fn enter(&self, cached_tokens: u32) {
        let entry = || Entry {
            at: Instant::now(),
            cached_tokens,
        };
        self.inbox.entered.get_or_init(entry);
    }

    /// Ends the stream without waiting for the next batch.
    pub(super) fn end(&mut self, end: End) {
        self.ended = true;
        let event = TokenEvent {
            end: Some(end),
            ..TokenEvent::default()
        };
        // A router that is gone has no streams left.
        let _ = (self.event_router.sender).send(vec![(self.id, event)]);
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        if !self.ended {
            self.end(End::Failed(
                "the engine stopped while the request ran".into(),
            ));
        }
    }
}

impl EventBatch {
    fn put(&mut self, event_router: &EventRouter, event: RoutedEvent) {
        let known = self
            .0
            .iter_mut()
            .find(|(other, _)| other.same_channel(event_router));
        match known {
            Some((_, events)) => events.push(event),
            None => self.0.push((event_router.clone(), vec![event])),
        }
    }

    /// Sends all events.
    pub(super) fn flush(&mut self) {
        self.0.retain_mut(|(event_router, events)| {
            let room = events.len();
            let events = mem::replace(events, Vec::with_capacity(room));
            // Forget routers without events: their runtime may be gone. `put` adds them again.
            !events.is_empty() && event_router.sender.send(events).is_ok()
        });
    }
}

/// A router's task. Runs on the runtime of its streams.
async fn distribute(mut arrivals: mpsc::UnboundedReceiver<Vec<RoutedEvent>>, inboxes: Inboxes) {
    while let Some(events) = arrivals.recv().await {
        let inboxes = lock(&inboxes);
        for (id, event) in events {
            if let Some(inbox) = inboxes.get(&id) {
                // Waking runs code of the stream's runtime; a panic there must not affect other
                // streams.
                let put = AssertUnwindSafe(|| inbox.put(event));
                if catch_unwind(put).is_err() {
                    tracing::error!(request = id.request.0, "waking the stream's task panicked");
                }
            }
        }
    }
}

/// Recovers from poisoning: no panic under these locks can leave a value half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::ids::RequestId;

    use super::*;
    use penstock_request::types::{Candidate, Logprobs, Token};

    fn event(first: u32, count: u32, end: Option<End>) -> TokenEvent {
        let token = |id| Token { id, logprob: 0.0 };
        let candidate = |id| vec![Candidate { id, logprob: 0.0 }];
        let top_logprobs = (first..first + count).map(candidate).collect();
        let prompt = Vec::new();
        TokenEvent {
            tokens: (first..first + count).map(token).collect(),
            end,
            logprobs: Some(Box::new(Logprobs {
                top_logprobs,
                prompt,
            })),
        }
    }

    /// A late reader gets all tokens with their alternatives, in events of bounded size, and the
    /// end with the last event.
    #[test]
    fn a_late_reader_gets_everything_in_events_of_64_tokens() {
        for total in [63, 64, 65, 128, 129, 200] {
            let inbox = Inbox::default();
            let (half, mut cx) = (total / 2, Context::from_waker(Waker::noop()));
            inbox.put(event(0, half, None));
            inbox.put(event(half, total - half, Some(End::Length)));
            let (mut read, mut sizes) = (Vec::new(), Vec::new());
            loop {
                let Poll::Ready(event) = inbox.poll(&mut cx) else {
                    panic!("{total}: nothing left, and no end")
                };
                let logprobs = event.logprobs.unwrap();
                let top_logprobs = logprobs.top_logprobs.iter().map(|top| top[0].id);
                let ids: Vec<_> = event.tokens.iter().map(|token| token.id).collect();
                assert_eq!(top_logprobs.collect::<Vec<_>>(), ids);
                sizes.push(ids.len());
                read.extend(ids);
                if event.end.is_some() {
                    break;
                }
            }
            assert_eq!(read, (0..total).collect::<Vec<_>>());
            let (last, full) = sizes.split_last().unwrap();
            assert!(full.iter().all(|&size| size == 64) && (1..=64).contains(last));
            assert!(inbox.poll(&mut cx).is_pending());
        }
    }

    /// One message per step and runtime; none without events.
    #[tokio::test]
    async fn an_event_batch_sends_one_message_per_router() {
        let (sender, mut first) = mpsc::unbounded_channel();
        let (other_sender, mut second) = mpsc::unbounded_channel();
        let [here, there] = [sender, other_sender].map(|sender| EventRouter {
            sender,
            inboxes: Inboxes::default(),
        });
        let id = |request| SequenceId {
            request: RequestId(request),
            index: 0,
        };
        let [mut one, mut two] = [1, 2].map(|request| here.stream(id(request)).0);
        let mut three = there.stream(id(3)).0;
        let mut event_batch = EventBatch::default();
        for step in 0..2 {
            one.put(event(step, 1, None), &mut event_batch);
            three.put(event(step, 1, None), &mut event_batch);
            two.put(event(step, 1, None), &mut event_batch);
            event_batch.flush();
            event_batch.flush();
            let ids =
                |events: Vec<RoutedEvent>| events.iter().map(|(id, _)| id.request.0).collect();
            let come: [Vec<u64>; 2] = [&mut first, &mut second].map(|m| ids(m.try_recv().unwrap()));
            assert_eq!(come, [vec![1, 2], vec![3]]);
            assert!(first.try_recv().is_err() && second.try_recv().is_err());
        }
        assert_eq!(
            event_batch.0.len(),
            0,
            "routers without events are forgotten"
        );
        one.put(event(9, 1, Some(End::Length)), &mut event_batch);
        event_batch.flush();
        assert_eq!(first.try_recv().unwrap().len(), 1);
        drop(one);
        assert!(first.try_recv().is_err(), "it has sent its end");
        drop(two);
        let lost = first.try_recv().unwrap().remove(0).1.end;
        assert!(matches!(lost, Some(End::Failed(_))), "{lost:?}");
    }
}
