//! Short completions of llguidance documents, searched byte by byte.
//!
//! llguidance computes what may follow, not how far the end is. A clone of the parser follows the
//! completion that JSON suggests: close what is open, else take the shortest allowed value.

use llguidance::earley::{BiasComputer, Parser, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::lexeme_search::{self, EndDistances, LexemeEnd};
use super::vocabulary::STRUCTURE;

/// Maximum bytes of a completion.
pub(super) const MOST_BYTES: usize = 8192;
/// Closing bytes outside strings; those that end most come first.
const CLOSERS: &[u8] = b"}],:";
/// Opening bytes outside strings: what they open must be closed again, and may be endless.
const OPENERS: &[u8] = b"{[";

/// The position in a JSON text relative to strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum QuoteState {
    #[default]
    Outside,
    Inside,
    /// In a string, behind a backslash.
    Escaped,
}

impl QuoteState {
    /// Returns the state after `text`.
    pub(super) fn after(self, text: &[u8]) -> Self {
        text.iter().fold(self, |place, byte| match (place, byte) {
            (Self::Escaped, _) | (Self::Outside, b'"') => Self::Inside,
            (Self::Inside, b'"') => Self::Outside,
            (Self::Inside, b'\\') => Self::Escaped,
            (place, _) => place,
        })
    }

    /// Counts the structural characters of `text` from this state; in strings, only quotes count.
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

/// A clone of a parser that advances without changing the original.
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

    /// Returns the cloned parser.
    pub(super) fn parser(&self) -> &Parser {
        &self.parser
    }

    /// Advances by bytes. Returns whether they are allowed.
    pub(super) fn take(&mut self, text: &[u8]) -> bool {
        // The grammars' own end token has no bytes, so the parser takes only `text`.
        matches!(self.parser.apply_token(text, self.trie.eos_token()), Ok(0))
    }

    /// Returns whether the text may end here.
    pub(super) fn is_accepting(&mut self) -> bool {
        self.parser.currently_forced_bytes().is_empty() && self.parser.is_accepting()
    }

    /// Returns a short text that completes the document; None if none was found. `place` is the
    /// quote state here.
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
                // Finds a forced closer too, at a lower cost.
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

    /// Returns the nearest end of the current lexeme.
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

    /// Returns the byte that most likely leads to the end if no closer is allowed: a byte that
    /// opens nothing and, of those, the least used one. So a pattern such as (ab)+c is left even if
    /// `a` comes before `c`, and a list of links ends in `null` rather than in one more link.
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

    /// Calls `work` with a function that returns whether a byte is allowed.
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

/// Returns the distances to the ends of a grammar's lexemes; lexemes with more than `most` states
/// are not searched.
pub(super) fn end_distances(parser: &Parser, trie: &TokTrie, most: usize) -> EndDistances {
    let mut own = parser.deep_clone();
    lexeme_search::end_distances(&mut own, |parser| refuel(parser, trie), most)
}

/// Resets the lexer's fuel as for a new mask. Clones of a parser share one lexer.
fn refuel(parser: &mut Parser, trie: &TokTrie) {
    parser.invalidate_bias_cache();
    let _ = parser.compute_bias(&EmptyMask(trie), &[]);
}

impl Drop for TrialParser<'_> {
    fn drop(&mut self) {
        refuel(&mut self.parser, self.trie);
    }
}

/// A mask without tokens, which is cheap to compute.
struct EmptyMask<'a>(&'a TokTrie);

impl BiasComputer for EmptyMask<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}
