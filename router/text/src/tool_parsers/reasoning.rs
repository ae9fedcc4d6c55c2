//! Reasoning at the start of an output: `<think>..</think>`. Whitespace around it is dropped.

use super::content_buffer::MarkFinder;
use super::{OutputDeltas, ReasoningDisplay, ReasoningFormat};

/// A splitter of reasoning and the text that follows.
#[derive(Debug)]
pub(super) struct ReasoningSplitter {
    state: State,
    finder: MarkFinder,
    /// Whitespace that is emitted if text follows.
    blanks: String,
    /// The rest of the label that may follow the opening mark, and its part that was seen.
    label: &'static str,
    labelled: String,
    reasoning_display: ReasoningDisplay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before any non-blank character.
    Start,
    /// Between the marks; `true` once non-blank text was seen.
    Inside(bool),
    /// After the closing mark, before any non-blank character.
    Closed,
    /// After the reasoning.
    Rest,
}

/// Whether the mark with this index opens reasoning; the next one closes it.
fn opens(mark: usize) -> bool {
    mark.is_multiple_of(2)
}

impl ReasoningSplitter {
    /// Creates a splitter. `open` means that the prompt ends inside the reasoning.
    pub(super) fn new(
        format: ReasoningFormat,
        open: bool,
        reasoning_display: ReasoningDisplay,
    ) -> Self {
        Self {
            state: if open {
                State::Inside(false)
            } else {
                State::Start
            },
            finder: MarkFinder::new(format.all_marks()),
            blanks: String::new(),
            label: format.label(),
            labelled: String::new(),
            reasoning_display,
        }
    }

    /// Takes one character. Passes text that is no reasoning to `rest`.
    pub(super) fn push(
        &mut self,
        c: char,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
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

    fn start(
        &mut self,
        c: char,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
    ) {
        let (found, text) = self.finder.push(c);
        if let Some(mark) = found
            && self.in_content()
        {
            out.content(&std::mem::take(&mut self.blanks));
            return self.pass_mark(mark, out);
        }
        match found {
            Some(mark) if opens(mark) => {
                self.blanks.clear();
                self.state = State::Inside(false);
            }
            // The mark closes what the prompt opened, or nothing.
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

    fn inside(&mut self, c: char, out: &mut OutputDeltas) {
        let (found, text) = self.finder.push(c);
        if self.in_content() {
            out.content(&text);
            return found.map_or((), |mark| self.pass_mark(mark, out));
        }
        text.chars().for_each(|c| self.push_reasoning(c, out));
        match found {
            // The prompt opened the reasoning and the model repeats the mark.
            Some(mark) if opens(mark) && self.state == State::Inside(false) => {}
            Some(mark) if opens(mark) => {
                let mark = self.finder.mark(mark);
                mark.chars().for_each(|c| self.push_reasoning(c, out));
            }
            Some(_) => {
                self.blanks.clear();
                self.state = State::Closed;
            }
            None => {}
        }
    }

    fn in_content(&self) -> bool {
        self.reasoning_display == ReasoningDisplay::InContent
    }

    /// Emits a mark as content. Text after the closing mark belongs to the rest, including
    /// whitespace.
    fn pass_mark(&mut self, mark: usize, out: &mut OutputDeltas) {
        out.content(self.finder.mark(mark));
        self.state = if opens(mark) {
            State::Inside(false)
        } else {
            State::Rest
        };
    }

    fn push_reasoning(&mut self, c: char, out: &mut OutputDeltas) {
        if self.reasoning_display == ReasoningDisplay::Hidden {
            return;
        }
        if let Some(label) = self.label.strip_prefix(c) {
            self.label = label;
            return self.labelled.push(c);
        }
        if !std::mem::take(&mut self.label).is_empty() {
            let text = std::mem::take(&mut self.labelled);
            text.chars().for_each(|c| self.push_reasoning(c, out));
        }
        if c.is_whitespace() {
            self.blanks.push(c);
            return;
        }
        if self.state == State::Inside(true) {
            out.reasoning(&self.blanks);
        }
        self.blanks.clear();
        self.state = State::Inside(true);
        out.reasoning(c.encode_utf8(&mut [0; 4]));
    }

    /// Ends the output.
    pub(super) fn finish(
        &mut self,
        out: &mut OutputDeltas,
        rest: &mut dyn FnMut(&str, &mut OutputDeltas),
    ) {
        let text = self.finder.take();
        match self.state {
            State::Start => rest(&(std::mem::take(&mut self.blanks) + &text), out),
            State::Inside(_) if self.in_content() => out.content(&text),
            State::Inside(_) => text.chars().for_each(|c| self.push_reasoning(c, out)),
            State::Closed | State::Rest => {}
        }
    }
}
