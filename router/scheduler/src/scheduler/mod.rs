//! The scheduler's state, and how requests enter and leave it.

mod admission;
mod check;
mod fair;
mod fork;
mod outcome;
mod pace;
mod planner;
mod snapshot;

pub use fork::ForkError;
pub use snapshot::Snapshot;

use crate::accounts::Accounts;
use crate::config::{ConfigError, SchedulerConfig};
use crate::ids::{Epoch, Micros, RequestId, SequenceId, SequenceKey, Slot};
use crate::memory::{KvMemory, PendingCopy, SequenceKv};
use crate::plan::Flights;
use crate::request::{AddError, Policy, Request, SequenceFacts};
use crate::running::{Running, SlotUse};
use crate::sequence::{Order, Phase, QueueClass, Sequence, State, Store, stop_filter};
use crate::waiting::Waiting;
use pace::Pacing;
use snapshot::Counters;
use std::collections::BTreeMap;

/// A fork that shares its parent's blocks and is in no plan yet.
#[derive(Debug)]
struct PendingFork {
    child: SequenceKey,
    parent: SequenceKey,
    parent_generation: u32,
    parent_slot: Slot,
    /// Blocks per group that the child has at the fork.
    blocks: Vec<usize>,
    /// At most one block per group.
    copies: Vec<PendingCopy>,
}

/// Decides which tokens run in the next step. See the crate's documentation.
pub struct Scheduler {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    store: Store,
    memory: KvMemory,
    waiting: Waiting,
    accounts: Accounts,
    /// Whether the next plan frees blocks for an account that has nothing in a slot.
    needs_blocks: bool,
    running: Running,
    pending_forks: Vec<PendingFork>,
    /// Running sequences that were steered since the last plan.
    steered: Vec<SequenceId>,
    /// Requests that the next `take_unprepared` returns.
    unprepared: Vec<RequestId>,
    flights: Flights,
    pacing: Pacing,
    counters: Counters,
    /// The arrival number of the newest sequence.
    arrivals: u64,
}

impl Scheduler {
    /// Creates an empty scheduler in epoch 0. Fails on limits with which nothing could run.
    pub fn new(config: SchedulerConfig, policy: Box<dyn Policy>) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            memory: KvMemory::new(&config),
            running: Running::new(config.usable_slots()),
            pacing: Pacing::new(&config),
            config,
            policy,
            store: Store::default(),
            waiting: Waiting::default(),
            accounts: Accounts::default(),
            needs_blocks: false,
            pending_forks: Vec::new(),
            steered: Vec::new(),
            unprepared: Vec::new(),
            flights: Flights::default(),
            counters: Counters::default(),
            arrivals: 0,
        })
    }

    /// Accepts a request into the queue, or into preparation when `request.preparing`.
    pub fn add(&mut self, request: Request, now: Micros) -> Result<(), AddError> {
        self.add_leaving(request, 0, now)
    }

    /// Like `add`, but leaves this many places in the queue free.
    pub fn add_leaving(
        &mut self,
        request: Request,
        free: usize,
        now: Micros,
    ) -> Result<(), AddError> {
        let known = request.token_ids.len() as u64;
        let prompt = known.saturating_sub(u64::from(request.generated));
        let nothing = prompt == 0 || request.sequences == 0;
        if nothing || request.max_new_tokens <= request.generated {
            return Err(AddError::Empty);
        }
        if self.store.contains(request.id) {
            return Err(AddError::Duplicate);
        }
        self.config
            .admits(prompt + u64::from(request.max_new_tokens))?;
        self.check_place(&request.class, known, free)?;
        let preparing = request.preparing;
        let (id, sequence) = self.sequence(request, now);
        let key = self.store.insert(id, sequence);
        if preparing {
            self.park(key);
        } else {
            self.enqueue(key, now);
        }
        Ok(())
    }

    /// Ends a request's preparation: its sequences join the queue. Does nothing otherwise.
    pub fn prepared(&mut self, id: RequestId, now: Micros) {
        for key in self.store.sequences(id) {
            let sequence = &self.store[key];
            if sequence.state == State::Preparing && !sequence.held {
                self.end_waiting(key);
                self.enqueue(key, now);
            }
        }
    }

    /// Returns the requests, since the last call, that the workers must prepare again. Their
    /// sequences were about to run and now wait for `prepared`.
    pub fn take_unprepared(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.unprepared)
    }

    /// Takes a request's queued sequences out of the queue until `prepared`, because new workers
    /// have not prepared it or must run others first. Its running sequences continue.
    pub fn prepare_again(&mut self, id: RequestId) {
        for key in self.store.sequences(id) {
            if self.store[key].state == State::Queued {
                self.end_waiting(key);
                self.park(key);
            }
        }
    }

    /// Returns the requests in the steps in flight, with their runs, in order of their ids.
    pub fn in_flight(&self) -> Vec<(RequestId, u32)> {
        let mut runs = BTreeMap::new();
        for run in self.flights.runs() {
            let sequence = &self.store[run.key];
            if sequence.generation == run.generation {
                *runs.entry(sequence.id.request).or_default() += 1;
            }
        }
        runs.into_iter().collect()
    }

    /// Ends a sequence from outside (a stop string). Its computed blocks stay cached, and its
    /// outcomes in flight are dropped. Does nothing if the sequence has ended.
    pub fn finish(&mut self, sequence: SequenceId) {
        if let Some(key) = self.store.find(sequence) {
            self.remove(key);
        }
    }

    /// Ends all sequences of a request, whatever their state. Returns whether there were any.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let keys = self.store.sequences(id);
        for &key in &keys {
            self.remove(key);
        }
        !keys.is_empty()
    }

    /// Ends all requests and returns their ids in order.
    pub fn drain(&mut self) -> Vec<RequestId> {
        let ids: Vec<_> = self.store.requests().collect();
        for &id in &ids {
            self.abort(id);
        }
        ids
    }

    /// Forgets the workers' state: begins a new epoch with empty slots and an empty cache. All
    /// running sequences return to the head of the queue with their known token ids. Outcomes of
    /// older epochs will be dropped.
    pub fn workers_lost(&mut self, now: Micros) -> Epoch {
        while let Some(&key) = self.running.keys().last() {
            self.preempt(key, now);
        }
        self.unprepared.clear();
        let keys: Vec<_> = self.store.iter().map(|(key, _)| key).collect();
        for key in keys {
            let sequence = &mut self.store[key];
            sequence.in_flight = 0;
            sequence.yielding = 0;
        }
        self.reset_memory();
        self.flights.begin_epoch()
    }

    /// Takes the limits of new workers, after `workers_lost` and before the next plan (begins
    /// another epoch itself if anything runs). Ends the requests that exceed the limits and returns
    /// their ids.
    pub fn replace(
        &mut self,
        config: SchedulerConfig,
        now: Micros,
    ) -> Result<Vec<RequestId>, ConfigError> {
        config.validate()?;
        if !self.running.is_empty() || !self.flights.is_empty() {
            self.workers_lost(now);
        }
        // The old workers' step times say little about new workers.
        self.pacing.relearn(&config);
        self.config = config;
        self.reset_memory();
        let misfits = |s: &Sequence| self.config.admits(u64::from(s.max_tokens)).is_err();
        let mut lost: Vec<_> = self
            .store
            .iter()
            .filter(|(_, s)| misfits(s))
            .map(|(_, s)| s.id.request)
            .collect();
        lost.sort_unstable();
        lost.dedup();
        for &id in &lost {
            self.abort(id);
        }
        Ok(lost)
    }

    fn reset_memory(&mut self) {
        self.memory = KvMemory::new(&self.config);
        self.running = Running::new(self.config.usable_slots());
        let keys: Vec<_> = self.store.iter().map(|(key, _)| key).collect();
        for key in keys {
            // Keys depend on the block size.
            self.store[key].kv = SequenceKv::new(self.memory.groups());
        }
    }

    fn sequence(&mut self, request: Request, now: Micros) -> (RequestId, Sequence) {
        let prompt = request.token_ids.len() as u32 - request.generated;
        let max_tokens = prompt + request.max_new_tokens;
        let facts = SequenceFacts {
            sequence: SequenceId {
                request: request.id,
                index: 0,
            },
            class: &request.class,
            tokens: request.token_ids.len() as u32,
            max_tokens,
            since: now,
            served: 0,
        };
        let rank = self.policy.rank(&facts);
        let place = self.policy.place(&request.class);
        let sequence = Sequence {
            order: Order {
                rank,
                number: self.next_number(),
            },
            pipelining: request.pipelining,
            forks_to_make: request.sequences - 1,
            length: request.token_ids.len() as u32,
            tokens: request.token_ids,
            prompt,
            max_tokens,
            min_tokens: prompt.saturating_add(request.min_new_tokens),
            stop_filter: stop_filter(&request.stop_token_ids),
            stops: request.stop_token_ids,
            salt: request.cache_salt,
            max_cached_tokens: request.max_cached_tokens,
            account: self.accounts.open(place.tenant, request.class.weight),
            place,
            class: request.class,
            kv: SequenceKv::new(self.memory.groups()),
            ..Sequence::default()
        };
        (request.id, sequence)
    }

    fn next_number(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Puts a sequence without slot or blocks into the queue.
    fn enqueue(&mut self, key: SequenceKey, now: Micros) {
        let sequence = &mut self.store[key];
        self.waiting.enqueue(key, sequence, now, &mut self.accounts);
    }

    /// Ends the waiting of a queued or parked sequence; the caller sets its state.
    fn end_waiting(&mut self, key: SequenceKey) {
        self.waiting.leave(&self.store[key]);
    }

    /// Takes slot and blocks from a running sequence and queues it for recomputation.
    fn preempt(&mut self, key: SequenceKey, now: Micros) {
        self.vacate(key);
        if self.store[key].held {
            self.park(key);
        } else {
            self.enqueue(key, now);
        }
    }

    /// Takes slot and blocks from a sequence that will resume before fresh sequences.
    fn vacate(&mut self, key: SequenceKey) {
        self.leave(key);
        self.store[key].queue_class = QueueClass::Resumed;
    }

    /// Keeps a sequence without slot and blocks out of the queue.
    fn park(&mut self, key: SequenceKey) {
        self.waiting.park(&mut self.store[key]);
    }

    /// Ends a sequence in any state.
    fn remove(&mut self, key: SequenceKey) {
        match self.store[key].state {
            State::Vacant => return,
            State::Preparing | State::Queued => self.end_waiting(key),
            State::Running(_) => self.leave(key),
        }
        let sequence = &self.store[key];
        self.accounts.close(sequence.account, sequence.begun);
        self.store.remove(key);
    }

    /// Puts a sequence into a slot.
    fn enter(&mut self, key: SequenceKey, slot: Slot) {
        self.running.enter(&mut self.store, key, slot);
    }

    /// Returns a running sequence's slot and blocks. Steps in flight may still write to the blocks.
    /// That is safe: their next owner writes in a later step, and steps run in order.
    fn leave(&mut self, key: SequenceKey) {
        if self.store[key].slot().is_none() {
            return;
        }
        let slot_use = match self.cancel_pending_fork(key) {
            true => SlotUse::Unplanned,
            false => SlotUse::Planned,
        };
        self.running.leave(&self.store, key, slot_use);
        self.charge_output(key);
        let sequence = &mut self.store[key];
        sequence.flush();
        self.memory.release(&mut sequence.kv);
        sequence.raise_cached_limit();
        sequence.phase = Phase::Prefill;
        sequence.computed = 0;
        sequence.planned = 0;
        sequence.room = 0;
        sequence.claimed = 0;
    }

    /// Cancels the pending fork of `key`. Returns whether there was one.
    fn cancel_pending_fork(&mut self, key: SequenceKey) -> bool {
        let Some(at) = self
            .pending_forks
            .iter()
            .position(|pending| pending.child == key)
        else {
            return false;
        };
        for copy in self.pending_forks.remove(at).copies {
            self.memory.cancel_copy(copy);
        }
        true
    }
}
