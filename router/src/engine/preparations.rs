//! Requests that the workers prepare, beside the steps.

use std::{
    collections::HashMap,
    future::{Future, pending},
    sync::{Arc, Weak},
};

use penstock_scheduler::ids::RequestId;
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};

use crate::client::Client;
use crate::shard::PrepareError;

/// Calls under way at once: more wait here, where they cost a worker no thread.
const AT_ONCE: usize = 16;
/// And of one client: the others' need not wait behind all of its calls.
const OF_A_CLIENT: usize = AT_ONCE / 2;

/// A request, and what came of its call.
type Ended = (RequestId, Result<(), PrepareError>);

/// The calls that are under way, each in a task of its own.
pub(super) struct Preparations {
    calls: JoinSet<Ended>,
    handles: HashMap<RequestId, AbortHandle>,
    turns: Arc<Semaphore>,
    /// Of each client that has calls here.
    shares: HashMap<Option<Client>, Weak<Semaphore>>,
}

impl Default for Preparations {
    fn default() -> Self {
        Self {
            calls: JoinSet::new(),
            handles: HashMap::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
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
            (id, call.await)
        });
        self.handles.insert(id, handle);
    }

    /// The turns of one client.
    fn share(&mut self, client: Option<Client>) -> Arc<Semaphore> {
        if let Some(share) = self.shares.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        self.shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(OF_A_CLIENT));
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
        while let Some(ended) = self.calls.try_join_next() {
            // An error is a call that was cancelled.
            if let Ok((id, result)) = ended {
                self.handles.remove(&id);
                return Some((id, result));
            }
        }
        None
    }

    /// The next call that ends; waits for ever if there is none. May be dropped and called again at
    /// any time.
    pub(super) async fn next(&mut self) -> Ended {
        while let Some(ended) = self.calls.join_next().await {
            if let Ok((id, result)) = ended {
                self.handles.remove(&id);
                return (id, result);
            }
        }
        pending().await
    }

    /// Cancels all.
    pub(super) async fn end(&mut self) {
        self.handles.clear();
        self.calls.shutdown().await;
    }
}
