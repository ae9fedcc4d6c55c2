//! Facts about a request while it runs.

use std::cmp::Ordering;

use penstock_request::logprobs::LogprobRequest;

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
