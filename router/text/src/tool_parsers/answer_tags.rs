//! Tags around the reply to which reasoning led: `<response>..</response>`. Tags, whitespace inside
//! them, and whitespace around them are dropped.

use super::OutputDeltas;
use super::content_buffer::{MarkFinder, NextMark, NextText};

/// A filter of the text after the reasoning.
#[derive(Debug)]
pub(super) struct AnswerTags {
    state: State,
    close: MarkFinder,
    /// Whitespace that is emitted if text follows.
    blanks: String,
}

#[derive(Debug)]
enum State {
    /// Before any non-blank character.
    Start(NextMark),
    /// Between the tags; `true` once non-blank text was seen.
    Inside(bool),
    /// After the closing tag, before any non-blank character.
    Closed,
    /// Text without tags, or after them.
    Rest,
}

impl AnswerTags {
    /// Creates a filter of an opening and a closing tag.
    pub(super) fn new(tags: &'static [&'static str; 2]) -> Self {
        Self {
            state: State::Start(NextMark::new(&tags[..1])),
            close: MarkFinder::new(&tags[1..]),
            blanks: String::new(),
        }
    }

    /// Takes one character. Passes text of the reply to `rest`.
    pub(super) fn push(
        &mut self,
        c: char,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
    ) {
        match &mut self.state {
            State::Start(open) => match open.push(c) {
                NextText::Blank => self.blanks.push(c),
                NextText::Partial => {}
                NextText::Mark(_) => {
                    self.blanks.clear();
                    self.state = State::Inside(false);
                }
                NextText::Other(text) => self.leave(&text, out, rest),
            },
            State::Inside(_) => {
                let (found, text) = self.close.push(c);
                text.chars().for_each(|c| self.inside(c, out, rest));
                if found.is_some() {
                    self.blanks.clear();
                    self.state = State::Closed;
                }
            }
            State::Closed if c.is_whitespace() => self.blanks.push(c),
            State::Closed => self.leave(c.encode_utf8(&mut [0; 4]), out, rest),
            State::Rest => rest(c.encode_utf8(&mut [0; 4]), out),
        }
    }

    /// Passes `text` and the whitespace before it on. No tag follows.
    fn leave(
        &mut self,
        text: &str,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
    ) {
        self.state = State::Rest;
        let text = std::mem::take(&mut self.blanks) + text;
        rest(&text, out);
    }

    fn inside(
        &mut self,
        c: char,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
    ) {
        if c.is_whitespace() {
            return self.blanks.push(c);
        }
        if matches!(self.state, State::Inside(true)) {
            rest(&self.blanks, out);
        }
        self.blanks.clear();
        self.state = State::Inside(true);
        rest(c.encode_utf8(&mut [0; 4]), out);
    }

    /// Ends the output.
    pub(super) fn finish(
        &mut self,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
    ) {
        match &mut self.state {
            State::Start(open) => {
                let text = open.take();
                self.leave(&text, out, rest);
            }
            State::Inside(_) => {
                let text = self.close.take();
                text.chars().for_each(|c| self.inside(c, out, rest));
            }
            State::Closed | State::Rest => {}
        }
    }
}
