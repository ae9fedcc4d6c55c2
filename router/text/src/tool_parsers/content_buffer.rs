//! Content around calls. Finds the marks that begin a call and holds text back while it may belong
//! to one.

use super::OutputDeltas;

/// A search for the first of several marks in a stream of characters.
#[derive(Debug)]
pub(super) struct MarkFinder {
    marks: &'static [&'static str],
    /// A partial mark.
    held: String,
}

/// A search for one of several marks that may only come after whitespace.
#[derive(Debug)]
pub(super) struct NextMark(MarkFinder);

/// The result of one character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextText {
    /// Whitespace before the mark.
    Blank,
    /// A part of a mark.
    Partial,
    /// The end of the mark with this index.
    Mark(usize),
    /// All characters since the whitespace: they begin no mark.
    Other(String),
}

/// Content up to the next mark.
#[derive(Debug)]
pub(super) struct ContentBuffer {
    finder: MarkFinder,
    /// Whitespace, a mark and the beginning of a call. It is content if no call follows.
    held: String,
    /// Whether a call was found.
    called: bool,
}

impl MarkFinder {
    pub(super) fn new(marks: &'static [&'static str]) -> Self {
        let held = String::new();
        Self { marks, held }
    }

    /// Takes one character. Returns the index of the mark that it completes, and the text that
    /// belongs to no mark.
    pub(super) fn push(&mut self, c: char) -> (Option<usize>, String) {
        self.held.push(c);
        let mut free = 0;
        let begins = |text: &str| self.marks.iter().any(|mark| mark.starts_with(text));
        while let Some(first) = self.held[free..].chars().next()
            && !begins(&self.held[free..])
        {
            free += first.len_utf8();
        }
        let text = self.held.drain(..free).collect();
        let found = self.marks.iter().position(|mark| *mark == self.held);
        if found.is_some() {
            self.held.clear();
        }
        (found, text)
    }

    /// Returns the text of a mark.
    pub(super) fn mark(&self, index: usize) -> &'static str {
        self.marks[index]
    }

    /// Whether no partial mark is held.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes the partial mark.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

impl NextMark {
    pub(super) fn new(marks: &'static [&'static str]) -> Self {
        Self(MarkFinder::new(marks))
    }

    pub(super) fn push(&mut self, c: char) -> NextText {
        if c.is_whitespace() && self.0.is_idle() {
            return NextText::Blank;
        }
        match self.0.push(c) {
            (Some(mark), _) => NextText::Mark(mark),
            (None, text) if text.is_empty() => NextText::Partial,
            (None, text) => NextText::Other(text + &self.0.take()),
        }
    }

    /// Takes the partial mark.
    pub(super) fn take(&mut self) -> String {
        self.0.take()
    }
}

impl ContentBuffer {
    pub(super) fn new(marks: &'static [&'static str]) -> Self {
        Self {
            finder: MarkFinder::new(marks),
            held: String::new(),
            called: false,
        }
    }

    /// Takes one character of text and returns the index of the mark that it completes. Holds
    /// trailing whitespace back, because whitespace before a call belongs to the call.
    pub(super) fn push(&mut self, c: char, out: &mut OutputDeltas) -> Option<usize> {
        let (found, text) = self.finder.push(c);
        self.held.push_str(&text);
        if let Some(mark) = found {
            self.held.push_str(self.finder.mark(mark));
            return found;
        }
        let end = self.held.trim_end().len();
        if end > 0 {
            out.content(&self.held[..end]);
            self.held.drain(..end);
        }
        None
    }

    /// Holds text that follows a mark.
    pub(super) fn hold(&mut self, text: &str) {
        self.held.push_str(text);
    }

    /// Whether the held text is empty or whitespace.
    pub(super) fn is_blank(&self) -> bool {
        self.held.trim().is_empty() && self.finder.is_idle()
    }

    /// Drops the held text: it belongs to a call.
    pub(super) fn call_started(&mut self) {
        self.held.clear();
        self.called = true;
    }

    /// Emits the held text as content.
    pub(super) fn give_up(&mut self, out: &mut OutputDeltas) {
        out.content(&self.held);
        self.held.clear();
    }

    /// Ends the output. Whitespace after a call is dropped.
    pub(super) fn finish(&mut self, out: &mut OutputDeltas) {
        if !(self.called && self.is_blank()) {
            self.give_up(out);
        }
        out.content(&self.finder.take());
    }
}
