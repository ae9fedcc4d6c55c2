//! `Scheduler::steer`: sequences whose next token the caller chooses (beam search).
//!
//! After each yielded token, a steered sequence is *held*: it keeps slot and blocks while memory
//! lasts, and does not run until it is steered. Siblings that are behind, because there was no room
//! for them, may need its memory. When nothing else can run, the youngest held sequence is evicted
//! and parked outside the queue until it is steered.

use super::Scheduler;
use crate::ids::{Micros, SequenceId, SequenceKey, TokenId};
use crate::plan::{NewSequence, SteeredToken};
use crate::request::Pipelining;
use crate::sequence::State;

impl Scheduler {
    /// Continues a held sequence: the first of `tokens` replaces its last token, and a fork takes
    /// each of the others. Returns the forks' ids in that order. Without tokens, the sequence ends.
    /// Does nothing if the sequence has ended or is not held.
    ///
    /// Steer siblings that end first: their slots and blocks then serve the forks.
    pub fn steer(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        now: Micros,
    ) -> Vec<SequenceId> {
        let held = |&key: &SequenceKey| self.store[key].held;
        let Some(parent) = self.store.find(sequence).filter(held) else {
            return Vec::new();
        };
        let Some((&first, others)) = tokens.split_first() else {
            self.remove(parent);
            return Vec::new();
        };
        let mut children = Vec::with_capacity(others.len());
        for &token in others {
            let child = self.insert_child(parent, self.store[parent].max_tokens);
            if self.can_share(parent) {
                self.share(parent, child);
                self.release(child, token, now);
            } else {
                self.park(child);
                self.release(child, token, now);
            }
            children.push(self.store[child].id);
        }
        self.release(parent, first, now);
        children
    }

    /// Holds a steered sequence that has yielded a token.
    pub(super) fn hold(&mut self, key: SequenceKey) {
        if self.store[key].pipelining != Pipelining::Steered {
            return;
        }
        self.store[key].held = true;
        if self.store[key].state == State::Queued {
            self.end_waiting(key);
            self.park(key);
        }
    }

    /// Evicts the youngest held sequence if others cannot run. Returns false if there is none, or
    /// if no other sequence waits.
    pub(super) fn evict_held(&mut self, now: Micros) -> bool {
        let held = |&&key: &&SequenceKey| self.store[key].held;
        let running = self.running.keys();
        let waiting = !self.waiting.is_empty() || !running.iter().all(|key| held(&key));
        if !waiting || !self.flights.is_empty() {
            return false;
        }
        let held = running.iter().rev().find(held).copied();
        if let Some(key) = held {
            self.evict(key, now);
        }
        held.is_some()
    }

    /// Returns the replaced tokens of running sequences since the last plan. Sequences that enter a
    /// slot in this plan already bring theirs.
    pub(super) fn flush_steered(&mut self, new: &[NewSequence]) -> Vec<SteeredToken> {
        let ids = std::mem::take(&mut self.steered).into_iter();
        let known = ids.filter(|&id| new.iter().all(|new| new.sequence != id));
        let steered = known.filter_map(|id| {
            let key = self.store.find(id)?;
            let sequence = &mut self.store[key];
            sequence.flush();
            Some(SteeredToken {
                slot: sequence.slot()?,
                token: *sequence.tokens.last()?,
            })
        });
        steered.collect()
    }

    /// Lets a held sequence continue with `token`.
    fn release(&mut self, key: SequenceKey, token: TokenId, now: Micros) {
        let sequence = &mut self.store[key];
        sequence.replace_last(token, self.memory.block_tokens());
        sequence.held = false;
        let id = sequence.id;
        match sequence.state {
            State::Running(_) => self.steered.push(id),
            State::Preparing => {
                self.end_waiting(key);
                self.enqueue(key, now);
            }
            State::Queued | State::Vacant => {}
        }
    }
}
