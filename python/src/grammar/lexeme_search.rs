//! The nearest end of a lexeme, such as a string that must match a pattern: a search over the
//! states of llguidance's lexer. Every end that it finds is exact in bytes.

use std::collections::{HashMap, VecDeque};

use llguidance::derivre::{NextByte, StateID};
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{Parser, ParserRecognizer};

/// How many states are searched for the nearest end, and whether by plain text alone: mostly it is
/// near, or far and reached by plain text.
const TIERS: [(usize, bool); 3] = [(512, false), (16384, true), (MOST_EXPLORED, false)];
/// States between which the lexer gets its fuel anew.
const CHUNK: usize = 16;
/// Bytes to an end that there is not.
const FAR: usize = usize::MAX;

/// States of one lexeme that are searched for the farthest of them.
pub(super) const MOST_EXPLORED: usize = 65536;

/// What a search has found.
pub(super) enum LexemeEnd {
    /// The fewest bytes that end the lexeme; none if it may end where it is.
    Found(Vec<u8>),
    /// No end within the states that may be searched.
    NotFound,
}

/// How far the ends of lexemes are, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct EndDistances {
    /// From the beginning.
    pub(super) shortest: usize,
    /// From wherever a lexeme has come to, by plain text if that ends it, as `shortest_end` would.
    pub(super) farthest: usize,
    /// Lexemes of which this cannot be told: they have too many states.
    pub(super) unsearched: usize,
}

/// The bytes that end the lexeme at which `parser` stands. `refuel` gives its lexer new fuel.
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

/// The most bytes that any lexeme of a grammar needs, but for those of more than `most` states.
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
            continue; // nothing matches it
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

/// Bytes of text in the order in which they are tried: what is read easily comes first.
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

/// A breadth-first search from a state of the lexer.
struct Search {
    bytes: Vec<u8>,
    /// Whether it goes on behind the nearest end, and keeps every way.
    all: bool,
    /// States in the order in which they were reached.
    steps: Vec<Step>,
    places: HashMap<StateID, usize>,
    next: usize,
    end: Option<usize>,
}

struct Step {
    state: StateID,
    /// Whether the lexeme may end here.
    whole: bool,
    /// The steps that lead here, each with whether by plain text; the first alone if not all are
    /// kept.
    before: Vec<(usize, bool)>,
    /// What led here from the first of them.
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

    /// Searches until the end, or all, is found; false if there are more than `most` states.
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

    /// Goes on from a few more states.
    fn wave(&mut self, recognizer: &mut ParserRecognizer<'_>) {
        let last = self.steps.len().min(self.next + CHUNK);
        while self.end.is_none() && self.next < last {
            let state = self.steps[self.next].state;
            // Behind such a match there is nothing.
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
                // Plain bytes come first: if one led here, the others say nothing new.
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

    /// The bytes that led to a step.
    fn path(&self, mut step: usize) -> Vec<u8> {
        let mut text = Vec::new();
        while let Some(&(before, _)) = self.steps[step].before.first() {
            text.push(self.steps[step].byte);
            step = before;
        }
        text.reverse();
        text
    }

    /// How far the first of the states that were reached is from an end, and how far the farthest.
    fn distances_to_ends(&self) -> (usize, usize) {
        let (plain, every) = (self.distances(true), self.distances(false));
        let ways = plain.iter().zip(&every);
        let ways = ways.map(|(&plain, &every)| if plain == FAR { every } else { plain });
        let farthest = ways.filter(|&far| far != FAR).max().unwrap_or(0);
        (every[0], farthest)
    }

    /// Of each state the bytes to an end, perhaps of plain text alone.
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
