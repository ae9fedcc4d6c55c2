//! Slots of the workers' persistent batch.

use crate::ids::Slot;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Free slots, lowest first, so that batches stay dense; and slots that the workers must still
/// drop.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    free: BinaryHeap<Reverse<Slot>>,
    finished: Vec<Slot>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: (0..count).map(|slot| Reverse(Slot(slot))).collect(),
            finished: Vec::new(),
        }
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<Slot> {
        self.free.pop().map(|Reverse(slot)| slot)
    }

    /// Returns a slot that the workers know. The next plan drops it and may fill it again at once,
    /// since workers apply `finished` before `new`.
    pub(crate) fn release(&mut self, slot: Slot) {
        self.finished.push(slot);
        self.free.push(Reverse(slot));
    }

    /// Returns a slot that no plan has named.
    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.free.push(Reverse(slot));
    }

    pub(crate) fn take_finished(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.finished)
    }

    pub(crate) fn free_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.free.iter().map(|&Reverse(slot)| slot)
    }
}
