//! Plans whose outcome has not arrived, with the runs that the outcome refers to.

use crate::cost::StepLoad;
use crate::ids::{Epoch, Micros, SequenceKey, Slot, StepId};
use std::collections::VecDeque;

/// One run of a plan in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRun {
    pub(crate) key: SequenceKey,
    /// Generation of the store entry; a different one means that the sequence has ended.
    pub(crate) generation: u32,
    pub(crate) slot: Slot,
    pub(crate) tokens: u32,
    pub(crate) reach: Reach,
}

/// How far a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It ends before the last known token and yields nothing.
    Part,
    /// It runs the last known token and yields tokens.
    Yields,
}

/// Known tokens of one sequence that run in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) tokens: u32,
    pub(crate) reach: Reach,
}

impl Chunk {
    /// Returns the part of a chunk from `position` that has room, in a sequence of `length` known
    /// tokens. It may be empty.
    pub(crate) fn within(self, room: u32, position: u32, length: u32) -> Self {
        let tokens = self.tokens.min(room.saturating_sub(position));
        Self {
            tokens: tokens.min(length - position - 1),
            reach: Reach::Part,
        }
    }
}

/// One plan in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) step: StepId,
    pub(crate) planned: Micros,
    pub(crate) runs: Vec<FlightRun>,
    pub(crate) load: StepLoad,
}

/// Owns the plans in flight and the numbers of the next one.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// Oldest first.
    plans: VecDeque<Flight>,
    epoch: Epoch,
    /// Number of the next plan in its epoch.
    next: StepId,
    /// An emptied list of runs, kept for its memory.
    spare_runs: Vec<FlightRun>,
}

impl Flights {
    pub(crate) fn len(&self) -> usize {
        self.plans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the number of the next plan.
    pub(crate) fn next(&self) -> StepId {
        self.next
    }

    /// Returns the work of each plan, the oldest first.
    pub(crate) fn loads(&self) -> impl Iterator<Item = StepLoad> + '_ {
        self.plans.iter().map(|flight| flight.load)
    }

    /// Returns an empty list of runs.
    pub(crate) fn take_runs(&mut self) -> Vec<FlightRun> {
        std::mem::take(&mut self.spare_runs)
    }

    /// Keeps the memory of a list of runs.
    pub(crate) fn recycle(&mut self, mut runs: Vec<FlightRun>) {
        runs.clear();
        self.spare_runs = runs;
    }

    /// Adds the next plan.
    pub(crate) fn push(&mut self, planned: Micros, runs: Vec<FlightRun>, load: StepLoad) {
        self.plans.push_back(Flight {
            step: self.next,
            planned,
            runs,
            load,
        });
        self.next = StepId(self.next.0 + 1);
    }

    /// Removes the oldest plan, if it has these numbers.
    pub(crate) fn pop(&mut self, epoch: Epoch, step: StepId) -> Option<Flight> {
        let next = self.plans.front().map(|flight| flight.step);
        match epoch == self.epoch && next == Some(step) {
            true => self.plans.pop_front(),
            false => None,
        }
    }

    /// Begins a new epoch without plans in flight.
    pub(crate) fn begin_epoch(&mut self) -> Epoch {
        self.plans.clear();
        self.next = StepId(0);
        self.epoch = Epoch(self.epoch.0 + 1);
        self.epoch
    }
}
