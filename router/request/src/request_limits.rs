//! The configured limits of requests.

use crate::logprobs::MAX_TOP_LOGPROBS;
use crate::sampling_params::Watermark;

/// Limits of requests and what they may use. The launcher sets every field.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLimits {
    /// Maximum stop strings per request.
    pub max_stop_sequences: usize,
    /// Maximum choices per prompt: the largest `n` and `best_of`.
    pub max_best_of: u32,
    /// Maximum top logprobs per token: at most `logprobs::MAX_TOP_LOGPROBS`.
    pub max_top_tokens: u32,
    /// Whether requests may use structured output.
    pub structured_output: bool,
    /// Maximum prompt tokens; `None` = limited by the context only.
    pub max_input_tokens: Option<usize>,
    /// Maximum tokens of prompt plus output; `None` = the limit of the model and the KV pool.
    pub max_total_tokens: Option<usize>,
    /// Watermark for requests that ask for one.
    pub watermark: Watermark,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            max_stop_sequences: 16,
            max_best_of: 32,
            max_top_tokens: MAX_TOP_LOGPROBS,
            structured_output: true,
            max_input_tokens: None,
            max_total_tokens: None,
            watermark: Watermark::default(),
        }
    }
}
