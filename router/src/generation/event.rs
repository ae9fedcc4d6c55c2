//! What a step brought, as text.

use crate::engine::types::Candidate;

/// What one step brought, as text. One value may be filled again and again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextEvent {
    /// In order; empty only beside `end`.
    pub tokens: Vec<TextToken>,
    /// Set on the last event.
    pub end: Option<TextEnd>,
    /// For each of the tokens, what might have been in its place; empty unless asked for.
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
    /// Whether it is a special token, whose text is not part of the answer.
    pub special: bool,
    pub(super) text_end: usize,
    pub(super) delta_end: usize,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEnd {
    /// Why it ended.
    pub reason: FinishReason,
    /// All of it, up to the end of the stop string that ended it.
    pub text: String,
    /// Bytes of `text` before that stop string.
    pub content_len: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// As many tokens as allowed.
    Length,
    /// One of the model's end tokens.
    StopToken,
    /// A stop string.
    StopString,
}

impl TextEvent {
    /// Each token with its own text, and with the part of the answer that may be shown since the
    /// token before it: whole characters that cannot become part of a stop string.
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

    /// What might have been in the place of token `index`.
    pub fn top(&self, index: usize) -> &[Candidate] {
        self.top_logprobs.get(index).map_or(&[], Vec::as_slice)
    }

    /// What the event adds to the answer that may be shown.
    pub fn delta(&self) -> &str {
        &self.delta
    }

    /// What of the delta belongs to no token: there is some only in an end without tokens.
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
    /// A token without text, for an end that brings no token.
    pub(crate) fn special(id: u32) -> Self {
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
    /// The answer without the stop string that ended it.
    pub fn content(&self) -> &str {
        &self.text[..self.content_len]
    }
}
