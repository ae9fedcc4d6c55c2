//! Limits the number of open connections. A connection beyond the limit replaces the one that has
//! been idle for the longest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Time to wait for the permit of a connection that is being closed. Its task only has to run once.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// A limit on open connections. Clones share it.
#[derive(Clone)]
pub(super) struct ConnectionLimit(Arc<Shared>);

struct Shared {
    permits: Arc<Semaphore>,
    size: u32,
    /// Idle time after which a connection may be closed to make room.
    least_idle: Duration,
    began: Instant,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    connections: HashMap<u64, Arc<ConnectionState>>,
}

/// A connection's permit, released when it is dropped.
pub(super) struct ConnectionPermit {
    limit: ConnectionLimit,
    number: u64,
    state: Arc<ConnectionState>,
    _permit: OwnedSemaphorePermit,
}

/// State of a connection, shared by its task and the limit.
pub(super) struct ConnectionState {
    /// When it became idle, in microseconds since `began`; or `BUSY`; or `CLOSING`.
    since: AtomicU64,
    /// Waker of the connection's task.
    task: AtomicWaker,
    /// Whether the request has been received completely and its response has not ended.
    answering: AtomicBool,
    /// Whether the handler has read all received bytes of the body and waits for more.
    receiving: AtomicBool,
    /// Whether any byte of the response has been written.
    written: AtomicBool,
    /// Whether the client has shut down its sending side during a response.
    half_closed: AtomicBool,
    began: Instant,
}

/// `since` of a connection that handles a request.
const BUSY: u64 = u64::MAX;
/// `since` of a connection that must close.
const CLOSING: u64 = u64::MAX - 1;

/// A request in progress; its connection is idle again when this is dropped.
pub(super) struct ActiveRequest(Arc<ConnectionState>);

impl ConnectionLimit {
    pub(super) fn new(size: usize, least_idle: Duration) -> Self {
        let size = u32::try_from(size.max(1)).unwrap_or(u32::MAX);
        Self(Arc::new(Shared {
            permits: Arc::new(Semaphore::new(size as usize)),
            size,
            least_idle,
            began: Instant::now(),
            open: Mutex::default(),
        }))
    }

    /// Returns a permit: a free one, or that of the connection that has been idle for the longest.
    /// `None` if no connection could be closed in time.
    pub(super) async fn acquire(&self) -> Option<ConnectionPermit> {
        let permits = &self.0.permits;
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Some(self.admit(permit));
        }
        if !self.close_longest_idle() {
            return None;
        }
        let permit = timeout(CLOSE_TIMEOUT, Arc::clone(permits).acquire_owned()).await;
        Some(self.admit(permit.ok()?.ok()?))
    }

    /// Returns when no connection is open.
    pub(super) async fn wait_until_empty(&self) {
        // The semaphore is never closed, so this cannot fail.
        let _ = self.0.permits.acquire_many(self.0.size).await;
    }

    fn admit(&self, permit: OwnedSemaphorePermit) -> ConnectionPermit {
        let began = self.0.began;
        let state = Arc::new(ConnectionState {
            since: AtomicU64::new(micros(began)),
            task: AtomicWaker::new(),
            answering: AtomicBool::new(false),
            receiving: AtomicBool::new(false),
            written: AtomicBool::new(false),
            half_closed: AtomicBool::new(false),
            began,
        });
        let mut open = self.0.open();
        open.next += 1;
        let number = open.next;
        open.connections.insert(number, Arc::clone(&state));
        drop(open);
        ConnectionPermit {
            limit: self.clone(),
            number,
            state,
            _permit: permit,
        }
    }

    /// Closes the connection that has been idle for the longest. Returns whether there was one.
    fn close_longest_idle(&self) -> bool {
        let least = u64::try_from(self.0.least_idle.as_micros()).unwrap_or(u64::MAX);
        let Some(latest) = micros(self.0.began).checked_sub(least) else {
            return false;
        };
        let open = self.0.open();
        let since = |state: &ConnectionState| state.since.load(Ordering::Relaxed);
        let idle = open
            .connections
            .iter()
            .filter(|(_, state)| since(state) <= latest);
        // Ties go to the oldest connection.
        let idlest = idle.min_by_key(|(number, state)| (since(state), **number));
        idlest.is_some_and(|(_, state)| state.close())
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    pub(super) fn state(&self) -> Arc<ConnectionState> {
        Arc::clone(&self.state)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.0.open().connections.remove(&self.number);
    }
}

impl ConnectionState {
    /// Makes the connection close, unless it handles a request. Returns whether it will close.
    fn close(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        if since >= CLOSING {
            return since == CLOSING;
        }
        let exchanged =
            self.since
                .compare_exchange(since, CLOSING, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_ok() {
            self.task.wake();
        }
        exchanged.is_ok()
    }

    /// Returns whether the connection must close, and registers `task` to be woken when that
    /// changes.
    pub(super) fn register_must_close(&self, task: &Waker) -> bool {
        self.task.register(task);
        self.must_close()
    }

    pub(super) fn must_close(&self) -> bool {
        self.since.load(Ordering::Acquire) == CLOSING
    }

    /// Marks the connection as busy; `whole` if the request has no more body to come.
    pub(super) fn begin_request(self: &Arc<Self>, whole: bool) -> ActiveRequest {
        self.since.store(BUSY, Ordering::Release);
        self.written.store(false, Ordering::Relaxed);
        self.answering.store(whole, Ordering::Relaxed);
        self.receiving.store(false, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// Marks the request as received completely.
    pub(super) fn request_received(&self) {
        self.answering.store(true, Ordering::Relaxed);
    }

    /// Sets whether the handler has read all received bytes of the body and waits for more.
    pub(super) fn set_receiving(&self, waits: bool) {
        self.receiving.store(waits, Ordering::Relaxed);
    }

    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Relaxed)
    }

    /// Returns whether a request is being handled.
    pub(super) fn is_busy(&self) -> bool {
        self.since.load(Ordering::Relaxed) == BUSY
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Records that bytes were written.
    pub(super) fn wrote(&self) {
        if self.is_answering() {
            self.written.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    /// Records that the client has shut down its sending side.
    pub(super) fn half_close(&self) {
        self.half_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_half_closed(&self) -> bool {
        self.half_closed.load(Ordering::Relaxed)
    }
}

impl ActiveRequest {
    pub(super) fn state(&self) -> &ConnectionState {
        &self.0
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.answering.store(false, Ordering::Relaxed);
        self.0.since.store(micros(self.0.began), Ordering::Release);
    }
}

fn micros(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).map_or(CLOSING - 1, |since| since.min(CLOSING - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_and_a_busy_one_is_kept() {
        let limit = ConnectionLimit::new(3, Duration::ZERO);
        let first = limit.acquire().await.unwrap();
        let second = limit.acquire().await.unwrap();
        let third = limit.acquire().await.unwrap();
        let busy = first.state().begin_request(true);
        assert!(limit.acquire().await.is_none(), "it has not closed yet");
        assert!(second.state().must_close());
        assert!(!first.state().must_close() && !third.state().must_close());
        drop(second);
        let second = limit.acquire().await.unwrap();
        // `first` is now the connection that became idle last.
        drop(busy);
        assert!(limit.acquire().await.is_none());
        assert!(third.state().must_close());
        drop((first, second, third));
        limit.wait_until_empty().await;
        assert!(limit.0.open().connections.is_empty());
    }

    #[tokio::test]
    async fn a_recent_connection_is_not_closed() {
        let limit = ConnectionLimit::new(1, Duration::from_secs(60));
        let only = limit.acquire().await.unwrap();
        assert!(limit.acquire().await.is_none());
        assert!(!only.state().must_close());
    }

    #[tokio::test]
    async fn a_connection_that_begins_a_request_is_not_closed() {
        let limit = ConnectionLimit::new(1, Duration::ZERO);
        let only = limit.acquire().await.unwrap();
        assert!(limit.acquire().await.is_none());
        let _busy = only.state().begin_request(false);
        assert!(!only.state().must_close());
    }
}
