//! The matchers of sequences.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::automaton::Automaton;
use super::budget;
use super::llguidance_grammar::{LlguidanceGrammar, LlguidanceState};
use super::next_mask::{MaskSource, NextMask};

pub(super) enum Backend {
    Automaton(Automaton),
    Llguidance(Box<LlguidanceGrammar>),
}

/// A grammar, shared by all its sequences.
pub(super) struct SharedGrammar {
    pub(super) backend: Backend,
    /// Whether its last masks were slow.
    slow: AtomicBool,
}

impl SharedGrammar {
    pub(super) fn new(backend: Backend) -> Arc<Self> {
        let slow = AtomicBool::new(false);
        Arc::new(Self { backend, slow })
    }
}

/// The matcher of one sequence. Its state is a function of the tokens that the sequence emitted.
pub(super) struct SequenceMatcher {
    grammar: Arc<SharedGrammar>,
    inner: Mutex<MatcherState>,
    /// The mask of the next token.
    pub(super) next_mask: NextMask,
}

struct MatcherState {
    ends: Vec<u32>,
    /// Tokens that the sequence may still generate.
    left: i64,
    position: Position,
    /// Emitted tokens that `position` does not include yet. They are applied at the next access to
    /// the state, because that may be slow.
    emitted: Vec<i64>,
}

pub(super) enum Position {
    /// The state of a DFA; None after an end token, or after a token that no mask allowed.
    Automaton(Option<usize>),
    Llguidance(Box<LlguidanceState>),
}

impl SequenceMatcher {
    pub(super) fn new(
        grammar: Arc<SharedGrammar>,
        ends: Vec<u32>,
        left: i64,
        position: Position,
    ) -> Self {
        Self {
            grammar,
            inner: Mutex::new(MatcherState {
                ends,
                left,
                position,
                emitted: Vec::new(),
            }),
            next_mask: NextMask::default(),
        }
    }

    /// Returns whether the text may end here; false once it has ended.
    pub(super) fn is_accepting(&self) -> bool {
        match (&self.grammar.backend, &mut self.lock().position) {
            (Backend::Automaton(automaton), Position::Automaton(Some(state))) => {
                automaton.is_accepting(*state)
            }
            (Backend::Llguidance(_), Position::Llguidance(state)) => state.is_accepting(),
            _ => false,
        }
    }

    /// Returns whether the text is over.
    pub(super) fn ended(&self) -> bool {
        match &self.lock().position {
            Position::Automaton(state) => state.is_none(),
            Position::Llguidance(state) => state.ended(),
        }
    }

    /// Returns a copy for another sequence.
    pub(super) fn copy(&self) -> Self {
        let inner = self.lock();
        let position = match &inner.position {
            Position::Automaton(state) => Position::Automaton(*state),
            Position::Llguidance(state) => Position::Llguidance(Box::new(state.copy())),
        };
        Self::new(
            self.grammar.clone(),
            inner.ends.clone(),
            inner.left,
            position,
        )
    }

    /// Records an emitted token.
    pub(super) fn take(&self, token: i64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.emitted.push(token);
        self.next_mask.invalidate();
    }

    /// Applies the pending tokens and returns the state.
    fn lock(&self) -> MutexGuard<'_, MatcherState> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for token in std::mem::take(&mut inner.emitted) {
            self.follow(&mut inner, token);
        }
        inner
    }

    fn follow(&self, inner: &mut MatcherState, token: i64) {
        inner.left -= 1;
        let left = inner.left;
        let token = u32::try_from(token)
            .ok()
            .filter(|token| !inner.ends.contains(token));
        match (&self.grammar.backend, &mut inner.position) {
            (Backend::Automaton(automaton), Position::Automaton(state)) => {
                *state = state
                    .zip(token)
                    .and_then(|(state, token)| automaton.step(state, token));
            }
            (Backend::Llguidance(grammar), Position::Llguidance(state)) => match token {
                Some(token) => grammar.advance(state, token, left),
                None => state.end(),
            },
            _ => {}
        }
    }
}

impl MaskSource for SequenceMatcher {
    fn fill(&self, row: &mut [u32]) -> Result<bool, String> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let (whole, closing) = match (&self.grammar.backend, &mut inner.position) {
            (Backend::Automaton(automaton), Position::Automaton(Some(state))) => {
                let closing = automaton.fill(*state, inner.left, row);
                (automaton.is_accepting(*state), closing)
            }
            (Backend::Llguidance(grammar), Position::Llguidance(state)) => {
                let filled = grammar.fill(state, inner.left, row);
                filled.inspect_err(|_| row.fill(u32::MAX))?
            }
            _ => {
                row.fill(0);
                (true, false)
            }
        };
        if whole {
            budget::set(row, &inner.ends);
        }
        Ok(closing)
    }

    fn slow(&self) -> &AtomicBool {
        &self.grammar.slow
    }
}
