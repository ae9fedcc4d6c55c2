//! Who may be connected. A bounded number of connections is served; for one more, the one that has been
//! idle for the longest is closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long the place of a connection that is to close is waited for. Its task only has to run once.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// A number of places. Clones share them.
#[derive(Clone)]
pub(super) struct ConnectionLimit(Arc<Shared>);

struct Shared {
    permits: Arc<Semaphore>,
    size: u32,
    /// A connection must have been idle for so long to be closed for another.
    least_idle: Duration,
    began: Instant,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    connections: HashMap<u64, Arc<ConnectionState>>,
}

/// A connection's place, given back when it is dropped.
pub(super) struct ConnectionPermit {
    limit: ConnectionLimit,
    number: u64,
    state: Arc<ConnectionState>,
    _permit: OwnedSemaphorePermit,
}

/// What is known of a connection, by its task and by whoever looks for a place.
pub(super) struct ConnectionState {
    /// Microseconds from the room's beginning until it became idle, or one of the two below.
    since: AtomicU64,
    /// Its task.
    task: AtomicWaker,
    /// Whether the request has come in whole, and its answer has not gone out whole.
    answering: AtomicBool,
    /// Whether whoever reads the request has read all that has come, and waits for more of it.
    receiving: AtomicBool,
    /// Whether some of that answer has been written.
    written: AtomicBool,
    /// Whether the client has ended its side while it was answered.
    half_closed: AtomicBool,
    began: Instant,
}

/// Handles a request.
const BUSY: u64 = u64::MAX;
/// Must close.
const CLOSING: u64 = u64::MAX - 1;

/// A request that is being handled; idle again when this is dropped.
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

    /// A place: a free one, or that of the connection which is idle for the longest.
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

    /// Returns when all places are free.
    pub(super) async fn wait_until_empty(&self) {
        // Never closed: an error cannot be.
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

    /// Whether there was one to close.
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
        // Of several at the same moment, the first that came.
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
    /// Tells the connection to close, unless it has begun to handle a request.
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

    /// Whether the connection must close; wakes its task when that changes.
    pub(super) fn register_must_close(&self, task: &Waker) -> bool {
        self.task.register(task);
        self.must_close()
    }

    pub(super) fn must_close(&self) -> bool {
        self.since.load(Ordering::Acquire) == CLOSING
    }

    /// A request has come; `whole` if nothing of it is still to come.
    pub(super) fn begin_request(self: &Arc<Self>, whole: bool) -> ActiveRequest {
        self.since.store(BUSY, Ordering::Release);
        self.written.store(false, Ordering::Relaxed);
        self.answering.store(whole, Ordering::Relaxed);
        self.receiving.store(false, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// The request has come in whole.
    pub(super) fn request_received(&self) {
        self.answering.store(true, Ordering::Relaxed);
    }

    /// Whether more of the request is waited for, now that all that has come was read.
    pub(super) fn set_receiving(&self, waits: bool) {
        self.receiving.store(waits, Ordering::Relaxed);
    }

    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Relaxed)
    }

    /// Whether a request is being handled.
    pub(super) fn is_busy(&self) -> bool {
        self.since.load(Ordering::Relaxed) == BUSY
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Some bytes went out.
    pub(super) fn wrote(&self) {
        if self.is_answering() {
            self.written.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    /// The client sends no more.
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
        assert!(limit.acquire().await.is_none(), "it has not left yet");
        assert!(second.state().must_close());
        assert!(!first.state().must_close() && !third.state().must_close());
        drop(second);
        let second = limit.acquire().await.unwrap();
        // Now the first is the one that became idle last.
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
