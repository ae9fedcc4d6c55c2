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

/// One plan in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) step: StepId,
    pub(crate) planned: Micros,
    pub(crate) runs: Vec<FlightRun>,
    pub(crate) load: StepLoad,
}
