//! `Scheduler::check`: all invariants between calls. Takes time proportional to all blocks and
//! tokens; for tests.

use crate::memory::Group;
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

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), Violation> {
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
        for index in 0..self.groups.len() {
            self.check_references(index)?;
            check_states(index, &self.groups[index])?;
        }
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

    fn check_references(&self, index: usize) -> Result<(), Violation> {
        let pool = &self.groups[index].pool;
        let mut counted = vec![0_u32; pool.total() as usize];
        for (_, sequence) in self.store.iter() {
            for lease in sequence
                .chains
                .get(index)
                .iter()
                .flat_map(|chain| &chain.leases)
            {
                counted[lease.block().0 as usize] += 1;
            }
        }
        let copies = self
            .pending_forks
            .iter()
            .flat_map(|pending| &pending.copies);
        for copy in copies.filter(|copy| copy.group == index) {
            counted[copy.source.block().0 as usize] += 1;
        }
        for (block, &count) in counted.iter().enumerate() {
            let references = pool.references(crate::ids::BlockId(block as u32));
            ensure(references == count, || {
                format!(
                    "group {index}, block {block}: {references} references counted, {count} held"
                )
            })?;
        }
        Ok(())
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
            let empty = sequence.chains.iter().all(|chain| chain.leases.is_empty());
            return ensure(empty, || format!("{id:?} holds blocks without a slot"));
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
        for (group, chain) in self.groups.iter().zip(&sequence.chains) {
            let held = chain.len();
            let behind = group.blocks_behind_window(sequence.computed);
            ensure(
                (chain.behind_window..=chain.behind_window + 1).contains(&behind),
                || {
                    format!(
                        "{id:?}: {} of {behind} blocks behind the window were released",
                        chain.behind_window
                    )
                },
            )?;
            let room = held * group.geometry.block_tokens;
            ensure(room >= sequence.computed && room >= sequence.room, || {
                format!("{id:?}: {held} blocks for {} tokens", sequence.computed)
            })?;
            let full = sequence.computed / group.geometry.block_tokens;
            let indexed = if self.config.prefix_cache { full } else { 0 };
            ensure(chain.indexed == indexed, || {
                format!(
                    "{id:?}: {} of {indexed} computed blocks indexed",
                    chain.indexed
                )
            })?;
        }
        Ok(())
    }
}

fn check_states(index: usize, group: &Group) -> Result<(), Violation> {
    let pool = &group.pool;
    let mut seen = vec![0_u32; pool.total() as usize];
    for block in pool.free_blocks() {
        seen[block.0 as usize] += 1;
        ensure(!group.prefix.contains(block), || {
            format!("group {index}: free block {block} is in the prefix index")
        })?;
    }
    for block in pool.cached_blocks() {
        seen[block.0 as usize] += 1;
        ensure(group.prefix.contains(block), || {
            format!("group {index}: cached block {block} is not in the prefix index")
        })?;
    }
    let indexed = (0..pool.total()).map(crate::ids::BlockId);
    for block in indexed.filter(|&block| group.prefix.contains(block)) {
        ensure(group.prefix.finds(block), || {
            format!("group {index}: block {block} is in the prefix index and cannot be found")
        })?;
    }
    for (block, &count) in seen.iter().enumerate() {
        let leased = pool.references(crate::ids::BlockId(block as u32)) > 0;
        ensure(count + u32::from(leased) == 1, || {
            format!("group {index}: block {block} is in {count} lists, leased: {leased}")
        })?;
    }
    let sum = pool.free() + pool.leased() + pool.cached();
    ensure(sum == pool.total(), || {
        format!("group {index}: {sum} of {} blocks", pool.total())
    })
}
