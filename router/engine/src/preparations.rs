//! Preparing of requests by the workers, concurrent with the steps.

use std::{
    any::Any,
    collections::HashMap,
    future::{Future, pending},
    sync::{Arc, Weak},
};

use penstock_request::{client::Client, panic_message};
use penstock_scheduler::ids::RequestId;
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, Id, JoinError, JoinSet},
};

use crate::shard::PrepareError;

/// Maximum concurrent calls. Others wait here, where they occupy no worker thread.
const MAX_CALLS: usize = 16;
/// Maximum concurrent calls of one client, so that it cannot block other clients.
const MAX_CALLS_PER_CLIENT: usize = MAX_CALLS / 2;

/// A request, and the result of its call.
type Ended = (RequestId, Result<(), PrepareError>);

/// A task, and the result of its call.
type Returned = (Id, Result<(), PrepareError>);

/// The pending calls, each in its own task.
pub(super) struct Preparations {
    calls: JoinSet<Result<(), PrepareError>>,
    handles: HashMap<RequestId, AbortHandle>,
    /// The request of each task.
    requests: HashMap<Id, RequestId>,
    turns: Arc<Semaphore>,
    /// Semaphores of the clients that have calls here.
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
            // The semaphores are never closed, so `acquire` cannot fail.
            let _share = share.acquire().await;
            let _turn = turns.acquire().await;
            call.await
        });
        self.requests.insert(handle.id(), id);
        self.handles.insert(id, handle);
    }

    /// Returns the client's semaphore.
    fn share(&mut self, client: Option<Client>) -> Arc<Semaphore> {
        if let Some(share) = self.shares.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        self.shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(MAX_CALLS_PER_CLIENT));
        self.shares.insert(client, Arc::downgrade(&share));
        share
    }

    /// Whether a call of this request is pending.
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.handles.contains_key(&id)
    }

    /// Returns the requests with a pending call.
    pub(super) fn requests(&self) -> Vec<RequestId> {
        self.handles.keys().copied().collect()
    }

    /// Cancels a request's call. Dropping it cancels it at the workers too.
    pub(super) fn cancel(&mut self, id: RequestId) {
        if let Some(handle) = self.handles.remove(&id) {
            handle.abort();
        }
    }

    /// Returns a call that has ended, if there is one.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        while let Some(ended) = self.calls.try_join_next_with_id() {
            let known = self.take(ended);
            if known.is_some() {
                return known;
            }
        }
        None
    }

    /// Waits for the next call that ends; for ever if there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> Ended {
        while let Some(ended) = self.calls.join_next_with_id().await {
            if let Some(ended) = self.take(ended) {
                return ended;
            }
        }
        pending().await
    }

    /// Removes an ended call and returns its request and result; `None` if it was cancelled.
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

    /// Cancels all calls.
    pub(super) async fn end(&mut self) {
        self.handles.clear();
        self.requests.clear();
        self.calls.shutdown().await;
    }
}

/// Converts a panic of a call to an error, so that the request does not wait for ever.
#[expect(clippy::needless_pass_by_value, reason = "as `JoinError` gives it")]
fn failed(panic: Box<dyn Any + Send>) -> Result<(), PrepareError> {
    let message = panic_message(&*panic);
    Err(PrepareError::Internal(format!(
        "the call failed: {message}"
    )))
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

    /// A call that runs until it is cancelled. Each running call holds a reference to `running`.
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
        // Twelve calls hold a reference; nine of them run and hold a second one.
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
        // A waiting call holds one reference to the counter, a running call two.
        let running = |counter: &Arc<()>| Arc::strong_count(counter) - 1 - 20;
        assert_eq!((running(&own), running(&others)), (8, 8));
        calls.begin(RequestId(40), client(3), async { Ok(()) });
        settled().await;
        assert!(calls.ended().is_none(), "all permits are taken");
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
