//! A cache of the masks of DFA states, shared by all sequences.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum bytes of cached masks over all automata.
const MOST_BYTES: usize = 64 << 20;

/// The tokens allowed in a state, without end tokens.
pub(super) struct Mask {
    pub(super) bits: Vec<u32>,
    /// Distinct costs of the states that the allowed tokens lead to, ascending.
    pub(super) costs: Vec<i32>,
}

/// The key of a mask: the automaton's number, the state, and the maximum cost of the next state.
pub(super) type MaskKey = (u64, usize, i32);

/// An LRU cache; a full cache drops the least recently used half.
#[derive(Default)]
pub(super) struct MaskCache(Mutex<CachedMasks>);

#[derive(Default)]
struct CachedMasks {
    masks: HashMap<MaskKey, (Arc<Mask>, u64)>,
    bytes: usize,
    clock: u64,
}

impl MaskCache {
    /// Returns the mask and computes it on a miss.
    pub(super) fn get(&self, key: MaskKey, make: impl FnOnce() -> Mask) -> Arc<Mask> {
        if let Some(found) = self.found(key) {
            return found;
        }
        // Computed without the lock, so two threads may compute the same mask.
        let made = Arc::new(make());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += size(&made);
        let clock = kept.clock;
        if let Some((old, _)) = kept.masks.insert(key, (made.clone(), clock)) {
            kept.bytes -= size(&old);
        }
        if kept.bytes > MOST_BYTES {
            kept.drop_half();
        }
        made
    }

    fn found(&self, key: MaskKey) -> Option<Arc<Mask>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let clock = kept.clock;
        let (mask, last_used) = kept.masks.get_mut(&key)?;
        *last_used = clock;
        Some(mask.clone())
    }
}

impl CachedMasks {
    fn drop_half(&mut self) {
        let mut clocks: Vec<u64> = self
            .masks
            .values()
            .map(|&(_, last_used)| last_used)
            .collect();
        let middle = clocks.len() / 2;
        let (_, &mut median, _) = clocks.select_nth_unstable(middle);
        self.masks
            .retain(|_, &mut (_, last_used)| last_used >= median);
        self.bytes = self.masks.values().map(|(mask, _)| size(mask)).sum();
    }
}

fn size(mask: &Mask) -> usize {
    4 * (mask.bits.len() + mask.costs.len()) + 128
}
