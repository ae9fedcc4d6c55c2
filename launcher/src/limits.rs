//! Limits of the HTTP server that only TGI's launcher has flags for.

use std::num::NonZeroUsize;

use penstock_http::RouterConfig;
use penstock_request::RequestLimits;
use penstock_text::TextConfig;

/// Limits without a flag of `penstock serve`. The table of `penstock tgi` sets them; the router's
/// configuration uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tokenizer threads.
    pub tokenizer_threads: Option<NonZeroUsize>,
    /// The maximum number of choices per prompt.
    pub max_best_of: Option<u32>,
    /// The maximum number of top logprobs per token.
    pub max_top_tokens: Option<u32>,
    /// Whether requests with a grammar are refused.
    pub no_grammars: bool,
    /// The maximum number of stop strings per request.
    pub max_stop_sequences: Option<usize>,
    /// The maximum number of prompt tokens.
    pub max_input_tokens: Option<usize>,
    /// The maximum number of prompts per completion request.
    pub max_client_batch_size: Option<usize>,
    /// The maximum size of a request's body in bytes.
    pub max_body_bytes: Option<usize>,
}

impl Limits {
    /// Returns `config` with these limits.
    pub fn apply(&self, config: RouterConfig) -> RouterConfig {
        let text = config.text;
        let limits = RequestLimits {
            max_best_of: self.max_best_of.unwrap_or(text.limits.max_best_of),
            max_top_tokens: self.max_top_tokens.unwrap_or(text.limits.max_top_tokens),
            structured_output: text.limits.structured_output && !self.no_grammars,
            max_stop_sequences: self
                .max_stop_sequences
                .unwrap_or(text.limits.max_stop_sequences),
            max_input_tokens: self.max_input_tokens.or(text.limits.max_input_tokens),
            ..text.limits
        };
        RouterConfig {
            text: TextConfig {
                limits,
                tokenizer_threads: self.tokenizer_threads.unwrap_or(text.tokenizer_threads),
                ..text
            },
            max_client_batch_size: self
                .max_client_batch_size
                .unwrap_or(config.max_client_batch_size),
            max_body_bytes: self.max_body_bytes.unwrap_or(config.max_body_bytes),
            ..config
        }
    }
}
