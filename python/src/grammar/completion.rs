//! How an llguidance document ends soonest: a short completion of its text, byte by byte.
//!
//! llguidance says what may follow, not how far the end is. A copy of the parser takes the
//! completion that JSON suggests: close what is open, else take the shortest thing that is allowed.

use llguidance::earley::{BiasComputer, Parser, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::lexeme_search::{self, EndDistances, LexemeEnd};
use super::vocabulary::STRUCTURE;

/// Bytes of a completion.
pub(super) const MOST_BYTES: usize = 8192;
/// Outside of strings, in the order of what ends most.
const CLOSERS: &[u8] = b"}],:";
/// Outside of strings: what they open must be closed again, and may be endless.
const OPENERS: &[u8] = b"{[";

/// Where a place in a JSON text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum QuoteState {
    #[default]
    Outside,
    Inside,
    /// Of a string, behind a backslash.
    Escaped,
}

impl QuoteState {
    /// Where `text` leads.
    pub(super) fn after(self, text: &[u8]) -> Self {
        text.iter().fold(self, |place, byte| match (place, byte) {
            (Self::Escaped, _) | (Self::Outside, b'"') => Self::Inside,
            (Self::Inside, b'"') => Self::Outside,
            (Self::Inside, b'\\') => Self::Escaped,
            (place, _) => place,
        })
    }

    /// Characters of `text`, which comes here, that begin or end something: in strings only quotes.
    pub(super) fn structure(self, text: &[u8]) -> usize {
        let mut place = self;
        let mut count = 0;
        for &byte in text {
            count += usize::from(match place {
                Self::Outside => STRUCTURE.contains(&byte),
                Self::Inside => byte == b'"',
                Self::Escaped => false,
            });
            place = place.after(&[byte]);
        }
        count
    }
}

/// A parser that has gone on from where another one stands, which does not.
pub(super) struct TrialParser<'a> {
    parser: Parser,
    trie: &'a TokTrie,
}

impl<'a> TrialParser<'a> {
    pub(super) fn new(parser: &Parser, trie: &'a TokTrie) -> Self {
        let mut trial = Self {
            parser: parser.clone(),
            trie,
        };
        refuel(&mut trial.parser, trie);
        trial
    }

    /// Where it stands.
    pub(super) fn parser(&self) -> &Parser {
        &self.parser
    }

    /// Takes bytes; whether they can follow.
    pub(super) fn take(&mut self, text: &[u8]) -> bool {
        // The grammars' end token: it stands for no bytes, so none are taken for it.
        matches!(self.parser.apply_token(text, self.trie.eos_token()), Ok(0))
    }

    /// Whether the text may end here.
    pub(super) fn is_accepting(&mut self) -> bool {
        self.parser.currently_forced_bytes().is_empty() && self.parser.is_accepting()
    }

    /// A short text that makes this one whole; None if none was found. `place` is where it ends
    /// now.
    pub(super) fn completion(&mut self, mut place: QuoteState) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        let mut used = [0_u32; 256];
        let mut lost = false;
        while !self.is_accepting() {
            if text.len() > MOST_BYTES || self.parser.get_error().is_some() {
                return None;
            }
            let mut next = self.parser.currently_forced_bytes().to_vec();
            if next.is_empty() {
                // One that is forced is found here too, for less.
                next.extend(self.closer(place));
            }
            if next.is_empty() && !lost && self.parser.has_pending_lexeme_bytes() {
                match self.shortest_lexeme_end() {
                    LexemeEnd::Found(rest) => next = rest,
                    LexemeEnd::NotFound => lost = true,
                }
            }
            if next.is_empty() {
                next.extend_from_slice(self.parser.force_bytes());
            }
            if next.is_empty() {
                next.push(self.choice(place, &used)?);
            }
            if !self.take(&next) {
                return None;
            }
            for &byte in &next {
                used[usize::from(byte)] += 1;
            }
            place = place.after(&next);
            lost &= place != QuoteState::Outside;
            text.extend_from_slice(&next);
        }
        Some(text)
    }

    /// The nearest end of the lexeme that has begun.
    fn shortest_lexeme_end(&mut self) -> LexemeEnd {
        let trie = self.trie;
        lexeme_search::shortest_end(&mut self.parser, |parser| refuel(parser, trie))
    }

    fn closer(&mut self, place: QuoteState) -> Option<u8> {
        let closers = match place {
            QuoteState::Outside => CLOSERS,
            _ => b"\"",
        };
        self.with_probe(|follows| closers.iter().copied().find(|&byte| follows(byte)))
    }

    /// The byte that likeliest leads to the end but for closers: those that open nothing, and of
    /// them what was used least. So a pattern such as (ab)+c is left even if `a` comes before `c`,
    /// and a list of links ends in `null` rather than in one more link.
    fn choice(&mut self, place: QuoteState, used: &[u32; 256]) -> Option<u8> {
        let opens = |byte: u8| place == QuoteState::Outside && OPENERS.contains(&byte);
        let plain = |byte: u8| byte > b' ' && byte != b'\\';
        self.with_probe(|follows| {
            for class in [(true, false), (true, true), (false, false)] {
                let digits = (b'0'..=b'9').map(|byte| (false, byte));
                let others = (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit());
                let bytes = digits.chain(others.map(|byte| (true, byte)));
                let mut found = None;
                for (other, byte) in bytes.filter(|&(_, byte)| (plain(byte), opens(byte)) == class)
                {
                    let many = used[usize::from(byte)];
                    if found.is_none_or(|found| (many, other, byte) < found) && follows(byte) {
                        found = Some((many, other, byte));
                        if many == 0 {
                            break;
                        }
                    }
                }
                if let Some((_, _, byte)) = found {
                    return Some(byte);
                }
            }
            None
        })
    }

    /// Calls `work` with what tells whether a byte may follow.
    fn with_probe<T>(&mut self, work: impl FnOnce(&mut dyn FnMut(u8) -> bool) -> T) -> T {
        self.parser.with_recognizer(|recognizer| {
            recognizer.trie_started("completion");
            let found = work(&mut |byte| {
                let follows = recognizer.try_push_byte(byte);
                if follows {
                    recognizer.pop_bytes(1);
                }
                follows
            });
            recognizer.trie_finished();
            found
        })
    }
}

/// How far the ends of a grammar's lexemes are; those of more than `most` states are not searched.
pub(super) fn end_distances(parser: &Parser, trie: &TokTrie, most: usize) -> EndDistances {
    let mut own = parser.deep_clone();
    lexeme_search::end_distances(&mut own, |parser| refuel(parser, trie), most)
}

/// Lets the lexer work as much as for a mask. Copies of a parser have one lexer.
fn refuel(parser: &mut Parser, trie: &TokTrie) {
    parser.invalidate_bias_cache();
    let _ = parser.compute_bias(&EmptyMask(trie), &[]);
}

impl Drop for TrialParser<'_> {
    fn drop(&mut self) {
        refuel(&mut self.parser, self.trie);
    }
}

/// The mask of no token, which costs nothing.
struct EmptyMask<'a>(&'a TokTrie);

impl BiasComputer for EmptyMask<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}
