//! Where sequences are in their guides.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ahead::{Ahead, Fill};
use super::automaton::Automaton;
use super::budget;
use super::grammar::{Grammar, Place};

pub(super) enum Kind {
    Automaton(Automaton),
    Grammar(Box<Grammar>),
}

/// A guide, of all who follow it.
pub(super) struct Shared {
    pub(super) kind: Kind,
    /// Whether its last masks took long.
    slow: AtomicBool,
}

impl Shared {
    pub(super) fn new(kind: Kind) -> Arc<Self> {
        let slow = AtomicBool::new(false);
        Arc::new(Self { kind, slow })
    }
}

/// Where one sequence is in its guide: a function of the tokens that it emitted.
pub(super) struct Sequence {
    guide: Arc<Shared>,
    followed: Mutex<Followed>,
    /// The mask of its next token.
    pub(super) ahead: Ahead,
}

struct Followed {
    ends: Vec<u32>,
    /// Tokens that the sequence may still generate.
    left: i64,
    at: At,
    /// Tokens that it has emitted since: whoever asks where it is takes them, since that may be slow.
    emitted: Vec<i64>,
}

pub(super) enum At {
    /// Of an automaton; None after an end token, or after a token that no mask allowed.
    State(Option<usize>),
    Place(Box<Place>),
}

impl Sequence {
    pub(super) fn new(guide: Arc<Shared>, ends: Vec<u32>, left: i64, at: At) -> Self {
        Self {
            guide,
            followed: Mutex::new(Followed {
                ends,
                left,
                at,
                emitted: Vec::new(),
            }),
            ahead: Ahead::default(),
        }
    }

    /// Whether the text may end here; not once it has.
    pub(super) fn whole(&self) -> bool {
        match (&self.guide.kind, &mut self.lock().at) {
            (Kind::Automaton(automaton), At::State(Some(state))) => automaton.whole(*state),
            (Kind::Grammar(_), At::Place(place)) => place.whole(),
            _ => false,
        }
    }

    /// Whether nothing of the text can follow.
    pub(super) fn ended(&self) -> bool {
        match &self.lock().at {
            At::State(state) => state.is_none(),
            At::Place(place) => place.ended(),
        }
    }

    /// Another sequence at the same place.
    pub(super) fn copy(&self) -> Self {
        let followed = self.lock();
        let at = match &followed.at {
            At::State(state) => At::State(*state),
            At::Place(place) => At::Place(Box::new(place.copy())),
        };
        Self::new(self.guide.clone(), followed.ends.clone(), followed.left, at)
    }

    /// Notes an emitted token.
    pub(super) fn take(&self, token: i64) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.emitted.push(token);
        self.ahead.pass();
    }

    /// Where it is now.
    fn lock(&self) -> MutexGuard<'_, Followed> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        for token in std::mem::take(&mut followed.emitted) {
            self.follow(&mut followed, token);
        }
        followed
    }

    fn follow(&self, followed: &mut Followed, token: i64) {
        followed.left -= 1;
        let left = followed.left;
        let token = u32::try_from(token)
            .ok()
            .filter(|token| !followed.ends.contains(token));
        match (&self.guide.kind, &mut followed.at) {
            (Kind::Automaton(automaton), At::State(state)) => {
                *state = state
                    .zip(token)
                    .and_then(|(state, token)| automaton.step(state, token));
            }
            (Kind::Grammar(grammar), At::Place(place)) => match token {
                Some(token) => grammar.advance(place, token, left),
                None => place.end(),
            },
            _ => {}
        }
    }
}

impl Fill for Sequence {
    fn fill(&self, row: &mut [u32]) -> Result<bool, String> {
        let mut followed = self.lock();
        let followed = &mut *followed;
        let (whole, closing) = match (&self.guide.kind, &mut followed.at) {
            (Kind::Automaton(automaton), At::State(Some(state))) => {
                let closing = automaton.fill(*state, followed.left, row);
                (automaton.whole(*state), closing)
            }
            (Kind::Grammar(grammar), At::Place(place)) => {
                let filled = grammar.fill(place, followed.left, row);
                filled.inspect_err(|_| row.fill(u32::MAX))?
            }
            _ => {
                row.fill(0);
                (true, false)
            }
        };
        if whole {
            budget::set(row, &followed.ends);
        }
        Ok(closing)
    }

    fn slow(&self) -> &AtomicBool {
        &self.guide.slow
    }
}
