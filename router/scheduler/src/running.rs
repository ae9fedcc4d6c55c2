//! Sequences in slots of the workers' persistent batch.

use crate::ids::{SequenceKey, Slot};
use crate::sequence::{Phase, State, Store};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Free slots, lowest first, so that batches stay dense; and slots that the workers must still
/// drop.
#[derive(Debug, Default)]
struct Slots {
    free: BinaryHeap<Reverse<Slot>>,
    finished: Vec<Slot>,
}

/// Whether the workers know a slot that becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// A plan has named it: the next plan drops it.
    Planned,
    /// No plan has named it.
    Unplanned,
}

/// Owns the slots, and the list of the sequences in them.
#[derive(Debug)]
pub(crate) struct Running {
    slots: Slots,
    /// Sorted by seniority.
    keys: Vec<SequenceKey>,
    /// Sequences that still prefill.
    prefilling: u32,
}

impl Slots {
    fn new(count: u32) -> Self {
        Self {
            free: (0..count).map(|slot| Reverse(Slot(slot))).collect(),
            finished: Vec::new(),
        }
    }

    fn free(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> Option<Slot> {
        self.free.pop().map(|Reverse(slot)| slot)
    }

    /// Returns a slot that the workers know. The next plan drops it and may fill it again at once,
    /// since workers apply `finished` before `new`.
    fn release(&mut self, slot: Slot) {
        self.finished.push(slot);
        self.free.push(Reverse(slot));
    }

    /// Returns a slot that no plan has named.
    fn give_back(&mut self, slot: Slot) {
        self.free.push(Reverse(slot));
    }

    fn take_finished(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.finished)
    }

    fn free_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.free.iter().map(|&Reverse(slot)| slot)
    }
}

impl Running {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots: Slots::new(slots),
            keys: Vec::new(),
            prefilling: 0,
        }
    }

    /// Returns the sequences, the most senior first.
    #[inline]
    pub(crate) fn keys(&self) -> &[SequenceKey] {
        &self.keys
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<SequenceKey> {
        self.keys.get(at).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn prefilling(&self) -> u32 {
        self.prefilling
    }

    pub(crate) fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// Returns a free slot for `enter`.
    pub(crate) fn take_slot(&mut self) -> Option<Slot> {
        self.slots.take()
    }

    /// Returns the slots that the next plan drops.
    pub(crate) fn take_finished(&mut self) -> Vec<Slot> {
        self.slots.take_finished()
    }

    /// Puts a sequence into a slot.
    pub(crate) fn enter(&mut self, store: &mut Store, key: SequenceKey, slot: Slot) {
        store[key].state = State::Running(slot);
        self.prefilling += u32::from(store[key].phase == Phase::Prefill);
        let order = store[key].order;
        let at = self
            .keys
            .partition_point(|&other| store[other].order < order);
        self.keys.insert(at, key);
    }

    /// Takes a sequence out of its slot; the caller sets its state. Does nothing if it has none.
    pub(crate) fn leave(&mut self, store: &Store, key: SequenceKey, slot_use: SlotUse) {
        let Some(slot) = store[key].slot() else {
            return;
        };
        let order = store[key].order;
        if let Ok(at) = self
            .keys
            .binary_search_by_key(&order, |&other| store[other].order)
        {
            self.keys.remove(at);
        }
        match slot_use {
            SlotUse::Planned => self.slots.release(slot),
            SlotUse::Unplanned => self.slots.give_back(slot),
        }
        self.prefilling -= u32::from(store[key].phase == Phase::Prefill);
    }

    /// Counts a sequence whose plan has reached its last known token.
    pub(crate) fn end_prefill(&mut self) {
        self.prefilling -= 1;
    }

    /// Returns the slots that are free; for `check`.
    pub(crate) fn vacant_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.free_slots()
    }
}
