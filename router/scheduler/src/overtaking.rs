//! Much shorter prompts go before a long one.
//!
//! A prompt that a step cannot end would take all of the step, and those behind it would wait until
//! all of it is read, be they of a few tokens. So much shorter ones may take a share of each step
//! first, whether they run already or wait for a slot. What they leave is the long one's: it loses no
//! more than that share, and nothing where nobody overtakes.

use crate::draft::{Draft, Overtaken};
use crate::scheduler::Scheduler;
use crate::sequence::Place;

/// Those who overtake may take one in so many tokens of a step.
const SHARE: u32 = 4;
/// So many times shorter than what is left of the long prompt they must be.
const SHORTER: u32 = 8;

impl Scheduler {
    /// Whether a reader leaves its turn to others until `read_overtaken`. Where blocks are scarce it
    /// does not: it takes them from its juniors, which those who have their runs must not lose.
    pub(crate) fn is_overtaken(&self, place: Place, draft: &mut Draft) -> bool {
        let sequence = &self.store[place];
        let (left, budget) = (sequence.len() - sequence.planned, draft.budget);
        let long = draft.overtaken.is_none() && left > budget;
        if !long || self.possible_room(place) < sequence.planned + budget {
            return false;
        }
        draft.budget = budget / SHARE;
        draft.overtaken = Some(Overtaken {
            place,
            most: left / SHORTER,
            kept: budget - draft.budget,
        });
        true
    }

    /// The turn of the one that was overtaken, after all others.
    pub(crate) fn read_overtaken(&mut self, draft: &mut Draft) {
        if let Some(overtaken) = draft.overtaken.take() {
            draft.budget += overtaken.kept;
            let nobody_after = self.running.len();
            self.read(overtaken.place, nobody_after, draft);
        }
    }
}
