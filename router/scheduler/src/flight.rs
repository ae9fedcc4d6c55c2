//! Plans whose outcome has not come: what each run was, so that its outcome can be read.

use crate::cost::StepLoad;
use crate::ids::{Micros, Slot, StepId};
use crate::sequence::SequenceKey;

/// One run of a plan in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRun {
    pub(crate) key: SequenceKey,
    /// Of the sequence that held the place: another one means that the run is nobody's now.
    pub(crate) generation: u32,
    pub(crate) slot: Slot,
    pub(crate) tokens: u32,
    pub(crate) reach: Reach,
}

/// How far a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It ends before the last known token: it yields nothing.
    Part,
    /// It runs the last known token: it yields tokens.
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
