//! Input and output of the engine: token ids in, token ids out. Text is handled elsewhere.

use std::time::Instant;

use smallvec::SmallVec;

pub use crate::error::SubmitError;
use crate::grammar_spec::GrammarSpec;
use crate::sampling_params::SamplingParams;

/// A validated request; no later code validates it again.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// Token ids of the whole prompt, with chat template and truncation applied; never empty.
    pub prompt: Vec<u32>,
    /// Sampling parameters; sent to the workers.
    pub sampling: SamplingParams,
    /// Constraint on the output; the workers prepare it before the request is accepted.
    pub grammar: Option<Box<GrammarSpec>>,
    /// Stopping conditions; used by the scheduler.
    pub stopping: Stopping,
    /// Choices to generate from the prompt, each with its own seed; at least 1.
    pub choices: u32,
    /// Beam search in place of sampling; returns its best `choices` hypotheses.
    pub beam: Option<BeamParameters>,
    /// Prefix-cache salt: only requests with the same one share computed blocks; empty = the common
    /// cache.
    pub cache_salt: Box<str>,
    /// Order among the waiting requests of a tenant, smaller first.
    pub priority: i32,
}

impl EngineRequest {
    /// Returns how many top logprobs per token the workers return: at least the candidates that
    /// beam search needs.
    #[must_use]
    pub fn worker_top_logprobs(&self) -> u32 {
        let ends = self.stopping.stop_token_ids.len();
        let candidates = self.beam.map_or(0, |beam| beam.candidate_count(ends));
        let candidates = u32::try_from(candidates).unwrap_or(u32::MAX);
        self.sampling.top_logprobs.max(candidates)
    }
}

/// Parameters of beam search. The names are those of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParameters {
    /// Beams kept at each step.
    pub width: u32,
    /// Exponent of the length penalty: hypotheses are ranked by sum of logprobs / length^this.
    /// Above 0 favours long ones.
    pub length_penalty: f32,
    /// When the search may end before `max_new_tokens`.
    pub early_stopping: EarlyStopping,
}

impl BeamParameters {
    /// Returns how many candidates per sequence can matter: at least `width` of them do not end.
    #[must_use]
    pub fn candidate_count(&self, end_tokens: usize) -> usize {
        self.width as usize + end_tokens
    }
}

/// When a beam search that has `width` finished hypotheses ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When no running beam, if it ended now, would beat the worst finished hypothesis.
    #[default]
    Heuristic,
    /// Immediately.
    WhenFull,
    /// When no running beam, at any length, could beat the worst finished hypothesis.
    Never,
}

/// Stopping conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// At least 1; prompt + this fits the model's limit.
    pub max_new_tokens: u32,
    /// Generated tokens before which stop tokens are masked.
    pub min_new_tokens: u32,
    /// Tokens that end the output; empty with `ignore_eos`.
    pub stop_token_ids: Vec<u32>,
}

/// Output of one choice since its last event. Nearly always the output of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenEvent {
    /// New tokens, in order; empty only together with `end` or `logprobs`.
    pub tokens: Tokens,
    /// Set on the last event.
    pub end: Option<End>,
    /// Requested logprobs. Boxed, since they are nearly always absent.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Logprobs of an event, in addition to those of its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Candidates at each token of the event; empty if not requested.
    pub top_logprobs: Vec<Vec<Candidate>>,
    /// Logprobs of prompt tokens, from the second token on; each event continues where the last
    /// ended.
    pub prompt: Vec<PromptToken>,
}

/// A candidate for a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability at that position, before temperature.
    pub logprob: f32,
}

/// Logprobs of a prompt token, given the tokens before it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    /// Natural log of its probability.
    pub logprob: f32,
    /// 1-based rank; 1 = the most likely token.
    pub rank: u32,
    /// The most likely tokens at its position, in order.
    pub top: Vec<Candidate>,
}

/// Tokens of one step. Nearly always one, which costs no allocation.
pub type Tokens = SmallVec<[Token; 2]>;

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability, before temperature.
    pub logprob: f32,
}

/// A sequence's first entry into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it entered.
    pub at: Instant,
    /// Leading prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
}

/// Why the output ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `max_new_tokens` reached.
    Length,
    /// The last token is a stop token.
    StopToken,
    /// The request failed after it had started; the message is for the client.
    Failed(String),
    /// The request's deadline passed; the message is for the client.
    DeadlinePassed(String),
}

impl Logprobs {
    /// Appends later logprobs.
    pub fn extend(&mut self, later: Self) {
        self.top_logprobs.extend(later.top_logprobs);
        self.prompt.extend(later.prompt);
    }

    /// Removes and returns the logprobs of the first `tokens` tokens, and all prompt logprobs.
    pub fn split_off_front(&mut self, tokens: usize) -> Self {
        Self {
            top_logprobs: self
                .top_logprobs
                .drain(..tokens.min(self.top_logprobs.len()))
                .collect(),
            prompt: std::mem::take(&mut self.prompt),
        }
    }
}
