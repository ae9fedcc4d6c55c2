//! The text around calls: looks for the marks that begin one, and keeps back what may belong to it.

use super::OutputDeltas;

/// Looks for one of several marks in what it is given, one character at a time.
#[derive(Debug)]
pub(super) struct MarkFinder {
    marks: &'static [&'static str],
    /// A beginning of a mark that has come.
    held: String,
}

/// Content, up to a mark.
#[derive(Debug)]
pub(super) struct ContentBuffer {
    finder: MarkFinder,
    /// Blanks, a mark and what has come of a call: content, if it turns out to be none.
    held: String,
    /// Whether a call has begun.
    called: bool,
}

impl MarkFinder {
    pub(super) fn new(marks: &'static [&'static str]) -> Self {
        let held = String::new();
        Self { marks, held }
    }

    /// Takes one character. Gives which mark is complete, and the text that belongs to none.
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

    /// The text of a mark.
    pub(super) fn mark(&self, index: usize) -> &'static str {
        self.marks[index]
    }

    /// Whether nothing is kept back.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// What is kept back.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
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

    /// Takes one character of text; says which mark it completes. Blanks are kept back, for those
    /// before a call belong to it.
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

    /// Keeps what comes after a mark.
    pub(super) fn hold(&mut self, text: &str) {
        self.held.push_str(text);
    }

    /// Whether only blanks have been kept back, or nothing.
    pub(super) fn is_blank(&self) -> bool {
        self.held.trim().is_empty() && self.finder.is_idle()
    }

    /// What was kept back is a call.
    pub(super) fn call_started(&mut self) {
        self.held.clear();
        self.called = true;
    }

    /// What was kept back is content.
    pub(super) fn give_up(&mut self, out: &mut OutputDeltas) {
        out.content(&self.held);
        self.held.clear();
    }

    /// The answer is over. Blanks after a call are nothing.
    pub(super) fn finish(&mut self, out: &mut OutputDeltas) {
        if !(self.called && self.is_blank()) {
            self.give_up(out);
        }
        out.content(&self.finder.take());
    }
}
