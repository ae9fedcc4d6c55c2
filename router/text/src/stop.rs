//! Stop strings, found at any character of the output regardless of token boundaries.
//!
//! Each string is a Knuth-Morris-Pratt automaton that is fed byte by byte. A token costs time in
//! proportion to its own length, independent of the output and of the stop strings.

/// The first stop string that completes in the text fed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Where the match begins, in bytes from the start of the output.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// A matcher for several stop strings.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    automata: Vec<Automaton>,
    fed: usize,
}

#[derive(Clone, Debug)]
struct Automaton {
    pattern: Vec<u8>,
    /// `failure[i]`: length of the longest proper border of `pattern[..=i]`.
    failure: Vec<usize>,
    matched: usize,
}

impl StopMatcher {
    /// Creates a matcher for `strings`; none may be empty.
    pub fn new(strings: &[String]) -> Self {
        Self {
            automata: strings
                .iter()
                .map(|s| Automaton::new(s.as_bytes()))
                .collect(),
            fed: 0,
        }
    }

    /// Feeds the next part of the output. Among matches whose start `counts`, returns the one that
    /// completes first; of several that complete at the same byte, the longest. Do not feed text
    /// after a match.
    pub fn feed(&mut self, text: &str, mut counts: impl FnMut(usize) -> bool) -> Option<StopMatch> {
        if self.automata.is_empty() {
            self.fed += text.len();
            return None;
        }
        for byte in text.bytes() {
            self.fed += 1;
            let end = self.fed;
            // Every automaton takes the byte, even if an earlier one matches: that match may not
            // count.
            let longest = self
                .automata
                .iter_mut()
                .filter_map(|automaton| automaton.step(byte))
                .filter(|length| counts(end - length))
                .max();
            if let Some(length) = longest {
                return Some(StopMatch {
                    start: end - length,
                    end,
                });
            }
        }
        None
    }

    /// Returns how many bytes at the end of the text may still become part of a match.
    pub fn held(&self) -> usize {
        self.automata.iter().map(|a| a.matched).max().unwrap_or(0)
    }
}

impl Automaton {
    fn new(pattern: &[u8]) -> Self {
        let mut failure = vec![0; pattern.len()];
        let mut border = 0;
        for i in 1..pattern.len() {
            while border > 0 && pattern[i] != pattern[border] {
                border = failure[border - 1];
            }
            border += usize::from(pattern[i] == pattern[border]);
            failure[i] = border;
        }
        Self {
            pattern: pattern.to_vec(),
            failure,
            matched: 0,
        }
    }

    /// Feeds one byte; returns the pattern's length when it is complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.failure[self.matched - 1];
        }
        self.matched += usize::from(self.pattern[self.matched] == byte);
        if self.matched < self.pattern.len() {
            return None;
        }
        self.matched = self.failure[self.matched - 1];
        Some(self.pattern.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(strings: &[&str]) -> StopMatcher {
        StopMatcher::new(&strings.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    /// Earliest end, then earliest start, of those that count: the definition, by brute force.
    fn oracle(strings: &[&str], text: &str, counts: impl Fn(usize) -> bool) -> Option<StopMatch> {
        let bytes = text.as_bytes();
        (1..=bytes.len()).find_map(|end| {
            let ends = |s: &&&str| bytes[..end].ends_with(s.as_bytes()) && counts(end - s.len());
            let longest = strings.iter().filter(ends).map(|s| s.len()).max()?;
            Some(StopMatch {
                start: end - longest,
                end,
            })
        })
    }

    #[test]
    fn spans_pieces_and_restarts_inside_itself() {
        let mut m = matcher(&["aab"]);
        assert_eq!(m.feed("a", |_| true), None);
        assert_eq!(m.feed("aa", |_| true), None);
        assert_eq!(m.held(), 2);
        assert_eq!(m.feed("bc", |_| true), Some(StopMatch { start: 1, end: 4 }));
    }

    #[test]
    fn the_earliest_end_wins_then_the_longest() {
        assert_eq!(
            matcher(&["abc", "b"]).feed("abc", |_| true),
            Some(StopMatch { start: 1, end: 2 })
        );
        assert_eq!(
            matcher(&["c", "abc"]).feed("abc", |_| true),
            Some(StopMatch { start: 0, end: 3 })
        );
    }

    #[test]
    fn a_match_that_does_not_count_hides_no_other() {
        for (strings, text, first, wanted) in [
            // It overlaps the other match, also of the same string.
            (&["ab", "bc"][..], "abc", 1, Some((1, 3))),
            (&["aa"], "aaa", 1, Some((1, 3))),
            (&["abab"], "ababab", 1, Some((2, 6))),
            // It ends with the other match, in any order of the list.
            (&["abc", "c"], "abc", 1, Some((2, 3))),
            (&["c", "bc", "abc"], "abc", 1, Some((1, 3))),
            // It lies inside the other string.
            (&["b", "abcd"], "abcd", 2, None),
            (&["b", "abcd"], "abcdb", 2, Some((4, 5))),
        ] {
            let found = matcher(strings).feed(text, |start| start >= first);
            let wanted = wanted.map(|(start, end)| StopMatch { start, end });
            assert_eq!(found, wanted, "{strings:?} in {text:?} from {first} on");
        }
    }

    #[test]
    fn agrees_with_brute_force_however_the_text_is_cut() {
        let alphabet = ['a', 'b', 'é', '\n'];
        let mut state = 1_u64;
        let mut next = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..20_000 {
            let mut word = |max: u64| -> String {
                (0..=next(max))
                    .map(|_| alphabet[next(4) as usize])
                    .collect()
            };
            let strings = [word(4), word(3)];
            let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
            let text = word(14);
            let first = next(6) as usize;
            let mut m = matcher(&strings);
            let found = text
                .chars()
                .find_map(|c| m.feed(c.encode_utf8(&mut [0; 4]), |start| start >= first));
            let wanted = oracle(&strings, &text, |start| start >= first);
            assert_eq!(found, wanted, "{strings:?} in {text:?} from {first} on");
        }
    }
}
