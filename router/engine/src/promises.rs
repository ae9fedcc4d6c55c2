//! Places in the queue that are promised to refused requests.
//!
//! A refused request gets a time to return at. If it does, it gets a place before newcomers: these
//! leave some places free while promises are open. The promises of a tenant stand
//! in a line, one behind the other at the pace at which the queue moves, times the share of promises
//! that are kept: most clients never return. Tenants with promises share the pace by their weights.
//!
//! A promise that nobody claims costs nothing: newcomers fill the other places meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::BuildHasher,
    time::Duration,
};

use foldhash::fast::RandomState as Hasher;
use penstock_scheduler::{ids::Micros, request::Request};

/// Maximum open promises.
const MAX_PROMISES: usize = 16_384;
/// Promises are at most this far in the future.
const HORIZON: u64 = 600 * SECOND;
/// A request may return at the earliest after this. `Retry-After` has whole seconds.
const LEAST: u64 = SECOND;
/// A promise may be claimed for this long, and for a quarter of the time it was ahead.
const WINDOW: u64 = 5 * SECOND;
const SECOND: u64 = 1_000_000;
/// A line moves slower than the queue by this factor, so that delays do not add up.
const SLACK: f64 = 1.2;
/// Weight of the newest promise in the share of promises that are kept; the least share.
const NEWEST: f64 = 1.0 / 32.0;
const LEAST_KEPT: f64 = 0.02;
/// Newcomers leave one place of this many free, up to a maximum; those that return leave half of it.
const FREE_SHARE: usize = 4;
const MAX_FREE: usize = 64;

/// A request that arrives or returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Its tenant, as the scheduler knows it.
    pub(super) tenant: u64,
    /// The tenant's share relative to others.
    pub(super) weight: u32,
    /// A hash of what it asks for: a client that returns asks for the same.
    pub(super) request: u64,
}

/// What a request that arrives was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing, or not yet.
    Newcomer,
    /// A place now. `again`: it came in time before, and found none.
    Due { again: bool },
}

/// An open promise.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// When the request may return, and until when.
    due: u64,
    expires: u64,
    /// Whether the request came in time before.
    again: bool,
}

/// The promises of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line {
    weight: u32,
    /// The latest promise.
    last: u64,
    promises: usize,
}

/// All open promises. Times are microseconds.
#[derive(Debug)]
pub(super) struct Promises {
    open: BTreeMap<Key, Promise>,
    by_expiry: BTreeSet<(u64, Key)>,
    lines: HashMap<u64, Line>,
    /// The share of promises that were kept, a moving average.
    kept: f64,
    hasher: Hasher,
}

/// A tenant and one of its requests. Equal requests share a promise.
type Key = (u64, u64);

impl Default for Promises {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            lines: HashMap::new(),
            kept: 0.5,
            hasher: Hasher::default(),
        }
    }
}

impl Arrival {
    fn key(self) -> Key {
        (self.tenant, self.request)
    }
}

impl Promises {
    /// Whether no promise is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns how many of `places` in the queue a request must leave free.
    pub(super) fn kept_free(&self, claim: Claim, places: usize) -> usize {
        let free = (places / FREE_SHARE).min(MAX_FREE);
        match claim {
            Claim::Newcomer if self.is_empty() => 0,
            Claim::Newcomer => free,
            Claim::Due { again: false } => free / 2,
            Claim::Due { again: true } => 0,
        }
    }

    /// Returns who arrives with this request.
    pub(super) fn arrival(&self, request: &Request) -> Arrival {
        let Request {
            token_ids,
            max_new_tokens,
            sequences,
            class,
            ..
        } = request;
        Arrival {
            tenant: class.tenant,
            weight: class.weight,
            request: self.hasher.hash_one((token_ids, max_new_tokens, sequences)),
        }
    }

    /// Takes the promise of a request that arrives, if it is due.
    pub(super) fn claim(&mut self, who: Arrival, now: Micros) -> Claim {
        self.expire(now.0);
        match self.open.get(&who.key()) {
            Some(&Promise { due, again, .. }) if due <= now.0 => {
                self.close(who.key());
                self.learn(true);
                Claim::Due { again }
            }
            _ => Claim::Newcomer,
        }
    }

    /// Promises a place to a request that found none; returns the time until it is due. `pace` is the
    /// time between places that become free. A request that returned too early keeps its promise; one
    /// that returned in time is first in line.
    pub(super) fn give(&mut self, who: Arrival, claim: Claim, pace: u64, now: Micros) -> Duration {
        let ahead = self.promise(who, claim, pace, now.0);
        Duration::from_secs(ahead.div_ceil(SECOND))
    }

    fn promise(&mut self, who: Arrival, claim: Claim, pace: u64, now: u64) -> u64 {
        if let Some(promise) = self.open.get(&who.key()) {
            return promise.due.saturating_sub(now).max(1);
        }
        let line = self.lines.get(&who.tenant).copied().unwrap_or_default();
        let weight = who.weight.max(1);
        let others = self.lines.values().map(|line| u64::from(line.weight));
        let all = others.sum::<u64>() - u64::from(line.weight) + u64::from(weight);
        let pace = pace as f64 * SLACK * all as f64 / f64::from(weight);
        let (due, last) = match claim {
            Claim::Due { .. } => (now + LEAST, line.last.max(now) + pace as u64),
            Claim::Newcomer => {
                let behind = line.last.saturating_add((pace * self.kept) as u64);
                let due = behind.max(now + LEAST);
                (due, due)
            }
        };
        let ahead = due - now;
        if ahead > HORIZON || self.open.len() >= MAX_PROMISES {
            return ahead.min(HORIZON);
        }
        let expires = due + WINDOW + ahead / 4;
        let again = claim != Claim::Newcomer;
        let promise = Promise {
            due,
            expires,
            again,
        };
        self.open.insert(who.key(), promise);
        self.by_expiry.insert((expires, who.key()));
        let line = self.lines.entry(who.tenant).or_default();
        line.weight = weight;
        line.last = last;
        line.promises += 1;
        ahead
    }

    /// Forgets the promise of a request that was accepted before it was due.
    pub(super) fn forget(&mut self, who: Arrival) {
        self.close(who.key());
    }

    fn expire(&mut self, now: u64) {
        while let Some(&(expires, key)) = self.by_expiry.first()
            && expires <= now
        {
            self.close(key);
            self.learn(false);
        }
    }

    fn close(&mut self, key: Key) {
        let Some(promise) = self.open.remove(&key) else {
            return;
        };
        self.by_expiry.remove(&(promise.expires, key));
        if let Some(line) = self.lines.get_mut(&key.0) {
            line.promises -= 1;
            if line.promises == 0 {
                self.lines.remove(&key.0);
            }
        }
    }

    fn learn(&mut self, kept: bool) {
        let newest = f64::from(u8::from(kept));
        self.kept = (self.kept + NEWEST * (newest - self.kept)).max(LEAST_KEPT);
    }
}

#[cfg(test)]
#[path = "promises_tests.rs"]
mod tests;
