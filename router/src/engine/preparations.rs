//! Requests that the workers prepare, beside the steps.

use std::{
    any::Any,
    collections::HashMap,
    future::{Future, pending},
    sync::{Arc, Weak},
};

use penstock_scheduler::ids::RequestId;
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, Id, JoinError, JoinSet},
};

use crate::{client::Client, panic_message, shard::PrepareError};

/// Calls under way at once: more wait here, where they cost a worker no thread.
const MAX_CALLS: usize = 16;
/// And of one client: the others' need not wait behind all of its calls.
const MAX_CALLS_PER_CLIENT: usize = MAX_CALLS / 2;

/// A request, and what came of its call.
type Ended = (RequestId, Result<(), PrepareError>);

/// A task, and what its call returned.
type Returned = (Id, Result<(), PrepareError>);

/// The calls that are under way, each in a task of its own.
pub(super) struct Preparations {
    calls: JoinSet<Result<(), PrepareError>>,
    handles: HashMap<RequestId, AbortHandle>,
    /// Whose call a task is.
    requests: HashMap<Id, RequestId>,
    turns: Arc<Semaphore>,
    /// Of each client that has calls here.
    shares: HashMap<Option<Client>, Weak<Semaphore>>,
}

impl Default for Preparations {
    fn default() -> Self {
        Self {
            calls: JoinSet::new(),
            handles: HashMap::new(),
            requests: HashMap::new(),
            turns: Arc::new(Semaphore::new(MAX_CALLS)),
            shares: HashMap::new(),
        }
    }
}

impl Preparations {
    pub(super) fn begin(
        &mut self,
        id: RequestId,
        client: Option<Client>,
        call: impl Future<Output = Result<(), PrepareError>> + Send + 'static,
    ) {
        let (turns, share) = (Arc::clone(&self.turns), self.share(client));
        let handle = self.calls.spawn(async move {
            // Never closed: an error cannot be.
            let _share = share.acquire().await;
            let _turn = turns.acquire().await;
            call.await
        });
        self.requests.insert(handle.id(), id);
        self.handles.insert(id, handle);
    }

    /// The turns of one client.
    fn share(&mut self, client: Option<Client>) -> Arc<Semaphore> {
        if let Some(share) = self.shares.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        self.shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(MAX_CALLS_PER_CLIENT));
        self.shares.insert(client, Arc::downgrade(&share));
        share
    }

    /// Whether a request's call is under way.
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.handles.contains_key(&id)
    }

    /// Withdraws a request: its call is dropped, which cancels it at the workers.
    pub(super) fn cancel(&mut self, id: RequestId) {
        if let Some(handle) = self.handles.remove(&id) {
            handle.abort();
        }
    }

    /// A call that has ended.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        while let Some(ended) = self.calls.try_join_next_with_id() {
            let known = self.take(ended);
            if known.is_some() {
                return known;
            }
        }
        None
    }

    /// The next call that ends; waits for ever if there is none. May be dropped and called again at
    /// any time.
    pub(super) async fn next(&mut self) -> Ended {
        while let Some(ended) = self.calls.join_next_with_id().await {
            if let Some(ended) = self.take(ended) {
                return ended;
            }
        }
        pending().await
    }

    /// Whose call has ended; nobody's if it was cancelled.
    fn take(&mut self, ended: Result<Returned, JoinError>) -> Option<Ended> {
        let (task, result) = match ended {
            Ok((task, result)) => (task, Some(result)),
            Err(error) => (error.id(), error.try_into_panic().ok().map(failed)),
        };
        let id = self.requests.remove(&task)?;
        let result = result?;
        self.handles.remove(&id);
        Some((id, result))
    }

    /// Cancels all.
    pub(super) async fn end(&mut self) {
        self.handles.clear();
        self.requests.clear();
        self.calls.shutdown().await;
    }
}

/// The request must hear of a call that has panicked: it would wait for ever.
#[expect(clippy::needless_pass_by_value, reason = "as `JoinError` gives it")]
fn failed(panic: Box<dyn Any + Send>) -> Result<(), PrepareError> {
    let words = panic_message(&*panic);
    Err(PrepareError::Internal(format!("the call failed: {words}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_panics_is_an_error_of_its_request_alone() {
        let mut calls = Preparations::default();
        calls.begin(RequestId(1), None, async { panic!("on purpose") });
        let (id, result) = calls.next().await;
        let why = PrepareError::Internal("the call failed: on purpose".into());
        assert_eq!((id, result), (RequestId(1), Err(why)));
        assert!(!calls.has(RequestId(1)));
        calls.begin(RequestId(2), None, pending());
        calls.begin(RequestId(3), None, async { Ok(()) });
        calls.cancel(RequestId(2));
        assert_eq!(calls.next().await, (RequestId(3), Ok(())));
        while calls.ended().is_some() || !calls.calls.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(calls.requests.is_empty() && calls.handles.is_empty());
    }

    /// A call that runs until it is cancelled; `running` is as large as there are such.
    async fn call(running: Arc<()>) -> Result<(), PrepareError> {
        let _running = running;
        pending().await
    }

    async fn settled() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_client_keeps_its_share_when_others_come() {
        let mut calls = Preparations::default();
        let client = |last| Some(Client::at([10, 0, 0, last].into()));
        let own = Arc::new(());
        for (id, last) in (0..8)
            .map(|id| (id, 1))
            .chain([(8, 2)])
            .chain((9..12).map(|id| (id, 1)))
        {
            let running = Arc::clone(&own);
            calls.begin(RequestId(id), client(last), async move {
                call(Arc::clone(&running)).await
            });
        }
        settled().await;
        // Twelve calls hold it; nine of them run.
        assert_eq!(Arc::strong_count(&own) - 1, 12 + 9);
        calls.end().await;
    }

    #[tokio::test]
    async fn one_client_has_at_most_half_of_the_prepare_calls() {
        let mut calls = Preparations::default();
        let client = |last| Some(Client::at([10, 0, 0, last].into()));
        let (own, others) = (Arc::new(()), Arc::new(()));
        let begun = |counter: &Arc<()>| {
            let counter = Arc::clone(counter);
            async move { call(Arc::clone(&counter)).await }
        };
        for id in 0..20 {
            calls.begin(RequestId(id), client(1), begun(&own));
        }
        for id in 20..40 {
            calls.begin(RequestId(id), client(2), begun(&others));
        }
        settled().await;
        // A call that waits has one of the counter's references, one that runs two.
        let running = |counter: &Arc<()>| Arc::strong_count(counter) - 1 - 20;
        assert_eq!((running(&own), running(&others)), (8, 8));
        calls.begin(RequestId(40), client(3), async { Ok(()) });
        settled().await;
        assert!(calls.ended().is_none(), "all turns are taken");
        for id in 0..40 {
            assert!(calls.has(RequestId(id)));
            calls.cancel(RequestId(id));
            assert!(!calls.has(RequestId(id)));
        }
        assert_eq!(calls.next().await, (RequestId(40), Ok(())));
        assert_eq!(Arc::strong_count(&own), 1, "cancelled calls are dropped");
        calls.begin(RequestId(41), client(4), pending());
        assert_eq!(
            calls.shares.len(),
            1,
            "clients that have left are forgotten"
        );
        calls.end().await;
        assert!(!calls.has(RequestId(41)) && calls.calls.is_empty());
    }
}
