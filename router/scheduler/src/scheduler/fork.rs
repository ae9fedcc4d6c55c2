//! `Scheduler::fork`: a second sequence that continues a live one. `Scheduler::steer`: sequences whose
//! next token the caller chooses (beam search).
//!
//! After each yielded token, a steered sequence is *held*: it keeps slot and blocks while memory
//! lasts, and does not run until it is steered. Siblings that are behind, because there was no room
//! for them, may need its memory. When nothing else can run, the youngest held sequence is evicted
//! and parked outside the queue until it is steered.

use super::{PendingFork, Scheduler};
use crate::ids::{Micros, SequenceId, SequenceKey, TokenId};
use crate::memory::{ForkedKv, SequenceKv};
use crate::plan::{BlockCopy, Fork, NewSequence, SteeredToken, Table};
use crate::plan_builder::full;
use crate::request::{AddError, BegunSequence, Pipelining, Request};
use crate::sequence::{Order, QueueClass, Sequence, State};

/// Why `fork` refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkError {
    /// No live sequence has the parent's id.
    Unknown,
    /// The child could never run, or the queue is full.
    Refused(AddError),
}

impl std::fmt::Display for ForkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => write!(f, "the sequence to fork has ended or was never added"),
            Self::Refused(error) => write!(f, "the fork cannot be added: {error}"),
        }
    }
}

impl std::error::Error for ForkError {}

impl Scheduler {
    /// Adds a child that continues the parent's tokens *as known now*; outcomes in flight belong to
    /// the parent alone. `max_new_tokens` counts from the prompt's end, as the parent's does.
    ///
    /// The child shares the parent's full blocks if the parent runs, has nothing in flight
    /// (`Pipelining::Waits`, between `complete` and `plan`), and a slot and blocks are free. The
    /// next plan then copies the last, partial block (copy on write). Otherwise the child queues
    /// and finds the parent's computed blocks in the prefix cache; a child of a parent that has not
    /// begun waits for it.
    pub fn fork(
        &mut self,
        parent: SequenceId,
        max_new_tokens: u32,
        now: Micros,
    ) -> Result<SequenceId, ForkError> {
        let parent = self.store.find(parent).ok_or(ForkError::Unknown)?;
        let original = &self.store[parent];
        if max_new_tokens <= original.generated() {
            return Err(ForkError::Refused(AddError::Empty));
        }
        let tokens = u64::from(original.prompt) + u64::from(max_new_tokens);
        self.config.admits(tokens).map_err(ForkError::Refused)?;
        let may_wait = self.waiting.counts().fresh < self.config.max_waiting;
        let shares = self.can_share(parent);
        if !shares && !may_wait {
            return Err(ForkError::Refused(AddError::QueueFull));
        }
        let key = self.insert_child(parent, tokens as u32);
        if shares {
            self.share(parent, key);
        } else if self.store[parent].state == State::Preparing {
            self.park(key);
        } else {
            self.enqueue(key, now);
        }
        Ok(self.store[key].id)
    }

    /// Takes over a request that another scheduler has begun, with its `sequences` that have not
    /// ended: at least one. They resume before fresh requests, and the queue's bounds do not count.
    pub fn resume(
        &mut self,
        request: Request,
        sequences: &[BegunSequence],
        now: Micros,
    ) -> Result<(), AddError> {
        if request.token_ids.is_empty() || sequences.is_empty() {
            return Err(AddError::Empty);
        }
        if self.store.contains(request.id) {
            return Err(AddError::Duplicate);
        }
        let tokens = request.token_ids.len() as u64 + u64::from(request.max_new_tokens);
        self.config.admits(tokens)?;
        let (request, mut first) = self.sequence(request, now);
        first.queue_class = QueueClass::Resumed;
        first.begun = true;
        let account = first.account;
        for &BegunSequence {
            index,
            ref generated,
        } in sequences
        {
            let mut sequence = first.child(first.max_tokens, self.next_number());
            sequence.extend(generated);
            // The former scheduler charged them.
            sequence.charged = sequence.len();
            self.accounts.open_again(account, true);
            let key = self
                .store
                .insert_as(SequenceId { request, index }, sequence);
            self.enqueue(key, now);
        }
        // `first` is no sequence of its own.
        self.accounts.close(account, false);
        Ok(())
    }

    /// Makes the forks that a running sequence's request needs. They share its blocks while slots
    /// and blocks last; the others queue and find the blocks in the prefix cache. None is refused,
    /// because their request was admitted with all its sequences.
    pub(super) fn make_forks(&mut self, parent: SequenceKey, now: Micros) {
        let forks_to_make = std::mem::take(&mut self.store[parent].forks_to_make);
        for _ in 0..forks_to_make {
            let child = self.insert_child(parent, self.store[parent].max_tokens);
            if self.can_share(parent) {
                self.share(parent, child);
            } else {
                self.enqueue(child, now);
            }
        }
    }

    /// Stores a child of `parent`; the caller sets its state.
    fn insert_child(&mut self, parent: SequenceKey, max_tokens: u32) -> SequenceKey {
        let number = self.next_number();
        let parent = &mut self.store[parent];
        parent.flush();
        let (child, request) = (parent.child(max_tokens, number), parent.id.request);
        self.accounts.open_again(child.account, child.begun);
        self.store.insert(request, child)
    }

    /// Returns the forks of this plan, and as new sequences those whose parent has left its slot.
    pub(super) fn flush_forks(
        &mut self,
        new: &mut Vec<NewSequence>,
    ) -> (Vec<Fork>, Vec<BlockCopy>) {
        let mut forks = Vec::new();
        let mut copies = Vec::new();
        for pending in std::mem::take(&mut self.pending_forks) {
            let child = &self.store[pending.child];
            let Some(destination) = child.slot() else {
                continue;
            };
            let tables = pending_tables(child, &pending);
            let parent = &self.store[pending.parent];
            let in_slot = parent.generation == pending.parent_generation
                && parent.slot() == Some(pending.parent_slot);
            if in_slot {
                let sequence = child.id;
                forks.push(Fork {
                    sequence,
                    source: pending.parent_slot,
                    destination,
                    tables,
                });
            } else {
                new.push(full(child, destination, tables, child.computed));
            }
            for copy in pending.copies {
                copies.push(self.memory.plan_copy(copy));
            }
        }
        (forks, copies)
    }

    fn can_share(&self, parent: SequenceKey) -> bool {
        let sequence = &self.store[parent];
        let ready = sequence.slot().is_some() && sequence.in_flight == 0 && sequence.computed > 0;
        let not_pending = self
            .pending_forks
            .iter()
            .all(|pending| pending.child != parent);
        ready && not_pending && self.memory.can_fork() && self.running.free_slots() > 0
    }

    /// Puts `child` into a slot with the parent's computed blocks.
    fn share(&mut self, parent: SequenceKey, child: SequenceKey) {
        let Some(slot) = self.running.take_slot() else {
            return;
        };
        let Some(parent_slot) = self.store[parent].slot() else {
            return;
        };
        let original = &self.store[parent];
        let (computed, planned, phase) = (original.computed, original.planned, original.phase);
        let (parent_generation, boundary) = (original.generation, original.boundary);
        let ForkedKv { kv, room, copies } = self.memory.fork(&original.kv, computed);
        self.pending_forks.push(PendingFork {
            child,
            parent,
            parent_generation,
            parent_slot,
            blocks: kv.lengths(),
            copies,
        });
        let sequence = &mut self.store[child];
        sequence.kv = kv;
        sequence.room = room;
        sequence.computed = computed;
        sequence.planned = planned;
        sequence.phase = phase;
        sequence.boundary = boundary;
        self.enter(child, slot);
    }

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

    /// Evicts the youngest held sequence for those that cannot run. Returns false if there is none,
    /// or if nothing else wants to run.
    pub(super) fn preempt_held(&mut self, now: Micros) -> bool {
        let held = |&&key: &&SequenceKey| self.store[key].held;
        let running = self.running.keys();
        let waiting = !self.waiting.is_empty() || !running.iter().all(|key| held(&key));
        if !waiting || !self.flights.is_empty() {
            return false;
        }
        let held = running.iter().rev().find(held).copied();
        if let Some(key) = held {
            self.preempt(key, now);
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

impl Sequence {
    /// Returns a sequence with the same known tokens, without slot and blocks.
    fn child(&self, max_tokens: u32, number: u64) -> Self {
        Self {
            pipelining: self.pipelining,
            queue_class: match self.state {
                State::Running(_) => QueueClass::Resumed,
                State::Vacant | State::Preparing | State::Queued => self.queue_class,
            },
            order: Order {
                rank: self.order.rank,
                number,
            },
            length: self.length,
            tokens: self.tokens.clone(),
            prompt: self.prompt,
            max_tokens,
            min_tokens: self.min_tokens,
            stop_filter: self.stop_filter,
            stops: self.stops.clone(),
            salt: self.salt.clone(),
            max_cached_tokens: u32::MAX,
            class: self.class.clone(),
            account: self.account,
            place: self.place,
            begun: self.begun,
            // Its parent pays for their common tokens.
            charged: self.length,
            kv: SequenceKv::new(self.kv.lengths().len()),
            ..Self::default()
        }
    }
}

fn pending_tables(child: &Sequence, pending: &PendingFork) -> Vec<Table> {
    let mut tables = child.kv.tables();
    for (table, &blocks) in tables.iter_mut().zip(&pending.blocks) {
        table.blocks.truncate(blocks);
    }
    tables
}
