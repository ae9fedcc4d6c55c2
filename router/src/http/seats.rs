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
const LEAVING: Duration = Duration::from_millis(100);

/// A number of places. Clones share them.
#[derive(Clone)]
pub(super) struct Room(Arc<Shared>);

struct Shared {
    places: Arc<Semaphore>,
    size: u32,
    /// A connection must have been idle for so long to be closed for another.
    least_idle: Duration,
    began: Instant,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    sitters: HashMap<u64, Arc<Sitter>>,
}

/// A connection's place, given back when it is dropped.
pub(super) struct Seat {
    room: Room,
    number: u64,
    sitter: Arc<Sitter>,
    _place: OwnedSemaphorePermit,
}

/// What is known of a connection, by its task and by whoever looks for a place.
pub(super) struct Sitter {
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
const LEAVES: u64 = u64::MAX - 1;

/// A request that is being handled; idle again when this is dropped.
pub(super) struct Attended(Arc<Sitter>);

impl Room {
    pub(super) fn new(size: usize, least_idle: Duration) -> Self {
        let size = u32::try_from(size.max(1)).unwrap_or(u32::MAX);
        Self(Arc::new(Shared {
            places: Arc::new(Semaphore::new(size as usize)),
            size,
            least_idle,
            began: Instant::now(),
            taken: Mutex::default(),
        }))
    }

    /// A place: a free one, or that of the connection which is idle for the longest.
    pub(super) async fn seat(&self) -> Option<Seat> {
        let places = &self.0.places;
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Some(self.sit(place));
        }
        if !self.close_the_idlest() {
            return None;
        }
        let place = timeout(LEAVING, Arc::clone(places).acquire_owned()).await;
        Some(self.sit(place.ok()?.ok()?))
    }

    /// Returns when all places are free.
    pub(super) async fn empty(&self) {
        // Never closed: an error cannot be.
        let _ = self.0.places.acquire_many(self.0.size).await;
    }

    fn sit(&self, place: OwnedSemaphorePermit) -> Seat {
        let began = self.0.began;
        let sitter = Arc::new(Sitter {
            since: AtomicU64::new(micros(began)),
            task: AtomicWaker::new(),
            answering: AtomicBool::new(false),
            receiving: AtomicBool::new(false),
            written: AtomicBool::new(false),
            half_closed: AtomicBool::new(false),
            began,
        });
        let mut taken = self.0.taken();
        taken.next += 1;
        let number = taken.next;
        taken.sitters.insert(number, Arc::clone(&sitter));
        drop(taken);
        Seat {
            room: self.clone(),
            number,
            sitter,
            _place: place,
        }
    }

    /// Whether there was one to close.
    fn close_the_idlest(&self) -> bool {
        let least = u64::try_from(self.0.least_idle.as_micros()).unwrap_or(u64::MAX);
        let Some(latest) = micros(self.0.began).checked_sub(least) else {
            return false;
        };
        let taken = self.0.taken();
        let since = |sitter: &Sitter| sitter.since.load(Ordering::Relaxed);
        let idle = taken
            .sitters
            .iter()
            .filter(|(_, sitter)| since(sitter) <= latest);
        // Of several at the same moment, the first that came.
        let idlest = idle.min_by_key(|(number, sitter)| (since(sitter), **number));
        idlest.is_some_and(|(_, sitter)| sitter.close())
    }
}

impl Shared {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub(super) fn sitter(&self) -> Arc<Sitter> {
        Arc::clone(&self.sitter)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.0.taken().sitters.remove(&self.number);
    }
}

impl Sitter {
    /// Tells the connection to close, unless it has begun to handle a request.
    fn close(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        if since >= LEAVES {
            return since == LEAVES;
        }
        let told = self
            .since
            .compare_exchange(since, LEAVES, Ordering::AcqRel, Ordering::Relaxed);
        if told.is_ok() {
            self.task.wake();
        }
        told.is_ok()
    }

    /// Whether the connection must close; wakes its task when that changes.
    pub(super) fn leaves(&self, task: &Waker) -> bool {
        self.task.register(task);
        self.must_leave()
    }

    pub(super) fn must_leave(&self) -> bool {
        self.since.load(Ordering::Acquire) == LEAVES
    }

    /// A request has come; `whole` if nothing of it is still to come.
    pub(super) fn attend(self: &Arc<Self>, whole: bool) -> Attended {
        self.since.store(BUSY, Ordering::Release);
        self.written.store(false, Ordering::Relaxed);
        self.answering.store(whole, Ordering::Relaxed);
        self.receiving.store(false, Ordering::Relaxed);
        Attended(Arc::clone(self))
    }

    /// The request has come in whole.
    pub(super) fn received(&self) {
        self.answering.store(true, Ordering::Relaxed);
    }

    /// Whether more of the request is waited for, now that all that has come was read.
    pub(super) fn receive(&self, waits: bool) {
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

impl Attended {
    pub(super) fn sitter(&self) -> &Sitter {
        &self.0
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.answering.store(false, Ordering::Relaxed);
        self.0.since.store(micros(self.0.began), Ordering::Release);
    }
}

fn micros(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).map_or(LEAVES - 1, |since| since.min(LEAVES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_idlest_leaves_for_another_and_who_is_busy_stays() {
        let room = Room::new(3, Duration::ZERO);
        let first = room.seat().await.unwrap();
        let second = room.seat().await.unwrap();
        let third = room.seat().await.unwrap();
        let busy = first.sitter().attend(true);
        assert!(room.seat().await.is_none(), "it has not left yet");
        assert!(second.sitter().must_leave());
        assert!(!first.sitter().must_leave() && !third.sitter().must_leave());
        drop(second);
        let second = room.seat().await.unwrap();
        // Now the first is the one that became idle last.
        drop(busy);
        assert!(room.seat().await.is_none());
        assert!(third.sitter().must_leave());
        drop((first, second, third));
        room.empty().await;
        assert!(room.0.taken().sitters.is_empty());
    }

    #[tokio::test]
    async fn nobody_leaves_who_has_only_just_come() {
        let room = Room::new(1, Duration::from_secs(60));
        let only = room.seat().await.unwrap();
        assert!(room.seat().await.is_none());
        assert!(!only.sitter().must_leave());
    }

    #[tokio::test]
    async fn who_begins_a_request_at_that_moment_stays() {
        let room = Room::new(1, Duration::ZERO);
        let only = room.seat().await.unwrap();
        assert!(room.seat().await.is_none());
        let _busy = only.sitter().attend(false);
        assert!(!only.sitter().must_leave());
    }
}
