//! Responses that clients may ask for again or go on from, in memory: so many bytes, the least recently
//! used evicted first.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::metrics::StoreMetrics;

/// One response, with the conversation that it goes on from, takes at most one part in so many of the
/// store: a long one does not push out all others.
const LARGEST: usize = 8;
/// Bytes of an entry beside its texts, about: tables, pointers, allocations.
const ENTRY_OVERHEAD: usize = 512;
/// Bytes of a turn in the list of an entry.
const POINTER: usize = size_of::<Arc<StoredTurn>>();

/// The responses of all clients. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ResponseStore(Arc<Shared>);

struct Shared {
    /// Bytes that the store may take; 0 = nothing is stored.
    most: usize,
    /// Bytes of all entries, and of all turns that an entry or a running request holds.
    used: Arc<AtomicUsize>,
    metrics: StoreMetrics,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_id: HashMap<Arc<str>, Entry>,
    /// Ids by when they were last used.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
}

struct Entry {
    response: StoredResponse,
    used_at: u64,
    _charge: StoreCharge,
}

/// A stored response.
#[derive(Clone)]
pub(crate) struct StoredResponse {
    /// As it was sent, in one piece.
    pub(crate) body: Bytes,
    /// The conversation with the response's own turn at the end.
    pub(crate) turns: Vec<Arc<StoredTurn>>,
}

/// What one request added to a conversation. Responses that go on from each other share their turns.
pub(crate) struct StoredTurn {
    /// The items of the request.
    pub(crate) input: Vec<StoredItem>,
    /// The items of the response.
    pub(crate) output: Vec<StoredItem>,
    /// Held while an entry or a running request needs it.
    _charge: StoreCharge,
}

/// One item of a conversation.
#[derive(Clone, Debug)]
pub(crate) struct StoredItem {
    /// Unique.
    pub(crate) id: String,
    /// The item, as `/v1/responses` takes and tells it.
    pub(crate) json: String,
}

/// Bytes of the store, given back when this is dropped.
struct StoreCharge {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl ResponseStore {
    /// A store of `most` bytes; 0 = nothing is stored.
    pub(crate) fn new(most: usize, metrics: StoreMetrics) -> Self {
        Self(Arc::new(Shared {
            most,
            used: Arc::default(),
            metrics,
            entries: Mutex::default(),
        }))
    }

    /// Whether anything is stored.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.most > 0
    }

    /// Bytes that one response may take, with the conversation that it goes on from.
    pub(crate) fn largest(&self) -> usize {
        self.0.most / LARGEST
    }

    /// The response of that id, which is now the most recently used.
    pub(crate) fn get(&self, id: &str) -> Option<StoredResponse> {
        self.entries().touch(id).map(|entry| entry.response.clone())
    }

    /// Removes the response of that id; false if there is none.
    pub(crate) fn remove(&self, id: &str) -> bool {
        // Dropped before the bytes are shown.
        let removed = self.entries().remove(id).is_some();
        self.update_gauges();
        removed
    }

    /// Stores a response whose conversation so far is `before`, and evicts what was not used for the
    /// longest time; false if it is too large.
    pub(crate) fn store(
        &self,
        id: &str,
        (before, input): (&[Arc<StoredTurn>], Vec<StoredItem>),
        (output, body): (Vec<StoredItem>, Bytes),
    ) -> bool {
        let items = input.iter().chain(&output);
        let of_turn = items.map(StoredItem::bytes).sum::<usize>() + ENTRY_OVERHEAD;
        let of_entry = body.len() + id.len() + (before.len() + 1) * POINTER + ENTRY_OVERHEAD;
        let of_chain: usize = before.iter().map(|turn| turn.bytes()).sum();
        if of_chain + of_turn + of_entry > self.largest() {
            self.0.metrics.too_large.inc();
            return false;
        }
        let turn = StoredTurn {
            input,
            output,
            _charge: self.charge(of_turn),
        };
        let turns = before.iter().cloned().chain([Arc::new(turn)]);
        let response = StoredResponse {
            body,
            turns: turns.collect(),
        };
        let charge = self.charge(of_entry);
        let mut entries = self.entries();
        entries.insert(id.into(), response, charge);
        let mut evicted = 0;
        while self.used() > self.0.most {
            match entries.evict() {
                // Dropping it is what makes room.
                Some(_) => evicted += 1,
                // What is left is held by running requests.
                None => break,
            }
        }
        drop(entries);
        self.0.metrics.evicted.inc_by(evicted);
        self.update_gauges();
        true
    }

    fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    fn charge(&self, bytes: usize) -> StoreCharge {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
        StoreCharge {
            used: Arc::clone(&self.0.used),
            bytes,
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Each method leaves both tables as they belong together.
        self.0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the gauges.
    fn update_gauges(&self) {
        let count = self.entries().by_id.len();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.0.metrics.entries.set(gauge(count));
        self.0.metrics.bytes.set(gauge(self.used()));
    }
}

impl Entries {
    fn insert(&mut self, id: Arc<str>, response: StoredResponse, charge: StoreCharge) {
        self.uses += 1;
        self.by_use.insert(self.uses, Arc::clone(&id));
        let entry = Entry {
            response,
            used_at: self.uses,
            _charge: charge,
        };
        self.by_id.insert(id, entry);
    }

    fn touch(&mut self, id: &str) -> Option<&Entry> {
        let entry = self.by_id.get_mut(id)?;
        self.uses += 1;
        if let Some(id) = self.by_use.remove(&entry.used_at) {
            self.by_use.insert(self.uses, id);
        }
        entry.used_at = self.uses;
        Some(entry)
    }

    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.by_id.remove(id)?;
        self.by_use.remove(&entry.used_at);
        Some(entry)
    }

    /// Takes out the entry that was not used for the longest time.
    fn evict(&mut self) -> Option<Entry> {
        let (_, id) = self.by_use.pop_first()?;
        self.by_id.remove(&id)
    }
}

impl StoredItem {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.id.len() + self.json.len()
    }
}

impl StoredTurn {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self._charge.bytes
    }
}

impl Drop for StoreCharge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
