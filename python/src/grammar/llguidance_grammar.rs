//! Matching of llguidance grammars.
//!
//! llguidance computes masks lazily, bounded by fuel instead of a clock, so every rank of a group
//! computes the same mask.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::api::StopReason;

use super::automaton::write;
use super::budget::{Budget, Growth, Plan};
use super::completion::{self, MOST_BYTES, QuoteState, TrialParser};

use super::lexeme_search::EndDistances;
use super::vocabulary::{Vocabulary, first_error_line};

const LATE: &str = "the document can no longer be completed within its tokens";

/// A compiled llguidance grammar.
pub(super) struct LlguidanceGrammar {
    vocabulary: Arc<Vocabulary>,
    growth: Option<Growth>,
    /// The state before the first token; locked while it is cloned.
    first: Mutex<LlguidanceState>,
    pub(super) shortest: usize,
}

impl LlguidanceGrammar {
    /// Compiles a grammar and computes its first mask to check it; `growth` if documents are to be
    /// completed.
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        text: &str,
        growth: Option<Growth>,
    ) -> Result<Self, String> {
        let mut parser = vocabulary
            .parser(text)
            .map_err(|error| unfollowed(&error))?;
        guarded(|| parser.compute_mask().map_err(first_error_line))
            .map_err(|error| unfollowed(&error))?;
        let (mut budget, mut shortest) = (None, 0);
        if growth.is_some() {
            let parser = &parser.parser;
            let plan = guarded(|| Ok(Plan::search(parser, QuoteState::Outside, &vocabulary)))?;
            let plan = plan.ok_or_else(|| {
                format!(
                    "no way was found to complete a text of this grammar within {MOST_BYTES} bytes: \
                     require less text, or for a schema disable completion (`complete` or \
                     `guided_complete`: false)"
                )
            })?;
            shortest = plan.tokens.len();
            budget = Some(Budget::new(plan));
        }
        Ok(Self {
            shortest,
            first: Mutex::new(LlguidanceState {
                parser,
                status: Status::Open,
                budget,
            }),
            vocabulary,
            growth,
        })
    }

    /// Returns the state after `prefix`, before the first of `most` tokens.
    pub(super) fn start(&self, prefix: &[u8], most: i64) -> LlguidanceState {
        let mut state = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .copy();
        match self.vocabulary.shortest_tokenization(prefix) {
            Some(tokens) => {
                for token in tokens {
                    self.advance(&mut state, token, most);
                }
            }
            None => state.end(),
        }
        state
    }

    /// Returns the tokens that complete a text that begins with `prefix`, 0 if texts are not
    /// completed; None if no completion is found.
    pub(super) fn needed(&self, prefix: &[u8]) -> Option<usize> {
        self.vocabulary.shortest_tokenization(prefix)?;
        if self.growth.is_none() {
            return Some(0);
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = guarded(|| {
            let mut trial = TrialParser::new(&first.parser.parser, self.vocabulary.trie());
            let quotes = QuoteState::Outside.after(prefix);
            let found = trial
                .take(prefix)
                .then(|| trial.completion(quotes))
                .flatten();
            let plan = found.and_then(|found| Plan::new(found, &self.vocabulary));
            Ok(plan.map(|plan| plan.tokens.len()))
        });
        needed.unwrap_or(None)
    }

    /// Advances by an emitted token, after which `left` tokens are left.
    pub(super) fn advance(&self, state: &mut LlguidanceState, token: u32, left: i64) {
        if state.status != Status::Open {
            return;
        }
        let taken = guarded(|| {
            let parser = &mut state.parser;
            let back = parser.consume_token(token).map_err(first_error_line)?;
            parser.check_stop().map_err(first_error_line)?;
            Ok(back == 0)
        });
        if !taken.unwrap_or(false) {
            state.status = Status::Ended;
            return;
        }
        if let (Some(budget), Some(growth)) = (&mut state.budget, self.growth) {
            budget.advance(token, growth, &self.vocabulary);
            let parser = &state.parser.parser;
            let renewed = guarded(|| Ok(budget.renew(left, growth, parser, &self.vocabulary)));
            if !renewed.unwrap_or(false) {
                state.status = Status::Failed(LATE.to_owned());
            }
        }
    }

    /// Writes the mask of the next token, without end tokens, if `left` tokens are left. Returns
    /// whether the text may end here, and whether nothing may be opened any more. Fails with the
    /// reason if the grammar cannot continue.
    pub(super) fn fill(
        &self,
        state: &mut LlguidanceState,
        left: i64,
        row: &mut [u32],
    ) -> Result<(bool, bool), String> {
        match &state.status {
            Status::Ended => {
                row.fill(0);
                return Ok((true, false));
            }
            Status::Failed(error) => return Err(error.clone()),
            Status::Open => {}
        }
        let filled = guarded(|| {
            let parser = &mut state.parser;
            if parser.stop_reason() == StopReason::NotStopped {
                // If no token may follow, `compute_mask` fails; that case is handled below.
                match parser.compute_mask() {
                    Ok(mask) => write(mask.as_slice(), row),
                    Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => row.fill(0),
                    Err(error) => return Err(first_error_line(error)),
                }
            } else {
                row.fill(0);
            }
            unset(row, self.vocabulary.size());
            let mut closing = false;
            if let (Some(budget), Some(growth)) = (&state.budget, self.growth) {
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
            let text = format!("the grammar cannot continue: {error}");
            state.status = Status::Failed(text.clone());
            text
        })
    }
}

/// Returns the distances to the ends of a grammar's lexemes; lexemes with more than `most` states
/// are not searched.
pub(super) fn end_distances(
    vocabulary: &Vocabulary,
    text: &str,
    most: usize,
) -> Result<EndDistances, String> {
    guarded(|| {
        let parser = vocabulary.parser(text)?;
        Ok(completion::end_distances(
            &parser.parser,
            vocabulary.trie(),
            most,
        ))
    })
}

/// Clears the bits behind the vocabulary: the grammars' own end token.
fn unset(row: &mut [u32], size: usize) {
    if let (Some(word), true) = (row.get_mut(size / 32), !size.is_multiple_of(32)) {
        *word &= (1 << (size % 32)) - 1;
    }
}

fn unfollowed(error: &str) -> String {
    format!("the grammar cannot be followed: {error}")
}

/// Calls llguidance and converts its panics to errors.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("it cannot be parsed".to_owned()))
}

#[derive(Clone, PartialEq, Eq)]
enum Status {
    Open,
    /// Ended by an end token, or by a token that no mask allowed.
    Ended,
    /// The grammar cannot continue, for this reason.
    Failed(String),
}

/// The state of one sequence in a grammar: a function of the tokens that it emitted.
pub(super) struct LlguidanceState {
    parser: TokenParser,
    status: Status,
    budget: Option<Budget>,
}

impl LlguidanceState {
    /// Returns an independent copy for another sequence.
    pub(super) fn copy(&self) -> Self {
        Self {
            // A finished state may have a lexer that a panic left inconsistent; it is never used
            // again.
            parser: match self.status {
                Status::Open => self.parser.deep_clone(),
                _ => self.parser.clone(),
            },
            status: self.status.clone(),
            budget: self.budget.clone(),
        }
    }

    /// Returns whether the text may end here; false once it has ended.
    pub(super) fn is_accepting(&mut self) -> bool {
        let parser = &mut self.parser;
        self.status == Status::Open && guarded(|| Ok(parser.is_accepting())).unwrap_or(false)
    }

    /// Returns whether the text is over.
    pub(super) fn ended(&self) -> bool {
        self.status == Status::Ended
    }

    /// Records an end token.
    pub(super) fn end(&mut self) {
        if self.status == Status::Open {
            self.status = Status::Ended;
        }
    }
}
