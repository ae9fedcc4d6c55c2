//! `Scheduler::check`: all invariants between calls. Takes time proportional to all blocks and
//! tokens; for tests.

use crate::scheduler::Scheduler;
use crate::sequence::{Phase, QueueClass, Sequence, State};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

pub(crate) fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation(message()))
    }
}

impl Scheduler {
    /// Verifies all invariants: blocks conserved and counted, slots unique, queue and counters
    /// consistent, positions in order.
    pub fn check(&self) -> Result<(), Violation> {
        let copies = self.pending_forks.iter().flat_map(|fork| &fork.copies);
        self.memory
            .check(self.store.iter().map(|(_, sequence)| &sequence.kv), copies)?;
        self.check_slots()?;
        self.check_counters()?;
        let consistent = self.queue.is_consistent(|key| self.store[key].since);
        ensure(consistent, || {
            "the queue's index by waiting time is inconsistent".to_owned()
        })?;
        for (_, sequence) in self.store.iter() {
            self.check_sequence(sequence)?;
        }
        let orphans = self.snapshot().blocks_dead;
        ensure(orphans == 0, || {
            format!("{orphans} block references belong to no sequence")
        })
    }

    fn check_slots(&self) -> Result<(), Violation> {
        let mut holders = vec![0_u32; self.config.usable_slots() as usize];
        for slot in self.slots.free_slots() {
            holders[slot.0 as usize] += 1;
        }
        for &key in &self.running {
            let Some(slot) = self.store[key].slot() else {
                return Err(Violation(format!("sequence {key} runs without a slot")));
            };
            holders[slot.0 as usize] += 1;
        }
        ensure(holders.iter().all(|&count| count == 1), || {
            format!("slots are not held exactly once: {holders:?}")
        })?;
        let sorted = self
            .running
            .iter()
            .is_sorted_by_key(|&key| self.store[key].order);
        ensure(sorted, || "running sequences are out of order".to_owned())
    }

    fn check_counters(&self) -> Result<(), Violation> {
        let count = |wanted: fn(&Sequence) -> bool| {
            self.store
                .iter()
                .filter(|(_, sequence)| wanted(sequence))
                .count()
        };
        let queued = count(|s| s.state == State::Queued);
        let preparing = count(|s| s.state == State::Preparing);
        let running = count(|s| s.slot().is_some());
        let prefilling = count(|s| s.slot().is_some() && s.phase == Phase::Prefill);
        let tokens = |wanted: fn(&Sequence) -> bool| -> u64 {
            let sequences = self.store.iter().map(|(_, sequence)| sequence);
            let lengths = sequences.filter(|s| wanted(s)).map(|s| u64::from(s.len()));
            lengths.sum()
        };
        let waiting = tokens(|s| s.slot().is_none());
        let fresh: fn(&Sequence) -> bool =
            |s| s.slot().is_none() && s.queue_class == QueueClass::Fresh;
        let counters = &self.counters;
        ensure(
            (counters.queued, counters.preparing) == (queued, preparing)
                && self.queue.len() == queued
                && self.running.len() == running
                && counters.prefilling as usize == prefilling
                && counters.waiting_tokens == waiting
                && (counters.fresh, counters.fresh_tokens) == (count(fresh), tokens(fresh))
                && self.store.live() == queued + preparing + running,
            || {
                format!(
                    "counters {counters:?} and queue of {} against {queued} queued, {preparing} \
                     preparing, {running} running, {prefilling} prefilling, {waiting} tokens",
                    self.queue.len()
                )
            },
        )
    }

    fn check_sequence(&self, sequence: &Sequence) -> Result<(), Violation> {
        let id = sequence.id;
        ensure(sequence.len() < sequence.max_tokens, || {
            format!("{id:?} exceeds its length limit")
        })?;
        ensure(sequence.lengths_agree(), || {
            format!("{id:?} has an inconsistent length")
        })?;
        ensure(sequence.yielding <= sequence.in_flight, || {
            format!("{id:?} has more yielding runs than runs in flight")
        })?;
        let flown = self.flights.len() as u32;
        ensure(u32::from(sequence.in_flight) <= flown, || {
            format!("{id:?} has too many runs in flight")
        })?;
        if sequence.slot().is_none() {
            return ensure(sequence.kv.held() == 0, || {
                format!("{id:?} holds blocks without a slot")
            });
        }
        let positions = sequence.computed < sequence.len()
            && sequence.planned <= sequence.len()
            && (sequence.phase == Phase::Decode || sequence.computed <= sequence.planned);
        ensure(positions, || {
            let (computed, planned) = (sequence.computed, sequence.planned);
            format!(
                "{id:?}: {computed} computed, {planned} planned of {}",
                sequence.len()
            )
        })?;
        self.memory
            .check_sequence(&sequence.kv, sequence.computed, sequence.room)
            .map_err(|violation| Violation(format!("{id:?}: {violation}")))
    }
}
