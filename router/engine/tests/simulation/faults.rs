//! What goes wrong in an episode, and when.

use std::collections::VecDeque;

use crate::random::Random;

/// A fault of the workers or the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A worker dies instead of answering a step.
    DiesBeforeReply,
    /// A worker dies when it has answered a step.
    DiesAfterReply,
    /// As the first, because a person or the system killed it.
    KilledBeforeReply,
    /// A person or the system kills a worker at any time, also while nothing runs.
    KilledAnytime,
    /// A worker never answers a step.
    Hangs,
    /// A worker answers a step late, but within the deadline.
    Stalls,
    /// A worker answers a step after its deadline, and survives: the engine begins another epoch on it.
    Oversleeps,
    /// A worker repeats an answer of an earlier epoch, or of an earlier step.
    AnswersOldStep,
    /// A worker answers the same step twice.
    AnswersTwice,
    /// A worker answers with a token that is not in the vocabulary.
    AlienToken,
    /// A worker's answer has more slots than counts.
    Malformed,
    /// A step fails as a whole; the worker lives.
    StepFails,
    /// The scheduler panics when a request is added.
    Panic,
}

/// The number of different faults.
pub(crate) const KINDS: usize = 13;

const ALL: [Fault; KINDS] = [
    Fault::DiesBeforeReply,
    Fault::DiesAfterReply,
    Fault::KilledBeforeReply,
    Fault::KilledAnytime,
    Fault::Hangs,
    Fault::Stalls,
    Fault::Oversleeps,
    Fault::AnswersOldStep,
    Fault::AnswersTwice,
    Fault::AlienToken,
    Fault::Malformed,
    Fault::StepFails,
    Fault::Panic,
];

/// Faults that say nothing about the requests in flight.
const FROM_OUTSIDE: [Fault; 3] = [
    Fault::KilledBeforeReply,
    Fault::KilledAnytime,
    Fault::Stalls,
];

/// The number and the kinds of an episode's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// None: only clients do unusual things.
    Calm,
    /// Each fault waits until all requests have got past the last one. So nobody may be blamed.
    Patient,
    /// Faults follow one another quickly.
    Storm,
    /// One or two requests are poison; other faults come from outside.
    Poison,
}

impl Fault {
    /// Whether it ends the workers or their epoch.
    pub(crate) fn is_loss(self) -> bool {
        self != Self::Stalls
    }

    /// Whether a person or the system is its cause, as far as the engine knows.
    pub(crate) fn is_from_outside(self) -> bool {
        FROM_OUTSIDE.contains(&self)
    }
}

impl Weather {
    pub(crate) fn pick(random: &mut Random) -> Self {
        match random.within(0, 9) {
            0 => Self::Calm,
            1..=4 => Self::Patient,
            5..=7 => Self::Storm,
            _ => Self::Poison,
        }
    }

    /// Returns the faults in order, each with the answers of a worker until it comes.
    pub(crate) fn faults(self, random: &mut Random) -> VecDeque<(u32, Fault)> {
        let (most, gap) = match self {
            Self::Calm => (0, 0),
            Self::Patient => (4, 20),
            Self::Storm => (6, 8),
            Self::Poison => (1, 20),
        };
        let count = random.within(most.min(1), most);
        let fault = |random: &mut Random| match self {
            Self::Poison => random.pick(&FROM_OUTSIDE),
            _ => random.pick(&ALL),
        };
        (0..count)
            .map(|_| (random.within(0, gap), fault(random)))
            .collect()
    }
}
