//! The output of a step as text, and facts about its request.

use std::cmp::Ordering;

use penstock_request::logprobs::LogprobRequest;
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
    /// Length in bytes of the content: `text` without that stop string, unless it is part of the output.
    pub content_len: usize,
    /// Bytes of `text` before that stop string, or all of them.
    pub stop_start: usize,
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

/// Facts about a request that are known when its output begins, and its token counts so far.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationFacts {
    /// Prompt tokens, as the model gets them.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache; known once the first event has arrived.
    pub cached_tokens: usize,
    /// Tokens generated so far, including a stop token.
    pub generated_tokens: u32,
    /// Seed; `None` for greedy sampling.
    pub seed: Option<u64>,
    /// Last generated token; 0 before the first.
    pub last_token: u32,
    /// Sum of the generated tokens' logprobs.
    pub logprob_sum: f64,
    /// Index of this choice in its request.
    pub choice: u32,
    /// Requested logprobs.
    pub logprob_request: LogprobRequest,
    pub(super) min_new_tokens: u32,
    pub(super) prompt_only: bool,
}

/// Token usage of a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Prompt tokens.
    pub prompt: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached: usize,
    /// Generated tokens, including a stop token.
    pub generated: u32,
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

    /// Returns the stop string that ended the text.
    pub fn stop_string(&self) -> Option<&str> {
        (self.reason == FinishReason::StopString).then(|| &self.text[self.stop_start..])
    }
}

impl GenerationFacts {
    /// Returns the tokens to bill. The first choice of a request is billed for the prompt of all.
    pub fn usage(&self) -> TokenUsage {
        match self.choice {
            0 => self.own_usage(),
            _ => TokenUsage {
                generated: self.generated_tokens,
                ..TokenUsage::default()
            },
        }
    }

    /// Returns the tokens of this choice and of its prompt.
    pub fn own_usage(&self) -> TokenUsage {
        TokenUsage {
            prompt: self.prompt_tokens,
            cached: self.cached_tokens,
            generated: self.generated_tokens,
        }
    }

    /// Orders choices by the mean logprob of their tokens, best first.
    pub fn cmp_by_mean_logprob(&self, other: &Self) -> Ordering {
        other.mean_logprob().total_cmp(&self.mean_logprob())
    }

    fn mean_logprob(&self) -> f64 {
        self.logprob_sum / f64::from(self.generated_tokens.max(1))
    }
}
