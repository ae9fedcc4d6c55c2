//! What keeps a document of llguidance within its tokens.

use llguidance::earley::Parser;

use super::completion::{QuoteState, TrialParser};
use super::vocabulary::{MOST_STRUCTURE, Vocabulary};

/// Tokens that are tried one by one: a choice of names, say.
const FEW: usize = 24;
/// Tokens of a few characters that begin or end something, tried where there is no room for any.
const MOST_TRIED: usize = 16;
/// So many such characters are within the bound where none are tried.
const MOST_TRIED_STRUCTURE: usize = 2;
/// Bytes at the beginning of a plan without which it is tried.
const SKIPPED: usize = 3;

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

/// A way to the end of a document: a text, and the fewest tokens that spell it.
#[derive(Clone)]
pub(super) struct Plan {
    text: Vec<u8>,
    pub(super) tokens: Vec<u32>,
}

impl Plan {
    pub(super) fn new(text: Vec<u8>, vocabulary: &Vocabulary) -> Option<Self> {
        let tokens = vocabulary.shortest_tokenization(&text)?;
        Some(Self { text, tokens })
    }

    /// From where the parser stands; `place` is where its text ends.
    pub(super) fn search(
        parser: &Parser,
        place: QuoteState,
        vocabulary: &Vocabulary,
    ) -> Option<Self> {
        Self::new(
            TrialParser::new(parser, vocabulary.trie()).completion(place)?,
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
pub(super) struct Budget {
    place: QuoteState,
    needed: usize,
    plan: Plan,
    /// Whether the plan completes the document from here: it was found here, tried, or followed.
    sure: bool,
    /// Whether it does if the characters of strings are free, as a rule.
    likely: bool,
}

impl Budget {
    /// At the beginning of a document, of which a plan was found.
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            place: QuoteState::Outside,
            needed: plan.tokens.len(),
            plan,
            sure: true,
            likely: true,
        }
    }

    /// Takes an emitted token.
    pub(super) fn advance(&mut self, token: u32, growth: Growth, vocabulary: &Vocabulary) {
        let text = vocabulary.text(token);
        let before = std::mem::replace(&mut self.place, QuoteState::Outside);
        self.place = before.after(text);
        if self.plan.tokens.first() == Some(&token) {
            self.plan.tokens.remove(0);
            self.plan.text.drain(..text.len());
            self.needed -= 1;
            return;
        }
        if self.sure
            && let Some(plan) = self.rest_of_plan_after(text, vocabulary)
        {
            self.needed = plan.tokens.len();
            self.plan = plan;
            return;
        }
        let structure = before.structure(text);
        let inside = before == QuoteState::Inside && self.place == QuoteState::Inside;
        let named = usize::from(before == QuoteState::Inside && self.in_member_name());
        self.needed += (structure + named) * growth.each + growth.once;
        self.likely &= structure == 0 && inside;
        self.sure = false;
    }

    /// Whether the string that the document is in is a member's name, as far as the plan knows.
    fn in_member_name(&self) -> bool {
        let mut place = QuoteState::Inside;
        let mut rest = self.plan.text.iter();
        let ended = rest.any(|&byte| {
            place = place.after(&[byte]);
            place == QuoteState::Outside
        });
        ended && rest.find(|&&byte| byte != b' ') == Some(&b':')
    }

    /// What is left of the plan after a text that it begins with.
    fn rest_of_plan_after(&self, text: &[u8], vocabulary: &Vocabulary) -> Option<Plan> {
        Plan::new(self.plan.text.strip_prefix(text)?.to_vec(), vocabulary)
    }

    /// Finds out how far the end is where that matters; whether it is near enough.
    pub(super) fn renew(
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
    fn plan_after(
        &self,
        parser: &Parser,
        place: QuoteState,
        vocabulary: &Vocabulary,
    ) -> Option<Plan> {
        // The end is mostly the same, but for a space or a comma.
        for skipped in 0..self.plan.text.len().min(SKIPPED) {
            let mut trial = TrialParser::new(parser, vocabulary.trie());
            let rest = &self.plan.text[skipped..];
            if trial.take(rest) && trial.is_accepting() {
                return Plan::new(rest.to_vec(), vocabulary);
            }
        }
        Plan::search(parser, place, vocabulary)
    }

    /// Takes from `row` what might not be completed in `left` tokens; whether nothing may be
    /// opened any more.
    pub(super) fn narrow(
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
        } else if self.place == QuoteState::Inside && self.in_member_name() {
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
        let inside = self.place == QuoteState::Inside;
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
        let followed = self
            .rest_of_plan_after(text, vocabulary)
            .filter(|_| self.sure);
        let plan = followed.or_else(|| {
            let mut trial = TrialParser::new(parser, vocabulary.trie());
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
