//! The way of tokens from the engine's task to the threads that write them out.
//!
//! A thread that serves hundreds of streams is woken once per step, by one message with what the
//! step brought for all of them. It then fills their inboxes and wakes their tasks by itself, which
//! costs no system call. Had the engine woken every task, each would have cost one.

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

use super::types::{End, Entry, TokenEvent};

/// Tokens that an event holds at most, however long its stream was not read.
const MAX_EVENT_TOKENS: usize = 64;

/// Where the streams of one runtime get their events. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EventRouter {
    sender: mpsc::UnboundedSender<Vec<RoutedEvent>>,
    inboxes: Inboxes,
}

type RoutedEvent = (SequenceId, TokenEvent);
type Inboxes = Arc<Mutex<HashMap<SequenceId, Arc<Inbox>>>>;

/// What has come for one stream since it looked last.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    /// The first entry into a slot.
    entered: OnceLock<Entry>,
}

#[derive(Debug, Default)]
struct Waiting {
    event: Option<TokenEvent>,
    reader: Option<Waker>,
}

/// The engine's end of one stream. If it is dropped before it has sent an end, the stream is told
/// that the engine is gone.
#[derive(Debug)]
pub(super) struct EventSender {
    event_router: EventRouter,
    id: SequenceId,
    inbox: Arc<Inbox>,
    ended: bool,
}

/// What the engine has for the streams, until it is posted: a message per office.
#[derive(Default)]
pub(super) struct EventBatch(Vec<(EventRouter, Vec<RoutedEvent>)>);

impl EventRouter {
    /// The office of the current runtime. Ends with the last handle, stream and outlet.
    pub(super) fn start() -> Self {
        // Bounded by the tokens that the office's requests may generate.
        let (sender, arrivals) = mpsc::unbounded_channel();
        let inboxes = Inboxes::default();
        tokio::spawn(distribute(arrivals, Arc::clone(&inboxes)));
        Self { sender, inboxes }
    }

    /// A stream's two ends.
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

    /// Nobody reads the stream any more.
    pub(super) fn close(&self, id: SequenceId) {
        let inbox = lock(&self.inboxes).remove(&id);
        drop(inbox);
    }

    fn same_channel(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}

impl Inbox {
    /// What has come since the last call, or as much of it as one event may hold.
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

    /// How the request began to run; none while it waits.
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
    /// Hands the stream an event with the next post.
    pub(super) fn put(&mut self, event: TokenEvent, event_batch: &mut EventBatch) {
        self.ended |= event.end.is_some();
        event_batch.put(&self.event_router, (self.id, event));
    }

    /// The request has entered a slot with so many tokens from the prefix cache. Only the first
    /// entry counts: later ones follow a preemption.
    pub(super) fn enter(&self, cached_tokens: u32) {
        let entry = || Entry {
            at: Instant::now(),
            cached_tokens,
        };
        self.inbox.entered.get_or_init(entry);
    }

    /// Ends the stream at once.
    pub(super) fn end(&mut self, end: End) {
        self.ended = true;
        let event = TokenEvent {
            end: Some(end),
            ..TokenEvent::default()
        };
        // An office that is gone has no streams left.
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

    /// Sends everything on its way.
    pub(super) fn flush(&mut self) {
        self.0.retain_mut(|(event_router, events)| {
            let room = events.len();
            let events = mem::replace(events, Vec::with_capacity(room));
            // An office without news may be over: it is found again when there is some.
            !events.is_empty() && event_router.sender.send(events).is_ok()
        });
    }
}

/// An office's task: runs where its streams are read.
async fn distribute(mut arrivals: mpsc::UnboundedReceiver<Vec<RoutedEvent>>, inboxes: Inboxes) {
    while let Some(events) = arrivals.recv().await {
        let inboxes = lock(&inboxes);
        for (id, event) in events {
            if let Some(inbox) = inboxes.get(&id) {
                // Waking runs code of the reader's runtime: whatever it does, the other streams go on.
                let put = AssertUnwindSafe(|| inbox.put(event));
                if catch_unwind(put).is_err() {
                    tracing::error!(request = id.request.0, "its reader cannot be woken");
                }
            }
        }
    }
}

/// Nothing that happens under these locks can leave a value half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::ids::RequestId;

    use super::*;
    use crate::engine::types::{Candidate, Logprobs, Token};

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

    /// What waits for a reader that comes late: all tokens, each with its alternatives, in events of
    /// bounded size, the end with the last of them.
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

    /// One message per step and runtime, whoever its streams are; none where there is no news.
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
