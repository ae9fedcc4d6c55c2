//! Masks of automata that sequences came to, kept for the next ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of masks that are kept, over all automata.
const MOST_BYTES: usize = 64 << 20;

/// What may follow in a state, end tokens apart.
pub(super) struct Mask {
    pub(super) bits: Vec<u32>,
    /// Of the states that it leads to, each once, rising.
    pub(super) costs: Vec<i32>,
}

/// Which mask: of a grammar, in a state, of what leads to states of at most this cost.
pub(super) type MaskKey = (u64, usize, i32);

/// The masks, the half that was asked for longest ago dropped where there is no more room.
#[derive(Default)]
pub(super) struct MaskCache(Mutex<CachedMasks>);

#[derive(Default)]
struct CachedMasks {
    masks: HashMap<MaskKey, (Arc<Mask>, u64)>,
    bytes: usize,
    clock: u64,
}

impl MaskCache {
    /// The mask, made if it is not kept.
    pub(super) fn get(&self, key: MaskKey, make: impl FnOnce() -> Mask) -> Arc<Mask> {
        if let Some(found) = self.found(key) {
            return found;
        }
        // Without the lock: two threads may both make one.
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
