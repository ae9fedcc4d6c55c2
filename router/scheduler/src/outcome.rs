//! `Scheduler::complete`: what a step brought becomes known tokens, cached blocks and emissions.

use crate::flight::{Flight, FlightRun, Reach};
use crate::ids::{Micros, TokenId};
use crate::plan::{Emission, Finish, StepOutcome};
use crate::scheduler::Scheduler;
use crate::sequence::{Place, Sequence, State};
use std::ops::Range;

/// Reads an outcome's yields in run order.
struct Yields<'a> {
    outcome: &'a StepOutcome,
    next: usize,
    start: usize,
}

impl<'a> Yields<'a> {
    fn new(outcome: &'a StepOutcome) -> Self {
        Self {
            outcome,
            next: 0,
            start: 0,
        }
    }

    /// Where the tokens of a run are. Empty if it yielded none.
    fn of(&mut self, run: &FlightRun) -> Range<usize> {
        if self.outcome.slots.get(self.next) != Some(&run.slot) {
            return self.start..self.start;
        }
        let count = self.outcome.counts.get(self.next).copied().unwrap_or(0) as usize;
        let start = self.start;
        self.next += 1;
        self.start = (start + count).min(self.outcome.token_ids.len());
        start..self.start
    }
}

impl Scheduler {
    /// Takes the outcome of the oldest plan in flight: news per sequence, in run order. Outcomes
    /// of old epochs and tokens of sequences that are over are dropped.
    pub fn complete(&mut self, outcome: &StepOutcome, now: Micros) -> Vec<Emission> {
        let next = self.flights.front().map(|flight| flight.step);
        if outcome.epoch != self.epoch || next != Some(outcome.step) {
            return Vec::new();
        }
        let Some(mut flight) = self.flights.pop_front() else {
            return Vec::new();
        };
        self.cost
            .observe(flight.load, self.duration(&flight, outcome, now));
        self.last_outcome = now;
        let mut emissions = Vec::with_capacity(outcome.slots.len());
        // Their blocks are indexed together at the end: the misses of one overlap those of others.
        let mut at_boundary = Vec::new();
        let mut yields = Yields::new(outcome);
        for run in &flight.runs {
            let range = yields.of(run);
            let sequence = &mut self.store[run.place];
            if sequence.generation != run.generation {
                continue;
            }
            let emission = if outcome.failed.contains(&run.slot) {
                self.fail(run, range.start)
            } else if sequence.push_plainly(run, &outcome.token_ids[range.clone()]) {
                if sequence.computed >= sequence.boundary {
                    at_boundary.push(run.place);
                }
                Some(Emission {
                    sequence: sequence.id,
                    tokens: range,
                    finish: None,
                })
            } else {
                self.settle(run, range, &outcome.token_ids)
            };
            emissions.extend(emission);
        }
        for &place in &at_boundary {
            self.store[place].read_ahead();
        }
        for place in at_boundary {
            self.index(place);
        }
        flight.runs.clear();
        self.spare_runs = flight.runs;
        emissions
    }

    /// How long a step took. Without the workers' word: since it could begin, which is when it was
    /// planned or, if later, when the step before it was done.
    fn duration(&self, flight: &Flight, outcome: &StepOutcome, now: Micros) -> u64 {
        match outcome.duration {
            0 => now
                .0
                .saturating_sub(flight.planned.max(self.last_outcome).0),
            known => known,
        }
    }

    fn fail(&mut self, run: &FlightRun, at: usize) -> Option<Emission> {
        let sequence = self.store[run.place].id;
        self.remove(run.place);
        Some(Emission {
            sequence,
            tokens: at..at,
            finish: Some(Finish::Failed),
        })
    }

    fn settle(
        &mut self,
        run: &FlightRun,
        range: Range<usize>,
        token_ids: &[TokenId],
    ) -> Option<Emission> {
        let sequence = &mut self.store[run.place];
        sequence.in_flight -= 1;
        if run.reach == Reach::Part {
            if sequence.slot().is_some() {
                sequence.computed += run.tokens;
                self.index(run.place);
            }
            return None;
        }
        sequence.yielding -= 1;
        let yielded = &token_ids[range.clone()];
        let (kept, finish) = sequence.keep(yielded);
        let before = sequence.len();
        sequence.extend(&yielded[..kept]);
        match sequence.state {
            State::Running(_) => {
                // All but the last yielded token were run; without any, the last one runs again.
                let computed = before + (yielded.len() as u32).max(1) - 1;
                sequence.computed = computed.min(sequence.len());
                if sequence.computed == sequence.len() && yielded.is_empty() {
                    sequence.computed -= 1;
                }
                if sequence.computed >= sequence.boundary {
                    self.index(run.place);
                }
            }
            State::Queued => self.counters.waiting_tokens += kept as u64,
            State::Preparing | State::Vacant => {}
        }
        self.emit(run.place, range.start..range.start + kept, finish)
    }

    fn emit(
        &mut self,
        place: Place,
        tokens: Range<usize>,
        finish: Option<Finish>,
    ) -> Option<Emission> {
        let sequence = self.store[place].id;
        if finish.is_some() {
            self.remove(place);
        } else if tokens.is_empty() {
            return None;
        }
        Some(Emission {
            sequence,
            tokens,
            finish,
        })
    }

    /// Makes the full blocks of a running sequence's computed tokens findable.
    fn index(&mut self, place: Place) {
        if !self.config.prefix_cache {
            return;
        }
        let sequence = &mut self.store[place];
        sequence.flush();
        let computed = sequence.computed;
        let (chains, contents) = sequence.parts();
        let mut boundary = u32::MAX;
        for (group, chain) in self.groups.iter_mut().zip(chains) {
            group.index(chain, contents, computed);
            boundary = boundary.min((chain.indexed + 1) * group.geometry.block_tokens);
        }
        sequence.boundary = boundary;
    }
}

impl Sequence {
    /// Does all that `settle` would do in the common case, and nothing otherwise: one token that
    /// does not end the sequence; indexing a full block is the caller's. Whether it was that case.
    #[inline]
    fn push_plainly(&mut self, run: &FlightRun, yielded: &[TokenId]) -> bool {
        let &[token] = yielded else { return false };
        let length = self.len();
        let plain = run.reach == Reach::Yields
            && length + 1 < self.max_tokens
            && self.has_tail_room()
            && matches!(self.state, State::Running(_))
            && !self.stops_at(token);
        if plain {
            self.in_flight -= 1;
            self.yielding -= 1;
            self.computed = length;
            self.push(token);
        }
        plain
    }

    /// How many of the yielded tokens belong to the sequence, and whether they end it.
    fn keep(&self, yielded: &[TokenId]) -> (usize, Option<Finish>) {
        let left = (self.max_tokens - self.len()) as usize;
        let kept = yielded.len().min(left);
        let masked = self.min_tokens.saturating_sub(self.len()) as usize;
        let stop = |&token: &TokenId| self.stops_at(token);
        if let Some(at) = yielded[..kept].iter().skip(masked).position(stop) {
            return (masked + at + 1, Some(Finish::StopToken));
        }
        (kept, (kept == left).then_some(Finish::Length))
    }
}
