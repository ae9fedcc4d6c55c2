//! Plans whose outcome has not arrived, with the runs that the outcome refers to.

use crate::cost::StepLoad;
use crate::ids::{Micros, Slot, StepId};
use crate::sequence::SequenceKey;

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
