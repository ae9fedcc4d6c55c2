//! Sequences that follow a grammar of llguidance, and how documents of a JSON schema are completed
//! within their tokens.
//!
//! The matcher computes masks lazily, with fuel instead of a clock as its bound, so that every rank
//! of a group comes to the same mask.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::earley::Parser;

use super::automaton::write;
use super::closing::{MOST_BYTES, Quotes, Trial};
use super::vocabulary::{MOST_STRUCTURE, Vocabulary};

/// Tokens that are tried one by one: a choice of names, say.
const FEW: usize = 24;
/// Tokens of a few characters that begin or end something, tried where there is no room for any.
const MOST_TRIED: usize = 16;
/// So many such characters are within the bound where none are tried.
const MOST_TRIED_STRUCTURE: usize = 2;
/// Bytes at the beginning of a plan without which it is tried.
const SKIPPED: usize = 3;
const LATE: &str = "the document can no longer be completed within its tokens";

/// By how many tokens one token may lengthen what the document still needs.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    /// For every character in it that begins or ends something.
    pub(super) each: usize,
    /// For whatever else it holds.
    pub(super) once: usize,
    /// Where few tokens are possible, and one of them begins something large.
    pub(super) jump: usize,
    /// How many those few may be, if more than are tried one by one.
    pub(super) choices: usize,
}

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
        let mut budget = None;
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
            budget = Some(Budget {
                place: Quotes::Outside,
                needed: plan.tokens.len(),
                plan,
                sure: true,
                likely: true,
            });
        }
        Ok(Self {
            shortest: budget.as_ref().map_or(0, |budget| budget.needed),
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

/// The first line of what llguidance says, and the one that names the cause, if another does.
pub(super) fn line(error: impl Display) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("no reason given");
    let cause = lines.find(|line| line.starts_with("error:")).unwrap_or("");
    let whole = format!("{first} {cause}");
    whole.trim_end().chars().take(300).collect()
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

/// A way to the end of a document: a text, and the fewest tokens that spell it.
#[derive(Clone)]
struct Plan {
    text: Vec<u8>,
    tokens: Vec<u32>,
}

impl Plan {
    fn new(text: Vec<u8>, vocabulary: &Vocabulary) -> Option<Self> {
        let tokens = vocabulary.segmented(&text)?;
        Some(Self { text, tokens })
    }

    /// From where the parser stands; `place` is where its text ends.
    fn searched(parser: &Parser, place: Quotes, vocabulary: &Vocabulary) -> Option<Self> {
        Self::new(
            Trial::of(parser, vocabulary.trie()).completion(place)?,
            vocabulary,
        )
    }
}

/// What keeps a document within its tokens.
///
/// `needed` bounds the tokens that complete it from here. Where the tokens left come near, the plan
/// that was known is tried, or a new one searched, which gives a new bound, and only tokens are
/// allowed that cannot lengthen it too much: those with few characters that open something, and of
/// the others, where they are few, those after which a completion is found that fits. At last the
/// plan itself is all that is allowed.
#[derive(Clone)]
struct Budget {
    place: Quotes,
    needed: usize,
    plan: Plan,
    /// Whether the plan completes the document from here: it was found here, tried, or followed.
    sure: bool,
    /// Whether it does if the characters of strings are free, as a rule.
    likely: bool,
}

impl Budget {
    /// Takes an emitted token.
    fn advance(&mut self, token: u32, growth: Growth, vocabulary: &Vocabulary) {
        let text = vocabulary.text(token);
        let before = std::mem::replace(&mut self.place, Quotes::Outside);
        self.place = before.after(text);
        if self.plan.tokens.first() == Some(&token) {
            self.plan.tokens.remove(0);
            self.plan.text.drain(..text.len());
            self.needed -= 1;
            return;
        }
        if self.sure
            && let Some(plan) = self.followed(text, vocabulary)
        {
            self.needed = plan.tokens.len();
            self.plan = plan;
            return;
        }
        let structure = before.structure(text);
        let inside = before == Quotes::Inside && self.place == Quotes::Inside;
        let named = usize::from(before == Quotes::Inside && self.names());
        self.needed += (structure + named) * growth.each + growth.once;
        self.likely &= structure == 0 && inside;
        self.sure = false;
    }

    /// Whether the string that the document is in is a member's name, as far as the plan knows.
    fn names(&self) -> bool {
        let mut place = Quotes::Inside;
        let mut rest = self.plan.text.iter();
        let ended = rest.any(|&byte| {
            place = place.after(&[byte]);
            place == Quotes::Outside
        });
        ended && rest.find(|&&byte| byte != b' ') == Some(&b':')
    }

    /// What is left of the plan after a text that it begins with.
    fn followed(&self, text: &[u8], vocabulary: &Vocabulary) -> Option<Plan> {
        Plan::new(self.plan.text.strip_prefix(text)?.to_vec(), vocabulary)
    }

    /// Finds out how far the end is where that matters; whether it is near enough.
    fn renew(
        &mut self,
        left: i64,
        growth: Growth,
        parser: &Parser,
        vocabulary: &Vocabulary,
    ) -> bool {
        let Ok(left @ 1..) = usize::try_from(left) else {
            return true;
        };
        let near = (1 + MOST_STRUCTURE) * growth.each + growth.jump;
        let bound = spare(left, self.needed, growth);
        if self.sure || bound >= signed(near) {
            return true;
        }
        // A bound that is as good as what it might become needs no better one.
        let best = spare(left, self.plan.tokens.len(), growth);
        if self.likely && bound >= 0 && class(bound, growth) == class(best, growth) {
            return true;
        }
        let found = self.plan_after(parser, self.place, vocabulary);
        let Some(plan) = found else { return false };
        self.needed = plan.tokens.len();
        self.plan = plan;
        (self.sure, self.likely) = (true, true);
        self.needed <= left
    }

    /// A plan from where the parser stands, a token or more behind where this one's does.
    fn plan_after(&self, parser: &Parser, place: Quotes, vocabulary: &Vocabulary) -> Option<Plan> {
        // The end is mostly the same, but for a space or a comma.
        for skipped in 0..self.plan.text.len().min(SKIPPED) {
            let mut trial = Trial::of(parser, vocabulary.trie());
            let rest = &self.plan.text[skipped..];
            if trial.take(rest) && trial.whole() {
                return Plan::new(rest.to_vec(), vocabulary);
            }
        }
        Plan::searched(parser, place, vocabulary)
    }

    /// Takes from `row` what might not be completed in `left` tokens; whether nothing may be
    /// opened any more.
    fn narrow(
        &self,
        left: usize,
        growth: Growth,
        parser: &Parser,
        vocabulary: &Vocabulary,
        row: &mut [u32],
    ) -> bool {
        let spare = spare(left, self.needed, growth);
        if spare >= signed((1 + vocabulary.most_structure) * growth.each + growth.jump) {
            return false;
        }
        // Of a few, each may decide between names, or between alternatives.
        let within = |token: u32| {
            let structure = 1 + self.place.structure(vocabulary.text(token));
            spare >= signed(structure * growth.each + growth.jump)
        };
        let count: u32 = row.iter().map(|word| word.count_ones()).sum();
        if count as usize <= FEW {
            let allowed = tokens(row);
            let fits =
                |token: &u32| within(*token) || self.fits(*token, left - 1, parser, vocabulary);
            let mut kept: Vec<u32> = allowed.iter().copied().filter(fits).collect();
            if kept.is_empty() {
                kept.extend(self.next(parser, vocabulary));
            }
            row.fill(0);
            set(row, &kept);
            return kept.len() < allowed.len();
        }
        let mut extra = 0;
        if count as usize <= growth.choices {
            extra = growth.jump.saturating_sub(growth.once);
        } else if self.place == Quotes::Inside && self.names() {
            extra = growth.each; // of the member
        }
        let spare = spare - signed(extra);
        let most = class(spare, growth);
        let allowed = row.to_vec();
        self.restrict(most, vocabulary, row);
        let barred = |token: &u32, row: &[u32]| has(&allowed, *token) && !has(row, *token);
        let mut closing = most.is_none();
        if most < Some(MOST_TRIED_STRUCTURE) {
            let edges = vocabulary.edges.iter().filter(|token| barred(token, row));
            let edges: Vec<u32> = edges.copied().take(MOST_TRIED).collect();
            for token in edges {
                if self.fits(token, left - 1, parser, vocabulary) {
                    set(row, &[token]);
                } else {
                    closing |= most < Some(1);
                }
            }
        }
        let planned = self.plan.tokens.first().copied();
        if self.sure || row.iter().all(|&word| word == 0) {
            set(row, self.next(parser, vocabulary).as_slice());
        } else if let Some(token) = planned.filter(|token| barred(token, row))
            && self.fits(token, left - 1, parser, vocabulary)
        {
            // A string that goes on may still end as the plan did: mostly what is meant.
            set(row, &[token]);
        }
        closing
    }

    /// Leaves the tokens with no more than `most` characters in `row` that begin or end something.
    fn restrict(&self, most: Option<usize>, vocabulary: &Vocabulary, row: &mut [u32]) {
        let Some(most) = most else {
            row.fill(0);
            return;
        };
        let inside = self.place == Quotes::Inside;
        let masks = vocabulary.upto[most].iter().zip(&vocabulary.unquoted);
        for (word, (upto, unquoted)) in row.iter_mut().zip(masks) {
            *word &= if inside { upto | unquoted } else { *upto };
        }
    }

    /// The first token of a plan.
    fn next(&self, parser: &Parser, vocabulary: &Vocabulary) -> Option<u32> {
        if self.sure {
            return self.plan.tokens.first().copied();
        }
        let plan = self.plan_after(parser, self.place, vocabulary);
        plan.and_then(|plan| plan.tokens.first().copied())
    }

    /// Whether `left` tokens complete the document after `token`.
    fn fits(&self, token: u32, left: usize, parser: &Parser, vocabulary: &Vocabulary) -> bool {
        if self.sure && self.plan.tokens.first() == Some(&token) {
            return self.plan.tokens.len() <= left + 1;
        }
        let text = vocabulary.text(token);
        let followed = self.followed(text, vocabulary).filter(|_| self.sure);
        let plan = followed.or_else(|| {
            let mut trial = Trial::of(parser, vocabulary.trie());
            let taken = trial.take(text);
            let place = self.place.after(text);
            taken
                .then(|| self.plan_after(trial.parser(), place, vocabulary))
                .flatten()
        });
        plan.is_some_and(|plan| plan.tokens.len() <= left)
    }
}

/// Characters that open or end something, of a token that may add `spare` to what is needed; None
/// if it may be none at all.
fn class(spare: i64, growth: Growth) -> Option<usize> {
    let spare = usize::try_from(spare).ok()?;
    Some(
        spare
            .checked_div(growth.each)
            .unwrap_or(MOST_STRUCTURE)
            .min(MOST_STRUCTURE),
    )
}

/// Tokens that the next one may add to what is needed, beside what any may add.
fn spare(left: usize, needed: usize, growth: Growth) -> i64 {
    signed(left) - 1 - signed(needed) - signed(growth.once)
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX / 4)
}

/// The tokens that a row allows.
fn tokens(row: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    for (base, &word) in (0..).step_by(32).zip(row) {
        let mut word = word;
        while word != 0 {
            found.push(base + word.trailing_zeros());
            word &= word - 1;
        }
    }
    found
}

/// Whether a row allows a token.
fn has(row: &[u32], token: u32) -> bool {
    row.get(token as usize / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Allows `tokens` in `row`, whatever else it allows.
pub(super) fn set(row: &mut [u32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(word) = row.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}
