//! Keeps a document of an llguidance grammar within its token budget.

use llguidance::earley::Parser;

use super::completion::{QuoteState, TrialParser};
use super::vocabulary::{MOST_STRUCTURE, Vocabulary};

/// Up to this many allowed tokens are tried one by one: a choice of names, say.
const FEW: usize = 24;
/// How many of the structural tokens that the bound forbids are tried one by one.
const MOST_TRIED: usize = 64;
/// Structural characters of a token that may open something, and nothing more.
const OPENING: usize = 2;
/// Leading bytes of a plan that may be skipped when the plan is retried.
const SKIPPED: usize = 3;

/// Bounds of the tokens that one token may add to what the document still needs.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    /// For every structural character in the token.
    pub(super) each: usize,
    /// For the rest of the token.
    pub(super) once: usize,
    /// Where few tokens are allowed and one of them begins something large.
    pub(super) jump: usize,
    /// The maximum of those few tokens, if more than are tried one by one.
    pub(super) choices: usize,
}

/// A completion of a document: a text and the fewest tokens that spell it.
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

    /// Searches a completion from the parser's state; `place` is the quote state there.
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

/// The token budget of a document.
///
/// `needed` bounds the tokens that complete it from here. When the tokens left come near this
/// bound, the known plan is retried or a new one is searched, which gives a new bound. Then only
/// tokens are allowed that cannot lengthen the document too much: those with few structural
/// characters and, where few others are allowed, those after which a completion is found that fits.
/// In the end only the plan itself is allowed.
#[derive(Clone)]
pub(super) struct Budget {
    place: QuoteState,
    needed: usize,
    plan: Plan,
    /// Whether the plan is known to complete the document from here: it was found here, tried, or
    /// followed.
    sure: bool,
    /// Whether the plan does so if the characters of strings are free, which is the usual case.
    likely: bool,
}

impl Budget {
    /// Creates the budget at the start of a document with a known plan.
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            place: QuoteState::Outside,
            needed: plan.tokens.len(),
            plan,
            sure: true,
            likely: true,
        }
    }

    /// Advances by an emitted token.
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

    /// Returns whether the current string is a member's name, according to the plan.
    fn in_member_name(&self) -> bool {
        let mut place = QuoteState::Inside;
        let mut rest = self.plan.text.iter();
        let ended = rest.any(|&byte| {
            place = place.after(&[byte]);
            place == QuoteState::Outside
        });
        ended && rest.find(|&&byte| byte != b' ') == Some(&b':')
    }

    /// Returns the rest of the plan after `text`, if the plan begins with it.
    fn rest_of_plan_after(&self, text: &[u8], vocabulary: &Vocabulary) -> Option<Plan> {
        Plan::new(self.plan.text.strip_prefix(text)?.to_vec(), vocabulary)
    }

    /// Updates `needed` where it matters. Returns whether the document still fits in `left` tokens.
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
        // Skip the search if it could not improve the bound.
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

    /// Returns a plan from the parser's state, which is one or more tokens ahead of this plan's
    /// start.
    fn plan_after(
        &self,
        parser: &Parser,
        place: QuoteState,
        vocabulary: &Vocabulary,
    ) -> Option<Plan> {
        // The rest is usually the same, except for a space or a comma.
        for skipped in 0..self.plan.text.len().min(SKIPPED) {
            let mut trial = TrialParser::new(parser, vocabulary.trie());
            let rest = &self.plan.text[skipped..];
            if trial.take(rest) && trial.is_accepting() {
                return Plan::new(rest.to_vec(), vocabulary);
            }
        }
        Plan::search(parser, place, vocabulary)
    }

    /// Removes from `row` the tokens after which `left` tokens might not complete the document.
    /// Returns whether nothing may be opened any more.
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
        // With few tokens, each may decide between names or alternatives.
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
            extra = growth.each; // for the member
        }
        let spare = spare - signed(extra);
        let most = class(spare, growth);
        let allowed = row.to_vec();
        self.restrict(most, vocabulary, row);
        let barred = |token: &u32, row: &[u32]| has(&allowed, *token) && !has(row, *token);
        let mut closing = most.is_none();
        // The bound supposes that every structural character opens something.
        let edges = vocabulary.edges.iter().filter(|token| barred(token, row));
        let edges: Vec<u32> = edges.copied().take(MOST_TRIED).collect();
        for token in edges {
            if self.fits(token, left - 1, parser, vocabulary) {
                set(row, &[token]);
            } else {
                let short = self.place.structure(vocabulary.text(token)) <= OPENING;
                closing |= most < Some(1) && short;
            }
        }
        let planned = self.plan.tokens.first().copied();
        if self.sure || row.iter().all(|&word| word == 0) {
            set(row, self.next(parser, vocabulary).as_slice());
        } else if let Some(token) = planned.filter(|token| barred(token, row))
            && self.fits(token, left - 1, parser, vocabulary)
        {
            // A string may still end as planned, which is usually right.
            set(row, &[token]);
        }
        closing
    }

    /// Keeps in `row` only the tokens with at most `most` structural characters.
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

    /// Returns the first token of a plan.
    fn next(&self, parser: &Parser, vocabulary: &Vocabulary) -> Option<u32> {
        if self.sure {
            return self.plan.tokens.first().copied();
        }
        let plan = self.plan_after(parser, self.place, vocabulary);
        plan.and_then(|plan| plan.tokens.first().copied())
    }

    /// Returns whether `left` tokens complete the document after `token`.
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

/// Returns the structural characters that a token may have if it may add `spare` to what is needed;
/// None if it may have none.
fn class(spare: i64, growth: Growth) -> Option<usize> {
    let spare = usize::try_from(spare).ok()?;
    Some(
        spare
            .checked_div(growth.each)
            .unwrap_or(MOST_STRUCTURE)
            .min(MOST_STRUCTURE),
    )
}

/// Returns the tokens that the next one may add to what is needed, beyond what any token may add.
fn spare(left: usize, needed: usize, growth: Growth) -> i64 {
    signed(left) - 1 - signed(needed) - signed(growth.once)
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX / 4)
}

/// Lists the tokens that a row allows.
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

/// Returns whether a row allows a token.
fn has(row: &[u32], token: u32) -> bool {
    row.get(token as usize / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Sets the bits of `tokens` in `row`.
pub(super) fn set(row: &mut [u32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(word) = row.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}
