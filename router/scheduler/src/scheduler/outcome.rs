//! `Scheduler::complete`: turns an outcome into known tokens, cached blocks and emissions.

use super::Scheduler;
use crate::ids::{Micros, SequenceKey, Slot, TokenId};
use crate::plan::{Emission, Finish, FlightRun, Reach, StepOutcome};
use crate::request::Pipelining;
use crate::sequence::{Sequence, State};
use std::ops::Range;

/// Iterates over an outcome's tokens in run order.
struct Yields<'a> {
    slots: &'a [Slot],
    counts: &'a [u32],
    token_ids: &'a [TokenId],
    /// Index of the next token.
    start: usize,
}

/// What `complete` collects.
struct Completion {
    emissions: Vec<Emission>,
    /// Sequences with a full block to settle. They are settled last, so that their cache misses
    /// overlap.
    at_boundary: Vec<SequenceKey>,
}

impl<'a> Yields<'a> {
    fn new(outcome: &'a StepOutcome) -> Self {
        Self {
            slots: &outcome.slots,
            counts: &outcome.counts,
            token_ids: &outcome.token_ids,
            start: 0,
        }
    }

    /// Returns the token of a run that yielded exactly one.
    #[inline]
    fn single(&self, run: &FlightRun) -> Option<TokenId> {
        let single = self.slots.first() == Some(&run.slot) && self.counts.first() == Some(&1);
        let token = self.token_ids.get(self.start);
        token.copied().filter(|_| single)
    }

    /// Advances past the token of `single` and returns its range.
    #[inline]
    fn take_single(&mut self) -> Range<usize> {
        self.slots = &self.slots[1..];
        self.counts = &self.counts[1..];
        self.start += 1;
        self.start - 1..self.start
    }

    /// Returns the range of a run's tokens; empty if it yielded none.
    fn take_range(&mut self, run: &FlightRun) -> Range<usize> {
        let start = self.start;
        if let ([slot, slots @ ..], [count, counts @ ..]) = (self.slots, self.counts)
            && *slot == run.slot
        {
            (self.slots, self.counts) = (slots, counts);
            self.start = (start + *count as usize).min(self.token_ids.len());
        }
        start..self.start
    }
}

impl Scheduler {
    /// Takes the outcome of the oldest plan in flight and returns emissions in run order. Drops
    /// outcomes of old epochs and tokens of ended sequences.
    pub fn complete(&mut self, outcome: &StepOutcome, now: Micros) -> Vec<Emission> {
        let Some(flight) = self.flights.pop(outcome.epoch, outcome.step) else {
            return Vec::new();
        };
        self.pacing.observe(&flight, outcome.duration, now);
        let mut completion = Completion {
            emissions: Vec::with_capacity(outcome.slots.len()),
            at_boundary: Vec::new(),
        };
        let mut yields = Yields::new(outcome);
        let mut runs = &flight.runs[..];
        while !runs.is_empty() {
            runs = match outcome.failed.is_empty() && outcome.unprepared.is_empty() {
                true => self.settle_fast_path(runs, &mut yields, &mut completion),
                false => runs,
            };
            let Some((run, rest)) = runs.split_first() else {
                break;
            };
            runs = rest;
            let tokens = yields.take_range(run);
            if self.store[run.key].generation == run.generation {
                let emission = if outcome.failed.contains(&run.slot) {
                    self.fail(run, tokens.start)
                } else if outcome.unprepared.contains(&run.slot) {
                    self.park_unprepared(run);
                    None
                } else {
                    self.settle(run, tokens, &outcome.token_ids)
                };
                completion.emissions.extend(emission);
            }
        }
        self.settle_together(&completion.at_boundary);
        self.flights.recycle(flight.runs);
        completion.emissions
    }

    /// Settles runs while they are the common case: one token that does not end its sequence.
    /// Returns the remaining runs.
    fn settle_fast_path<'a>(
        &mut self,
        runs: &'a [FlightRun],
        yields: &mut Yields<'_>,
        completion: &mut Completion,
    ) -> &'a [FlightRun] {
        for (at, run) in runs.iter().enumerate() {
            let sequence = &mut self.store[run.key];
            let fast = sequence.generation == run.generation && run.reach == Reach::Yields;
            let Some(token) = yields.single(run).filter(|_| fast) else {
                return &runs[at..];
            };
            if !sequence.push_fast_path(token) {
                return &runs[at..];
            }
            let tokens = yields.take_single();
            completion.emissions.push(Emission {
                sequence: sequence.id,
                slot: run.slot,
                tokens,
                finish: None,
                steered: false,
            });
            if sequence.computed >= sequence.boundary {
                completion.at_boundary.push(run.key);
            }
        }
        &[]
    }

    fn fail(&mut self, run: &FlightRun, at: usize) -> Option<Emission> {
        self.emit(run, at..at, Some(Finish::Failed))
    }

    /// Takes a sequence out of its slot until its request is prepared again. Its later runs in
    /// flight yield nothing either.
    fn park_unprepared(&mut self, run: &FlightRun) {
        let sequence = &mut self.store[run.key];
        sequence.in_flight -= 1;
        sequence.yielding -= u16::from(run.reach == Reach::Yields);
        if sequence.slot() == Some(run.slot) {
            let request = sequence.id.request;
            self.vacate(run.key);
            self.park(run.key);
            self.unprepared.push(request);
        }
    }

    fn settle(
        &mut self,
        run: &FlightRun,
        range: Range<usize>,
        token_ids: &[TokenId],
    ) -> Option<Emission> {
        let sequence = &mut self.store[run.key];
        sequence.in_flight -= 1;
        if run.reach == Reach::Part {
            if sequence.slot().is_some() {
                sequence.computed += run.tokens;
                self.settle_blocks(run.key);
            }
            return None;
        }
        sequence.yielding -= 1;
        let yielded = &token_ids[range.clone()];
        let (accepted, finish) = sequence.count_accepted(yielded);
        let before = sequence.len();
        sequence.extend(&yielded[..accepted]);
        match sequence.state {
            State::Running(_) => {
                // All yielded tokens but the last were run. Without a yield, the last known token
                // runs again.
                let computed = before + (yielded.len() as u32).max(1) - 1;
                sequence.computed = computed.min(sequence.len());
                if sequence.computed == sequence.len() && yielded.is_empty() {
                    sequence.computed -= 1;
                }
                if sequence.computed >= sequence.boundary {
                    self.settle_blocks(run.key);
                }
            }
            State::Queued => self.waiting.add_tokens(accepted),
            State::Preparing | State::Vacant => {}
        }
        if accepted > 0 && finish.is_none() {
            self.hold(run.key);
        }
        self.emit(run, range.start..range.start + accepted, finish)
    }

    fn emit(
        &mut self,
        run: &FlightRun,
        tokens: Range<usize>,
        finish: Option<Finish>,
    ) -> Option<Emission> {
        let sequence = self.store[run.key].id;
        let steered = self.store[run.key].pipelining == Pipelining::Steered;
        if finish.is_some() {
            self.remove(run.key);
        } else if tokens.is_empty() {
            return None;
        }
        Some(Emission {
            sequence,
            slot: run.slot,
            tokens,
            finish,
            steered,
        })
    }

    /// Settles the blocks of several sequences in passes, so that the cache misses of a pass overlap:
    /// the ends of their lists, the buckets of their blocks' keys, then the work.
    fn settle_together(&mut self, keys: &[SequenceKey]) {
        for &key in keys {
            self.store[key].prefetch();
        }
        if self.memory.caches() {
            self.prefetch_index(keys);
        }
        for &key in keys {
            self.settle_blocks(key);
        }
    }

    /// Computes the keys of the next blocks and touches their buckets.
    fn prefetch_index(&mut self, keys: &[SequenceKey]) {
        let mut block_keys = Vec::with_capacity(keys.len());
        for &key in keys {
            let sequence = &mut self.store[key];
            sequence.flush();
            let (kv, contents) = sequence.parts();
            block_keys.extend(self.memory.next_key(kv, contents));
        }
        self.memory.prefetch_index(block_keys.into_iter());
    }

    /// Makes the full blocks of a running sequence's computed tokens findable and releases those
    /// behind its windows.
    fn settle_blocks(&mut self, key: SequenceKey) {
        self.charge_output(key);
        let sequence = &mut self.store[key];
        sequence.flush();
        let computed = sequence.computed;
        let (kv, contents) = sequence.parts();
        sequence.boundary = self.memory.settle(kv, contents, computed);
    }
}

impl Sequence {
    /// Appends one token if it does not end the sequence; the caller settles a full block. Returns
    /// whether it did.
    #[inline]
    fn push_fast_path(&mut self, token: TokenId) -> bool {
        let length = self.len();
        let fast = length + 1 < self.max_tokens
            && self.has_tail_room()
            && self.pipelining != Pipelining::Steered
            && matches!(self.state, State::Running(_))
            && !self.stops_at(token);
        if fast {
            self.in_flight -= 1;
            self.yielding -= 1;
            self.computed = length;
            self.push(token);
        }
        fast
    }

    /// Returns how many of the yielded tokens the sequence keeps, and why it ends, if it does.
    fn count_accepted(&self, yielded: &[TokenId]) -> (usize, Option<Finish>) {
        let left = (self.max_tokens - self.len()) as usize;
        let accepted = yielded.len().min(left);
        let masked = self.min_tokens.saturating_sub(self.len()) as usize;
        let stop = |&token: &TokenId| self.stops_at(token);
        if let Some(at) = yielded[..accepted].iter().skip(masked).position(stop) {
            return (masked + at + 1, Some(Finish::StopToken));
        }
        (accepted, (accepted == left).then_some(Finish::Length))
    }
}
