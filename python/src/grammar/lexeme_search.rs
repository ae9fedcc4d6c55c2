//! The nearest end of a lexeme, such as a string with a pattern: a search over the states of
//! llguidance's lexer. Each end found is optimal in bytes within the searched bytes.

use std::collections::{HashMap, VecDeque};

use llguidance::derivre::{NextByte, StateID};
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{Parser, ParserRecognizer};

/// Stages of the search for the nearest end: the maximum of states, and whether by plain text only.
/// Usually the end is near, or far and reachable by plain text.
const TIERS: [(usize, bool); 3] = [(512, false), (16384, true), (MOST_EXPLORED, false)];
/// States searched per refill of the lexer's fuel.
const CHUNK: usize = 16;
/// The distance if there is no end.
const FAR: usize = usize::MAX;

/// Maximum states of one lexeme in the search for the largest distance.
pub(super) const MOST_EXPLORED: usize = 65536;

/// The result of a search.
pub(super) enum LexemeEnd {
    /// The fewest bytes that end the lexeme; empty if it may end here.
    Found(Vec<u8>),
    /// No end within the maximum of states.
    NotFound,
}

/// Distances to the ends of lexemes, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct EndDistances {
    /// From the start of a lexeme.
    pub(super) shortest: usize,
    /// From any state of a lexeme; by plain text if that reaches an end, as in `shortest_end`.
    pub(super) farthest: usize,
    /// Lexemes that were not measured because they have too many states.
    pub(super) unsearched: usize,
}

/// Returns the bytes that end the current lexeme of `parser`. `refuel` refills the lexer's
/// fuel.
pub(super) fn shortest_end(parser: &mut Parser, refuel: impl Fn(&mut Parser)) -> LexemeEnd {
    let start = parser.with_recognizer(|recognizer| recognizer.lexer_state());
    for (most, plain) in TIERS {
        let bytes = if plain { plain_bytes() } else { every_byte() };
        let mut search = Search::new(parser, start, bytes, false);
        search.run(parser, &refuel, most);
        if let Some(end) = search.end {
            return LexemeEnd::Found(search.path(end));
        }
    }
    LexemeEnd::NotFound
}

/// Returns the largest distances over all lexemes of a grammar, except for those with more than
/// `most` states.
pub(super) fn end_distances(
    parser: &mut Parser,
    refuel: impl Fn(&mut Parser),
    most: usize,
) -> EndDistances {
    let count = parser.with_recognizer(|recognizer| {
        let spec = recognizer.lexer().lexer_spec();
        spec.lexemes.len() - spec.num_extra_lexemes
    });
    let mut found = EndDistances::default();
    for lexeme in 0..count {
        let start = parser.with_recognizer(|recognizer| {
            let mut alone = recognizer.lexer().lexer_spec().alloc_lexeme_set();
            alone.add(LexemeIdx::new(lexeme));
            recognizer.lexer_mut().start_state(&alone)
        });
        if start.is_dead() {
            continue; // no text matches it
        }
        let mut search = Search::new(parser, start, every_byte(), true);
        if search.run(parser, &refuel, most) {
            let (shortest, farthest) = search.distances_to_ends();
            found.shortest = found.shortest.max(shortest);
            found.farthest = found.farthest.max(farthest);
        } else {
            found.unsearched += 1;
        }
    }
    found
}

/// Returns all bytes of UTF-8 text in search order, readable ones first.
fn every_byte() -> Vec<u8> {
    let mut bytes = plain_bytes();
    bytes.extend(b" \\");
    bytes.extend(0x80..=0xf4);
    bytes.extend(0..b' ');
    bytes.push(0x7f);
    bytes
}

fn plain(byte: u8) -> bool {
    (b'!'..=b'~').contains(&byte) && byte != b'\\'
}

fn plain_bytes() -> Vec<u8> {
    let known = |byte: &u8| byte.is_ascii_alphanumeric();
    let others = (0..=u8::MAX).filter(|byte| !known(byte) && plain(*byte));
    let letters = (b'a'..=b'z').chain(b'0'..=b'9').chain(b'A'..=b'Z');
    letters.chain(others).collect()
}

/// A breadth-first search over the lexer's states.
struct Search {
    bytes: Vec<u8>,
    /// Whether the search continues past the nearest end and keeps every edge.
    all: bool,
    /// States in the order of discovery.
    steps: Vec<Step>,
    places: HashMap<StateID, usize>,
    next: usize,
    end: Option<usize>,
}

struct Step {
    state: StateID,
    /// Whether the lexeme may end here.
    whole: bool,
    /// Predecessors, each with whether a plain byte leads here; only the first unless `all`.
    before: Vec<(usize, bool)>,
    /// The byte from the first predecessor.
    byte: u8,
}

impl Search {
    fn new(parser: &mut Parser, start: StateID, bytes: Vec<u8>, all: bool) -> Self {
        let mut search = Self {
            bytes,
            all,
            steps: Vec::new(),
            places: HashMap::new(),
            next: 0,
            end: None,
        };
        parser.with_recognizer(|recognizer| search.reached(recognizer, start, None, 0));
        search
    }

    /// Searches until the end, or with `all` every state, is found. Returns false if there are more
    /// than `most` states.
    fn run(&mut self, parser: &mut Parser, refuel: impl Fn(&mut Parser), most: usize) -> bool {
        while self.end.is_none() && self.next < self.steps.len() {
            if self.steps.len() > most || parser.get_error().is_some() {
                return false;
            }
            refuel(parser);
            parser.with_recognizer(|recognizer| self.wave(recognizer));
        }
        true
    }

    /// Expands up to `CHUNK` more states.
    fn wave(&mut self, recognizer: &mut ParserRecognizer<'_>) {
        let last = self.steps.len().min(self.next + CHUNK);
        while self.end.is_none() && self.next < last {
            let state = self.steps[self.next].state;
            // No byte can follow such a match.
            if !state.has_lowest_match() {
                match recognizer.lexer_mut().next_byte(state) {
                    NextByte::ForcedByte(byte) => self.try_byte(recognizer, state, byte),
                    _ => (0..self.bytes.len())
                        .for_each(|place| self.try_byte(recognizer, state, self.bytes[place])),
                }
            }
            self.next += 1;
        }
    }

    fn try_byte(&mut self, recognizer: &mut ParserRecognizer<'_>, state: StateID, byte: u8) {
        let lexer = recognizer.lexer_mut();
        let after = lexer.transition_start_state(state, Some(byte), &None);
        if self.end.is_some() || after.is_dead() || !after.is_valid() {
            return;
        }
        match self.places.get(&after) {
            Some(&place) if self.all => {
                // Plain bytes come first: if one led here, the others add nothing.
                let before = &mut self.steps[place].before;
                if before.last().is_none_or(|&(last, _)| last != self.next) {
                    before.push((self.next, plain(byte)));
                }
            }
            Some(_) => {}
            None => self.reached(recognizer, after, Some(self.next), byte),
        }
    }

    fn reached(
        &mut self,
        recognizer: &mut ParserRecognizer<'_>,
        state: StateID,
        before: Option<usize>,
        byte: u8,
    ) {
        let whole =
            state.has_lowest_match() || !recognizer.lexer_mut().try_lexeme_end(state).is_error();
        self.places.insert(state, self.steps.len());
        if whole && !self.all {
            self.end = Some(self.steps.len());
        }
        self.steps.push(Step {
            state,
            whole,
            before: before.map(|step| (step, plain(byte))).into_iter().collect(),
            byte,
        });
    }

    /// Returns the bytes that lead to a step.
    fn path(&self, mut step: usize) -> Vec<u8> {
        let mut text = Vec::new();
        while let Some(&(before, _)) = self.steps[step].before.first() {
            text.push(self.steps[step].byte);
            step = before;
        }
        text.reverse();
        text
    }

    /// Returns the distance to an end of the first state, and the largest one of all states.
    fn distances_to_ends(&self) -> (usize, usize) {
        let (plain, every) = (self.distances(true), self.distances(false));
        let ways = plain.iter().zip(&every);
        let ways = ways.map(|(&plain, &every)| if plain == FAR { every } else { plain });
        let farthest = ways.filter(|&far| far != FAR).max().unwrap_or(0);
        (every[0], farthest)
    }

    /// Returns the distance of each state to an end, with `plain` by plain text only.
    fn distances(&self, plain: bool) -> Vec<usize> {
        let mut distance = vec![FAR; self.steps.len()];
        let whole = (0..self.steps.len()).filter(|&step| self.steps[step].whole);
        let mut waiting: VecDeque<usize> = whole.collect();
        waiting.iter().for_each(|&step| distance[step] = 0);
        while let Some(step) = waiting.pop_front() {
            for &(before, by_plain) in &self.steps[step].before {
                if distance[before] == FAR && (by_plain || !plain) {
                    distance[before] = distance[step] + 1;
                    waiting.push_back(before);
                }
            }
        }
        distance
    }
}
