//! The output of a step as text.

use penstock_request::types::Candidate;

/// The output of one step as text. Can be reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextEvent {
    /// New tokens, in order; empty only with `end`.
    pub tokens: Vec<TextToken>,
    /// Set on the last event.
    pub end: Option<TextEnd>,
    /// Candidates at each of the tokens; empty if not requested.
    pub top_logprobs: Vec<Vec<Candidate>>,
    pub(super) text: String,
    pub(super) delta: String,
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextToken {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability.
    pub logprob: f32,
    /// Whether it is a special token, whose text is not part of the output.
    pub special: bool,
    pub(super) text_end: usize,
    pub(super) delta_end: usize,
}

/// The end of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEnd {
    /// Why it ended.
    pub reason: FinishReason,
    /// The whole text, including the stop string that ended it.
    pub text: String,
    /// Length in bytes of the content: `text` without that stop string.
    pub content_len: usize,
}

/// Why the output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The maximum number of tokens.
    Length,
    /// One of the model's end tokens.
    StopToken,
    /// A stop string.
    StopString,
}

impl TextEvent {
    /// Yields each token with its own text and its delta: the text that may be shown since the
    /// token before, as whole characters that cannot become part of a stop string.
    pub fn tokens(&self) -> impl Iterator<Item = (&TextToken, &str, &str)> {
        let starts = std::iter::once((0, 0)).chain(
            self.tokens
                .iter()
                .map(|token| (token.text_end, token.delta_end)),
        );
        self.tokens
            .iter()
            .zip(starts)
            .map(|(token, (text, delta))| {
                (
                    token,
                    &self.text[text..token.text_end],
                    &self.delta[delta..token.delta_end],
                )
            })
    }

    /// Returns the candidates at token `index`.
    pub fn top(&self, index: usize) -> &[Candidate] {
        self.top_logprobs.get(index).map_or(&[], Vec::as_slice)
    }

    /// Returns the text of this event that may be shown.
    pub fn delta(&self) -> &str {
        &self.delta
    }

    /// Returns the part of the delta after the last token; only an end without tokens has one.
    pub fn rest(&self) -> &str {
        &self.delta[self.tokens.last().map_or(0, |token| token.delta_end)..]
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.top_logprobs.clear();
        self.text.clear();
        self.delta.clear();
        self.end = None;
    }
}

impl TextToken {
    /// Creates a token without text, for an end without tokens.
    pub fn special(id: u32) -> Self {
        Self {
            id,
            logprob: 0.0,
            special: true,
            text_end: 0,
            delta_end: 0,
        }
    }
}

impl TextEnd {
    /// Returns the text without the stop string that ended it.
    pub fn content(&self) -> &str {
        &self.text[..self.content_len]
    }
}
