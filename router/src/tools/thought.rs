//! Thoughts at the start of an answer: `<think>..</think>`. Blanks around them are left out.

use super::prose::MarkFinder;
use super::{Pieces, ThoughtFormat};

/// Splits thoughts from what follows.
#[derive(Debug)]
pub(super) struct Thought {
    state: State,
    finder: MarkFinder,
    /// Blanks that are shown if text follows them.
    blanks: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before anything but blanks.
    Start,
    /// Between the marks; whether text has come.
    Inside(bool),
    /// After the closing mark, before anything but blanks.
    Closed,
    /// All the rest.
    Rest,
}

impl Thought {
    /// For an answer to a prompt that ends inside the thoughts, if `open`.
    pub(super) fn new(format: ThoughtFormat, open: bool) -> Self {
        Self {
            state: if open {
                State::Inside(false)
            } else {
                State::Start
            },
            finder: MarkFinder::new(format.marks()),
            blanks: String::new(),
        }
    }

    /// Takes one character, and passes on the text that is no thought.
    pub(super) fn push(
        &mut self,
        c: char,
        out: &mut Pieces,
        rest: &mut dyn FnMut(&str, &mut Pieces),
    ) {
        match self.state {
            State::Rest => rest(c.encode_utf8(&mut [0; 4]), out),
            State::Closed if c.is_whitespace() => {}
            State::Closed => {
                self.state = State::Rest;
                rest(c.encode_utf8(&mut [0; 4]), out);
            }
            State::Start if c.is_whitespace() && self.finder.is_idle() => self.blanks.push(c),
            State::Start => self.start(c, out, rest),
            State::Inside(_) => self.inside(c, out),
        }
    }

    fn start(&mut self, c: char, out: &mut Pieces, rest: &mut dyn FnMut(&str, &mut Pieces)) {
        let (found, text) = self.finder.push(c);
        match found {
            Some(0) => {
                self.blanks.clear();
                self.state = State::Inside(false);
            }
            // It closes what the prompt has opened, or nothing.
            Some(_) => {
                self.blanks.clear();
                self.state = State::Closed;
            }
            None if text.is_empty() => {}
            None => {
                self.state = State::Rest;
                let text = std::mem::take(&mut self.blanks) + &text + &self.finder.take();
                rest(&text, out);
            }
        }
    }

    fn inside(&mut self, c: char, out: &mut Pieces) {
        let (found, text) = self.finder.push(c);
        text.chars().for_each(|c| self.think(c, out));
        match found {
            // The prompt has opened them, and the model does so again.
            Some(0) if self.state == State::Inside(false) => {}
            Some(0) => {
                let mark = self.finder.mark(0);
                mark.chars().for_each(|c| self.think(c, out));
            }
            Some(_) => {
                self.blanks.clear();
                self.state = State::Closed;
            }
            None => {}
        }
    }

    fn think(&mut self, c: char, out: &mut Pieces) {
        if c.is_whitespace() {
            self.blanks.push(c);
            return;
        }
        if self.state == State::Inside(true) {
            out.thought(&self.blanks);
        }
        self.blanks.clear();
        self.state = State::Inside(true);
        out.thought(c.encode_utf8(&mut [0; 4]));
    }

    /// The answer is over.
    pub(super) fn finish(&mut self, out: &mut Pieces, rest: &mut dyn FnMut(&str, &mut Pieces)) {
        let text = self.finder.take();
        match self.state {
            State::Start => rest(&(std::mem::take(&mut self.blanks) + &text), out),
            State::Inside(_) => text.chars().for_each(|c| self.think(c, out)),
            State::Closed | State::Rest => {}
        }
    }
}
