//! A model's tokens: their bytes, their sorted order, and llguidance's form of them.

use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser, api::GrammarInit, api::TopLevelGrammar};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use super::tokenizer::{self, LlguidanceTokenizer};

/// The structural characters of JSON.
pub(super) const STRUCTURE: &[u8] = b"{}[]\":,";
/// Maximum structural characters of a token that masks distinguish.
pub(super) const MOST_STRUCTURE: usize = 8;

/// A model's vocabulary. Immutable.
pub(super) struct Vocabulary {
    /// Concatenated texts; `spans` holds each token's offset and length.
    data: Vec<u8>,
    spans: Vec<(u32, u16)>,
    /// Tokens with text, sorted by text, then by id.
    order: Vec<u32>,
    /// Length of the common prefix of each token of `order` and its predecessor.
    shared: Vec<u16>,
    /// For each byte, the start in `order` of the texts that begin with it; then the end.
    firsts: Vec<usize>,
    /// Maximum structural characters of any token.
    pub(super) most_structure: usize,
    /// For each number up to MOST_STRUCTURE, the mask of tokens with at most that many of them.
    pub(super) upto: Vec<Vec<u32>>,
    /// Mask of tokens without a quote, which cannot end a string.
    pub(super) unquoted: Vec<u32>,
    /// Tokens of structural characters and spaces, the shortest first.
    pub(super) edges: Vec<u32>,
    longest: usize,
    factory: ParserFactory,
}

impl Vocabulary {
    /// Reads a `tokenizer.json` for a model whose logits have `size` entries.
    pub(super) fn read(path: &Path, size: usize) -> Result<Self, String> {
        let read = tokenizer::read(path, size)?;
        let mut texts = read.texts;
        let order = sorted(&texts);
        let mut names = texts.clone();
        for (name, special) in names.iter_mut().zip(read.specials) {
            if let Some(special) = special {
                *name = special;
            }
        }
        // The grammars' own end token is not a token of the model: each sequence has its own end
        // tokens.
        names.push(
            [
                &[TokTrie::SPECIAL_TOKEN_MARKER],
                b"<end of the grammar>".as_slice(),
            ]
            .concat(),
        );
        let end = u32::try_from(size).map_err(|_| "the vocabulary is too large".to_owned())?;
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &names);
        let env: TokEnv = Arc::new(LlguidanceTokenizer::new(trie, read.tokenizer));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| error.to_string())?;
        texts.truncate(size);
        Ok(Self::new(&texts, order, factory))
    }

    fn new(texts: &[Vec<u8>], order: Vec<u32>, mut factory: ParserFactory) -> Self {
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let data = texts.concat();
        let mut spans = Vec::with_capacity(texts.len());
        let mut start = 0;
        for text in texts {
            spans.push((start, u16::try_from(text.len()).unwrap_or(u16::MAX)));
            start += u32::try_from(text.len()).unwrap_or(u32::MAX);
        }
        let text = |token: u32| texts[token as usize].as_slice();
        let shared = (0..order.len()).map(|place| match place {
            0 => 0,
            _ => common(text(order[place - 1]), text(order[place])),
        });
        let shared = shared.collect();
        let firsts = (0..=256_usize)
            .map(|byte| order.partition_point(|&token| usize::from(text(token)[0]) < byte));
        let firsts = firsts.collect();
        let counts = |text: &Vec<u8>| text.iter().filter(|byte| STRUCTURE.contains(byte)).count();
        let counts: Vec<usize> = texts.iter().map(counts).collect();
        let upto = (0..=MOST_STRUCTURE).map(|most| mask(&counts, |&count| count <= most));
        Self {
            upto: upto.collect(),
            unquoted: mask(texts, |text| !text.contains(&b'"')),
            edges: edges(texts, &counts),
            most_structure: counts.iter().copied().max().unwrap_or(0),
            longest: texts.iter().map(Vec::len).max().unwrap_or(0),
            data,
            spans,
            order,
            shared,
            firsts,
            factory,
        }
    }

    /// Returns the size of the model's vocabulary.
    pub(super) fn size(&self) -> usize {
        self.spans.len()
    }

    /// Returns the bytes of a token; empty for a token without text and for an unknown id.
    pub(super) fn text(&self, token: u32) -> &[u8] {
        let (start, length) = self.spans.get(token as usize).copied().unwrap_or((0, 0));
        &self.data[start as usize..start as usize + usize::from(length)]
    }

    /// Calls `found` for every token allowed in `state` of an automaton, with the next state.
    /// `next` returns the state after a byte, if there is one.
    pub(super) fn walk(
        &self,
        next: impl Fn(usize, u8) -> Option<usize>,
        state: usize,
        mut found: impl FnMut(u32, usize),
    ) {
        let mut path = vec![state; self.longest + 1]; // by the number of bytes of a text
        for first in 0..=u8::MAX {
            if next(state, first).is_none() {
                continue;
            }
            let begun = self.firsts[usize::from(first)]..self.firsts[usize::from(first) + 1];
            let mut dead = usize::MAX; // the position at which the previous text failed
            for place in begun.clone() {
                let token = self.order[place];
                let text = self.text(token);
                let kept = if place == begun.start {
                    0
                } else {
                    usize::from(self.shared[place])
                };
                if kept > dead {
                    continue;
                }
                dead = usize::MAX;
                for at in kept..text.len() {
                    let Some(after) = next(path[at], text[at]) else {
                        dead = at;
                        break;
                    };
                    path[at + 1] = after;
                }
                if dead == usize::MAX {
                    found(token, path[text.len()]);
                }
            }
        }
    }

    /// Returns the tokens that have a name instead of a text.
    pub(super) fn special_tokens(&self) -> impl Iterator<Item = (&[u8], u32)> {
        let named = (0_u32..)
            .take(self.size())
            .map(|token| (self.trie().token(token), token));
        named.filter_map(|(name, token)| {
            let name = name.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])?;
            Some((name, token))
        })
    }

    /// Returns the fewest tokens that spell `text`; None if none do.
    pub(super) fn shortest_tokenization(&self, text: &[u8]) -> Option<Vec<u32>> {
        const NONE: (usize, usize, u32) = (usize::MAX, 0, 0);
        let mut best = vec![NONE; text.len() + 1]; // (tokens, start of the last one, its id)
        best[0].0 = 0;
        for start in 0..text.len() {
            let (count, ..) = best[start];
            if count == usize::MAX {
                continue;
            }
            self.prefix_tokens(&text[start..], |length, token| {
                let place = &mut best[start + length];
                if (count + 1, start) < (place.0, place.1) {
                    *place = (count + 1, start, token);
                }
            });
        }
        let mut end = text.len();
        let mut tokens = Vec::with_capacity(best[end].0.min(end));
        while end > 0 {
            let (count, start, token) = best[end];
            if count == usize::MAX {
                return None;
            }
            tokens.push(token);
            end = start;
        }
        tokens.reverse();
        Some(tokens)
    }

    /// Returns the maximum, over all suffixes of `text`, of the fewest tokens that spell the
    /// suffix. This bounds what is left of `text` after any part of it. Suffixes that no tokens
    /// spell are skipped.
    pub(super) fn max_suffix_tokens(&self, text: &[u8]) -> usize {
        let mut fewest = vec![usize::MAX; text.len() + 1];
        fewest[text.len()] = 0;
        for start in (0..text.len()).rev() {
            let mut best = usize::MAX;
            self.prefix_tokens(&text[start..], |length, _| {
                best = best.min(fewest[start + length].saturating_add(1));
            });
            fewest[start] = best;
        }
        let spelt = fewest.into_iter().filter(|&count| count != usize::MAX);
        spelt.max().unwrap_or(0)
    }

    /// Calls `found` for the tokens that `text` begins with, one per length.
    fn prefix_tokens(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let first = usize::from(text[0]);
        let mut range = &self.order[self.firsts[first]..self.firsts[first + 1]];
        for depth in 1..=text.len() {
            let Some(&token) = range.first() else { return };
            if self.text(token).len() == depth {
                found(depth, token);
            }
            let Some(&next) = text.get(depth) else { return };
            let at = |token: &u32| self.text(*token).get(depth).copied();
            let begin = range.partition_point(|token| at(token) < Some(next));
            range = &range[begin..];
            range = &range[..range.partition_point(|token| at(token) == Some(next))];
        }
    }

    /// Creates an llguidance parser of a grammar.
    pub(super) fn parser(&self, grammar: &str) -> Result<TokenParser, String> {
        let parsed = TopLevelGrammar::from_lark_or_grammar_list(grammar);
        let made = parsed.and_then(|grammar| {
            let init = GrammarInit::Serialized(grammar);
            self.factory.create_parser_from_init(init, 0, 0)
        });
        let mut parser = made.map_err(first_error_line)?;
        parser.start_without_prompt();
        Ok(parser)
    }

    /// Returns llguidance's form of the vocabulary.
    pub(super) fn trie(&self) -> &TokTrie {
        self.factory.tok_env().tok_trie()
    }
}

/// Returns the mask of the tokens whose value satisfies `is`.
fn mask<T>(values: &[T], is: impl Fn(&T) -> bool) -> Vec<u32> {
    let mut bits = vec![0; values.len().div_ceil(32)];
    let found = values.iter().enumerate().filter(|(_, value)| is(value));
    found.for_each(|(token, _)| bits[token / 32] |= 1 << (token % 32));
    bits
}

fn edges(texts: &[Vec<u8>], counts: &[usize]) -> Vec<u32> {
    let is_edge = |text: &[u8], count: usize| {
        let blanks = text.iter().filter(|&&byte| byte == b' ').count();
        count > 0 && count + blanks == text.len()
    };
    let mut found: Vec<u32> = (0_u32..)
        .zip(texts.iter().zip(counts))
        .filter(|&(_, (text, &count))| is_edge(text, count))
        .map(|(token, _)| token)
        .collect();
    found.sort_by_key(|&token| (texts[token as usize].len(), token));
    found
}

fn sorted(texts: &[Vec<u8>]) -> Vec<u32> {
    let named = (0_u32..).zip(texts).filter(|(_, text)| !text.is_empty());
    let mut order: Vec<u32> = named.map(|(token, _)| token).collect();
    order.sort_by(|&a, &b| texts[a as usize].cmp(&texts[b as usize]));
    order
}

fn common(before: &[u8], text: &[u8]) -> u16 {
    let same = before.iter().zip(text).take_while(|(a, b)| a == b).count();
    u16::try_from(same).unwrap_or(u16::MAX)
}

/// Returns the first line of llguidance's error, and the line that names the cause, if another
/// does.
pub(super) fn first_error_line(error: impl Display) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("no reason given");
    let cause = lines.find(|line| line.starts_with("error:")).unwrap_or("");
    let whole = format!("{first} {cause}");
    whole.trim_end().chars().take(300).collect()
}
