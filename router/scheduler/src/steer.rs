//! `Scheduler::steer`: sequences whose next token is chosen outside (beam search).
//!
//! After each token that it yields, a steered sequence is *held*: it keeps slot and blocks while
//! memory lasts, and does not run until it is steered. Siblings that are behind it, because there
//! was no room for them, may need what it holds: when nothing else can run, it is evicted. Then it is
//! parked outside the queue until it is steered.

use crate::ids::{Micros, SequenceId, TokenId};
use crate::plan::{NewSequence, SteeredToken};
use crate::request::Pipelining;
use crate::scheduler::Scheduler;
use crate::sequence::{SequenceKey, State};

impl Scheduler {
    /// Goes on with a held sequence: it takes the first of `tokens` in the place of its last token,
    /// and a fork of it takes each of the others. The forks' ids, in that order. Without tokens it
    /// ends. Does nothing if the sequence is over or is not held.
    ///
    /// Siblings that end are best steered first: their slots and blocks serve the forks.
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

    /// Holds a sequence that has yielded a token, if it is to be steered.
    pub(crate) fn hold(&mut self, key: SequenceKey) {
        if self.store[key].pipelining != Pipelining::Steered {
            return;
        }
        self.store[key].held = true;
        if self.store[key].state == State::Queued {
            self.dequeue(key);
            self.park(key);
        }
    }

    /// Frees what the youngest held sequence holds, for those that cannot run; false if there is
    /// none, or nobody wants to run.
    pub(crate) fn evict_held(&mut self, now: Micros) -> bool {
        let held = |&&key: &&SequenceKey| self.store[key].held;
        let waiting = !self.queue.is_empty() || !self.running.iter().all(|key| held(&key));
        if !waiting || !self.flights.is_empty() {
            return false;
        }
        let held = self.running.iter().rev().find(held).copied();
        if let Some(key) = held {
            self.evict(key, now);
        }
        held.is_some()
    }

    /// What the workers must know of those steered since the last plan. Who enters a slot with this
    /// plan brings its tokens along.
    pub(crate) fn flush_steered(&mut self, new: &[NewSequence]) -> Vec<SteeredToken> {
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

    /// Lets a held sequence run on with `token`.
    fn release(&mut self, key: SequenceKey, token: TokenId, now: Micros) {
        let sizes: Vec<_> = self
            .groups
            .iter()
            .map(|g| g.geometry.block_tokens)
            .collect();
        let sequence = &mut self.store[key];
        sequence.replace_last(token, &sizes);
        sequence.held = false;
        let id = sequence.id;
        match sequence.state {
            State::Running(_) => self.steered.push(id),
            State::Preparing => {
                self.unpark(key);
                self.enqueue(key, now);
            }
            State::Queued | State::Vacant => {}
        }
    }
}
