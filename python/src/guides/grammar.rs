//! Sequences that follow a grammar of llguidance.
//!
//! The matcher computes masks lazily, with fuel instead of a clock as its bound, so that every rank
//! of a group comes to the same mask.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::api::StopReason;

use super::automaton::write;
use super::budget::{Budget, Growth, Plan};
use super::closing::{self, MOST_BYTES, Quotes, Trial};

use super::nearest::Reach;
use super::vocabulary::{Vocabulary, line};

const LATE: &str = "the document can no longer be completed within its tokens";

/// A grammar.
pub(super) struct Grammar {
    vocabulary: Arc<Vocabulary>,
    growth: Option<Growth>,
    /// Before the first token; the lock is held to copy it.
    first: Mutex<Place>,
    pub(super) shortest: usize,
}

impl Grammar {
    /// Checks a grammar by taking its first steps; `growth` if documents are to be completed.
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        text: &str,
        growth: Option<Growth>,
    ) -> Result<Self, String> {
        let mut parser = vocabulary
            .parser(text)
            .map_err(|error| unfollowed(&error))?;
        guarded(|| parser.compute_mask().map_err(line)).map_err(|error| unfollowed(&error))?;
        let (mut budget, mut shortest) = (None, 0);
        if growth.is_some() {
            let parser = &parser.parser;
            let plan = guarded(|| Ok(Plan::searched(parser, Quotes::Outside, &vocabulary)))?;
            let plan = plan.ok_or_else(|| {
                format!(
                    "no way was found to complete a text of this guide within {MOST_BYTES} bytes: \
                     make what must come shorter; a schema can also do without (`complete` or \
                     `guided_complete`: false)"
                )
            })?;
            shortest = plan.tokens.len();
            budget = Some(Budget::new(plan));
        }
        Ok(Self {
            shortest,
            first: Mutex::new(Place {
                parser,
                state: State::Open,
                budget,
            }),
            vocabulary,
            growth,
        })
    }

    /// A place before the first of `most` tokens, behind a text that has begun.
    pub(super) fn start(&self, begun: &[u8], most: i64) -> Place {
        let mut place = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .copy();
        match self.vocabulary.segmented(begun) {
            Some(tokens) => {
                for token in tokens {
                    self.advance(&mut place, token, most);
                }
            }
            None => place.end(),
        }
        place
    }

    /// Tokens that complete a text which has begun so, 0 if it is not to be completed; None if none
    /// does, as far as the search for a plan finds.
    pub(super) fn needed(&self, begun: &[u8]) -> Option<usize> {
        self.vocabulary.segmented(begun)?;
        if self.growth.is_none() {
            return Some(0);
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = guarded(|| {
            let mut trial = Trial::of(&first.parser.parser, self.vocabulary.trie());
            let place = Quotes::Outside.after(begun);
            let found = trial.take(begun).then(|| trial.completion(place)).flatten();
            let plan = found.and_then(|found| Plan::new(found, &self.vocabulary));
            Ok(plan.map(|plan| plan.tokens.len()))
        });
        needed.unwrap_or(None)
    }

    /// Takes a token that was emitted, after which `left` may be.
    pub(super) fn advance(&self, place: &mut Place, token: u32, left: i64) {
        if place.state != State::Open {
            return;
        }
        let taken = guarded(|| {
            let parser = &mut place.parser;
            let back = parser.consume_token(token).map_err(line)?;
            parser.check_stop().map_err(line)?;
            Ok(back == 0)
        });
        if !taken.unwrap_or(false) {
            place.state = State::Ended;
            return;
        }
        if let (Some(budget), Some(growth)) = (&mut place.budget, self.growth) {
            budget.advance(token, growth, &self.vocabulary);
            let parser = &place.parser.parser;
            let renewed = guarded(|| Ok(budget.renew(left, growth, parser, &self.vocabulary)));
            if !renewed.unwrap_or(false) {
                place.state = State::Failed(LATE.to_owned());
            }
        }
    }

    /// Writes the mask of the next of `left` tokens, end tokens apart. Returns whether the text may
    /// end here, and whether nothing may be opened any more. The error says why it cannot go on.
    pub(super) fn fill(
        &self,
        place: &mut Place,
        left: i64,
        row: &mut [u32],
    ) -> Result<(bool, bool), String> {
        match &place.state {
            State::Ended => {
                row.fill(0);
                return Ok((true, false));
            }
            State::Failed(error) => return Err(error.clone()),
            State::Open => {}
        }
        let filled = guarded(|| {
            let parser = &mut place.parser;
            if parser.stop_reason() == StopReason::NotStopped {
                // An error where no token may follow is found below, by what stopped it.
                match parser.compute_mask() {
                    Ok(mask) => write(mask.as_slice(), row),
                    Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => row.fill(0),
                    Err(error) => return Err(line(error)),
                }
            } else {
                row.fill(0);
            }
            unset(row, self.vocabulary.size());
            let mut closing = false;
            if let (Some(budget), Some(growth)) = (&place.budget, self.growth) {
                let left = usize::try_from(left).unwrap_or(0);
                if left > 0 {
                    closing = budget.narrow(left, growth, &parser.parser, &self.vocabulary, row);
                }
            }
            let whole = parser.is_accepting();
            if !whole && row.iter().all(|&word| word == 0) {
                return Err("no token may follow".to_owned());
            }
            Ok((whole, closing))
        });
        filled.map_err(|error| {
            let text = format!("the guide cannot go on: {error}");
            place.state = State::Failed(text.clone());
            text
        })
    }
}

/// How far the ends of a grammar's lexemes are; those of more than `most` states are not searched.
pub(super) fn reach(vocabulary: &Vocabulary, text: &str, most: usize) -> Result<Reach, String> {
    guarded(|| {
        let parser = vocabulary.parser(text)?;
        Ok(closing::reach(&parser.parser, vocabulary.trie(), most))
    })
}

/// Clears what lies behind the vocabulary: the grammars' own end token.
fn unset(row: &mut [u32], size: usize) {
    if let (Some(word), true) = (row.get_mut(size / 32), !size.is_multiple_of(32)) {
        *word &= (1 << (size % 32)) - 1;
    }
}

fn unfollowed(error: &str) -> String {
    format!("the guide cannot be followed: {error}")
}

/// What llguidance does, with its panics as errors.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("it cannot be parsed".to_owned()))
}

#[derive(Clone, PartialEq, Eq)]
enum State {
    Open,
    /// By a token that ends the text, or that no mask allowed.
    Ended,
    /// It cannot go on.
    Failed(String),
}

/// Where a sequence is in a grammar: a function of what it emitted.
pub(super) struct Place {
    parser: TokenParser,
    state: State,
    budget: Option<Budget>,
}

impl Place {
    /// The same place, for another sequence: the two share nothing that changes.
    pub(super) fn copy(&self) -> Self {
        Self {
            // One that goes nowhere any more may have a lexer that a panic has left behind.
            parser: match self.state {
                State::Open => self.parser.deep_clone(),
                _ => self.parser.clone(),
            },
            state: self.state.clone(),
            budget: self.budget.clone(),
        }
    }

    /// Whether the text may end here; not once it has.
    pub(super) fn whole(&mut self) -> bool {
        let parser = &mut self.parser;
        self.state == State::Open && guarded(|| Ok(parser.is_accepting())).unwrap_or(false)
    }

    /// Whether nothing of the text can follow.
    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Says that an end token was emitted.
    pub(super) fn end(&mut self) {
        if self.state == State::Open {
            self.state = State::Ended;
        }
    }
}
