//! `Scheduler::check`: all invariants between calls. Takes time proportional to all blocks and
//! tokens; for tests.

use super::Scheduler;
use crate::ids::RequestId;
use crate::sequence::{Phase, QueueClass, Sequence};
use crate::violation::{Violation, ensure};
use crate::waiting::WaitingCounts;
use std::collections::BTreeMap;

impl Scheduler {
    /// Verifies all invariants: blocks conserved and counted, slots unique, queue and counters
    /// consistent, positions in order.
    pub fn check(&self) -> Result<(), Violation> {
        let copies = self.pending_forks.iter().flat_map(|fork| &fork.copies);
        self.memory
            .check(self.store.iter().map(|(_, sequence)| &sequence.kv), copies)?;
        self.check_slots()?;
        self.check_counters()?;
        self.check_accounts()?;
        let consistent = self.waiting.is_consistent(|key| self.store[key].since);
        ensure(consistent, || "the queue is inconsistent".to_owned())?;
        for (_, sequence) in self.store.iter() {
            self.check_sequence(sequence)?;
        }
        let orphans = self.snapshot().blocks_dead;
        ensure(orphans == 0, || {
            format!("{orphans} block references belong to no sequence")
        })
    }

    /// Returns the live requests in order of their ids.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.store.requests().collect();
        ids.sort_unstable();
        ids
    }

    fn check_slots(&self) -> Result<(), Violation> {
        let mut holders = vec![0_u32; self.config.usable_slots() as usize];
        for slot in self.running.vacant_slots() {
            holders[slot.0 as usize] += 1;
        }
        for &key in self.running.keys() {
            let Some(slot) = self.store[key].slot() else {
                return Err(Violation(format!("sequence {key} runs without a slot")));
            };
            holders[slot.0 as usize] += 1;
        }
        ensure(holders.iter().all(|&count| count == 1), || {
            format!("slots are not held exactly once: {holders:?}")
        })?;
        let keys = self.running.keys().iter();
        let sorted = keys.is_sorted_by_key(|&key| self.store[key].order);
        ensure(sorted, || "running sequences are out of order".to_owned())
    }

    fn check_counters(&self) -> Result<(), Violation> {
        let mut waiting = WaitingCounts::default();
        let (mut running, mut prefilling) = (0, 0);
        for (_, sequence) in self.store.iter() {
            if sequence.slot().is_some() {
                running += 1;
                prefilling += u32::from(sequence.phase == Phase::Prefill);
            } else {
                waiting.count(sequence);
            }
        }
        let counted = self.waiting.counts();
        ensure(
            counted == waiting
                && self.running.len() == running
                && self.running.prefilling() == prefilling
                && self.store.live() == waiting.sequences() + running,
            || {
                format!(
                    "{counted:?} against {waiting:?}, {} of {running} running, {} of \
                     {prefilling} prefilling",
                    self.running.len(),
                    self.running.prefilling()
                )
            },
        )
    }

    fn check_accounts(&self) -> Result<(), Violation> {
        let mut totals = BTreeMap::new();
        for (_, sequence) in self.store.iter() {
            let (live, begun) = totals.entry(sequence.account).or_insert((0, 0));
            *live += 1;
            *begun += usize::from(sequence.begun);
            let ran = sequence.slot().is_some() || sequence.queue_class == QueueClass::Resumed;
            ensure(!ran || sequence.begun, || {
                format!("{:?} runs and has not begun", sequence.id)
            })?;
        }
        let counted = self.accounts.totals();
        ensure(counted == totals, || {
            format!("accounts are {counted:?} against {totals:?}")
        })
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
