//! `Scheduler::complete`: what a step brought becomes known tokens, cached blocks and emissions.

use crate::flight::{Flight, FlightRun, Reach};
use crate::ids::{Micros, Slot, TokenId};
use crate::plan::{Emission, Finish, StepOutcome};
use crate::request::Pipelining;
use crate::scheduler::Scheduler;
use crate::sequence::{Place, Sequence, State};
use std::ops::Range;

/// Reads an outcome's yields in run order.
struct Yields<'a> {
    slots: &'a [Slot],
    counts: &'a [u32],
    token_ids: &'a [TokenId],
    /// Of the next token.
    start: usize,
}

/// What `complete` gathers.
struct News {
    emissions: Vec<Emission>,
    /// Sequences with a full block to settle. All at the end: the misses of one overlap those of others.
    at_boundary: Vec<Place>,
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

    /// The token of a run that yielded exactly one.
    #[inline]
    fn single(&self, run: &FlightRun) -> Option<TokenId> {
        let single = self.slots.first() == Some(&run.slot) && self.counts.first() == Some(&1);
        let token = self.token_ids.get(self.start);
        token.copied().filter(|_| single)
    }

    /// Goes past the token of `single`; where it is.
    #[inline]
    fn pass_single(&mut self) -> Range<usize> {
        self.slots = &self.slots[1..];
        self.counts = &self.counts[1..];
        self.start += 1;
        self.start - 1..self.start
    }

    /// Where the tokens of a run are. Empty if it yielded none.
    fn of(&mut self, run: &FlightRun) -> Range<usize> {
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
            .observe(flight.load, self.duration(&flight, outcome, now), now);
        self.last_outcome = now;
        let mut news = News {
            emissions: Vec::with_capacity(outcome.slots.len()),
            at_boundary: Vec::new(),
        };
        let mut yields = Yields::new(outcome);
        let mut runs = &flight.runs[..];
        while !runs.is_empty() {
            runs = match outcome.failed.is_empty() && outcome.unprepared.is_empty() {
                true => self.settle_plainly(runs, &mut yields, &mut news),
                false => runs,
            };
            let Some((run, rest)) = runs.split_first() else {
                break;
            };
            runs = rest;
            let tokens = yields.of(run);
            if self.store[run.place].generation == run.generation {
                let emission = if outcome.failed.contains(&run.slot) {
                    self.fail(run, tokens.start)
                } else if outcome.unprepared.contains(&run.slot) {
                    self.part(run);
                    None
                } else {
                    self.settle(run, tokens, &outcome.token_ids)
                };
                news.emissions.extend(emission);
            }
        }
        self.settle_together(&news.at_boundary);
        flight.runs.clear();
        self.spare_runs = flight.runs;
        news.emissions
    }

    /// Settles runs for as long as they are the common case: one token that does not end its
    /// sequence. The runs that are left to `settle`.
    fn settle_plainly<'a>(
        &mut self,
        runs: &'a [FlightRun],
        yields: &mut Yields<'_>,
        news: &mut News,
    ) -> &'a [FlightRun] {
        for (at, run) in runs.iter().enumerate() {
            let sequence = &mut self.store[run.place];
            let plain = sequence.generation == run.generation && run.reach == Reach::Yields;
            let Some(token) = yields.single(run).filter(|_| plain) else {
                return &runs[at..];
            };
            if !sequence.push_plainly(token) {
                return &runs[at..];
            }
            let tokens = yields.pass_single();
            news.emissions.push(Emission {
                sequence: sequence.id,
                slot: run.slot,
                tokens,
                finish: None,
                steered: false,
            });
            if sequence.computed >= sequence.boundary {
                news.at_boundary.push(run.place);
            }
        }
        &[]
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
        self.emit(run, at..at, Some(Finish::Failed))
    }

    /// Takes a sequence out of its slot until its request is prepared again. Runs of it that were
    /// planned since come to nothing either.
    fn part(&mut self, run: &FlightRun) {
        let sequence = &mut self.store[run.place];
        sequence.in_flight -= 1;
        sequence.yielding -= u16::from(run.reach == Reach::Yields);
        if sequence.slot() == Some(run.slot) {
            let request = sequence.id.request;
            self.vacate(run.place);
            self.park(run.place);
            self.unprepared.push(request);
        }
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
                self.settle_blocks(run.place);
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
                    self.settle_blocks(run.place);
                }
            }
            State::Queued => self.counters.waiting_tokens += kept as u64,
            State::Preparing | State::Vacant => {}
        }
        if kept > 0 && finish.is_none() {
            self.hold(run.place);
        }
        self.emit(run, range.start..range.start + kept, finish)
    }

    fn emit(
        &mut self,
        run: &FlightRun,
        tokens: Range<usize>,
        finish: Option<Finish>,
    ) -> Option<Emission> {
        let sequence = self.store[run.place].id;
        let steered = self.store[run.place].pipelining == Pipelining::Steered;
        if finish.is_some() {
            self.remove(run.place);
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

    /// Settles the blocks of several sequences in passes, each of which overlaps its cache misses:
    /// the ends of their lists, then where their blocks' keys are to stand, then the work.
    fn settle_together(&mut self, places: &[Place]) {
        for &place in places {
            self.store[place].read_ahead();
        }
        if self.config.prefix_cache {
            self.read_homes(places);
        }
        for &place in places {
            self.settle_blocks(place);
        }
    }

    /// Makes the keys of the next blocks, and reads where they are to stand.
    fn read_homes(&mut self, places: &[Place]) {
        let mut keys = Vec::with_capacity(places.len());
        for (index, group) in self.groups.iter().enumerate() {
            for &place in places {
                let sequence = &mut self.store[place];
                sequence.flush();
                let (chains, contents) = sequence.parts();
                keys.extend(group.next_key(&mut chains[index], contents));
            }
            group.prefix.read_ahead(keys.drain(..));
        }
    }

    /// Makes the full blocks of a running sequence's computed tokens findable, and gives back those
    /// behind its window.
    fn settle_blocks(&mut self, place: Place) {
        let sequence = &mut self.store[place];
        sequence.flush();
        let computed = sequence.computed;
        let (chains, contents) = sequence.parts();
        let mut boundary = u32::MAX;
        for (group, chain) in self.groups.iter_mut().zip(chains) {
            if self.config.prefix_cache {
                group.index(chain, contents, computed);
            }
            group.pass(chain, computed);
            let size = group.geometry.block_tokens;
            boundary = boundary.min((computed / size + 1) * size);
        }
        sequence.boundary = boundary;
    }
}

impl Sequence {
    /// Takes one token if it does not end the sequence; settling a full block is the caller's.
    /// Otherwise does nothing. Whether it took it.
    #[inline]
    fn push_plainly(&mut self, token: TokenId) -> bool {
        let length = self.len();
        let plain = length + 1 < self.max_tokens
            && self.has_tail_room()
            && self.pipelining != Pipelining::Steered
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
