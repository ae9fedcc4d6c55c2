//! What is known of a request while it is answered.

use std::cmp::Ordering;

use crate::logprobs::LogprobRequest;

/// What is known of a request when its answer begins, and how many tokens it has by now.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationFacts {
    /// Tokens of the prompt as the model gets it.
    pub prompt_tokens: usize,
    /// Of these, found in the prefix cache; known once the first event has come.
    pub cached_tokens: usize,
    /// Generated so far, a stop token included.
    pub generated_tokens: u32,
    /// `None` if the answer is greedy.
    pub seed: Option<u64>,
    /// The token generated last; 0 before the first.
    pub last_token: u32,
    /// Sum of the generated tokens' log-probabilities.
    pub logprob_sum: f64,
    /// Which of the answers to its request it is.
    pub choice: u32,
    /// What the answer tells of probabilities.
    pub logprob_request: LogprobRequest,
    pub(super) min_new_tokens: u32,
    pub(super) prompt_only: bool,
}

/// Tokens that an answer has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of these, found in the prefix cache.
    pub cached: usize,
    /// Generated, a stop token included.
    pub generated: u32,
}

impl GenerationFacts {
    /// Tokens to pay for. The first of a request's answers pays for the prompt of all of them.
    pub fn usage(&self) -> TokenUsage {
        match self.choice {
            0 => self.own_usage(),
            _ => TokenUsage {
                generated: self.generated_tokens,
                ..TokenUsage::default()
            },
        }
    }

    /// Tokens of this answer and of its prompt.
    pub fn own_usage(&self) -> TokenUsage {
        TokenUsage {
            prompt: self.prompt_tokens,
            cached: self.cached_tokens,
            generated: self.generated_tokens,
        }
    }

    /// Orders the better of two answers first: by the mean log-probability of their tokens.
    pub fn cmp_by_mean_logprob(&self, other: &Self) -> Ordering {
        other.mean_logprob().total_cmp(&self.mean_logprob())
    }

    fn mean_logprob(&self) -> f64 {
        self.logprob_sum / f64::from(self.generated_tokens.max(1))
    }
}
