//! Stores responses in memory, so that clients can retrieve or continue them. The store has a limit
//! in bytes and evicts the least recently used response.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::metrics::StoreMetrics;

/// A response and the conversation before it may take at most one part in this many of the store,
/// so that a long one does not evict all others.
const LARGEST: usize = 8;
/// Approximate bytes of an entry without its texts: tables, pointers, allocations.
const ENTRY_OVERHEAD: usize = 512;
/// Bytes of a turn in an entry's list.
const POINTER: usize = size_of::<Arc<StoredTurn>>();

/// The store of all responses. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ResponseStore(Arc<Shared>);

struct Shared {
    /// Maximum bytes; 0 = nothing is stored.
    most: usize,
    /// Bytes of all entries, and of all turns that an entry or a running request holds.
    used: Arc<AtomicUsize>,
    metrics: StoreMetrics,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_id: HashMap<Arc<str>, Entry>,
    /// Ids by last use.
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
    /// The response as it was sent, without streaming.
    pub(crate) body: Bytes,
    /// The conversation, ending with the response's own turn.
    pub(crate) turns: Vec<Arc<StoredTurn>>,
}

/// The items that one request added to a conversation. Responses that continue each other share
/// turns.
pub(crate) struct StoredTurn {
    /// The items of the request.
    pub(crate) input: Vec<StoredItem>,
    /// The items of the response.
    pub(crate) output: Vec<StoredItem>,
    /// Held while an entry or a running request uses the turn.
    _charge: StoreCharge,
}

/// An item of a conversation.
#[derive(Clone, Debug)]
pub(crate) struct StoredItem {
    /// Unique id.
    pub(crate) id: String,
    /// The item as JSON, in the format of `/v1/responses`.
    pub(crate) json: String,
}

/// Charged bytes of the store, released when this is dropped.
struct StoreCharge {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl ResponseStore {
    /// Creates a store of `most` bytes; 0 = nothing is stored.
    pub(crate) fn new(most: usize, metrics: StoreMetrics) -> Self {
        Self(Arc::new(Shared {
            most,
            used: Arc::default(),
            metrics,
            entries: Mutex::default(),
        }))
    }

    /// Returns whether responses are stored.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.most > 0
    }

    /// Returns the maximum bytes of a response and the conversation before it.
    pub(crate) fn largest(&self) -> usize {
        self.0.most / LARGEST
    }

    /// Returns the response of an id and marks it as most recently used.
    pub(crate) fn get(&self, id: &str) -> Option<StoredResponse> {
        self.entries().touch(id).map(|entry| entry.response.clone())
    }

    /// Removes the response of an id; returns false if there is none.
    pub(crate) fn remove(&self, id: &str) -> bool {
        // The entry must be dropped before the gauges are updated.
        let removed = self.entries().remove(id).is_some();
        self.update_gauges();
        removed
    }

    /// Stores a response; `before` is the conversation before it. Evicts the least recently used
    /// responses if the store is full. Returns false if the response is too large.
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
                // Dropping the entry frees its bytes.
                Some(_) => evicted += 1,
                // Running requests hold the rest.
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
        // Every method leaves both tables consistent.
        self.0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the gauges.
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

    /// Removes the least recently used entry.
    fn evict(&mut self) -> Option<Entry> {
        let (_, id) = self.by_use.pop_first()?;
        self.by_id.remove(&id)
    }
}

impl StoredItem {
    /// Returns the bytes that the item takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.id.len() + self.json.len()
    }
}

impl StoredTurn {
    /// Returns the bytes that the turn takes.
    pub(crate) fn bytes(&self) -> usize {
        self._charge.bytes
    }
}

impl Drop for StoreCharge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
