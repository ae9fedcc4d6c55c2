//! Input and output of the engine: token ids in, token ids out. Text is handled elsewhere.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::logits_processors::LogitsProcessors;

/// A validated request; no later code validates it again.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// Token ids of the whole prompt, with chat template and truncation applied; never empty.
    pub prompt: Vec<u32>,
    /// Sampling parameters; sent to the workers.
    pub sampling: Sampling,
    /// Stopping conditions; used by the scheduler.
    pub stopping: Stopping,
    /// Choices to generate from the prompt, each with its own seed; at least 1.
    pub choices: u32,
    /// Beam search in place of sampling; returns its best `choices` hypotheses.
    pub beam: Option<BeamParameters>,
    /// Prefix-cache salt: only requests with the same one share computed blocks; empty = the common
    /// cache.
    pub cache_salt: Box<str>,
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
    /// Top logprobs to return for each generated token; 0 = none. Set by validation.
    pub top_logprobs: u32,
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

/// A constraint on the output text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarSpec {
    /// The format of `text`.
    pub kind: GrammarFormat,
    /// The client's field that holds it; named in error messages.
    pub field: &'static str,
    /// A JSON schema, a regular expression or a grammar, as the client sent it; or tool calls.
    pub text: String,
    /// Whether the output is forced to complete before its tokens run out.
    pub complete: bool,
    /// The model's end tokens, allowed where the text is complete.
    pub end_token_ids: Vec<u32>,
    /// Markers of the reasoning that may precede the text; known once the prompt is rendered.
    pub reasoning: Option<ReasoningMarkers>,
}

/// The markers around a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Opening and closing marker: text, or a special token.
    pub marks: [&'static str; 2],
    /// Whether the prompt ends inside the reasoning.
    pub started: bool,
}

/// The format of a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarFormat {
    /// A JSON schema; the output is a document that matches it.
    JsonSchema,
    /// A regular expression that matches the whole output.
    Regex,
    /// A grammar in Lark's syntax, or in EBNF with `root ::=`.
    Ebnf,
    /// Tool calls, as proto/README.md describes them.
    ToolCalls,
}

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// Seed of the counter-based generator; chosen by the router if the client gave none.
    pub seed: u64,
    /// Logits processors: penalties, bias, masks and filters applied before sampling.
    pub logits_processors: LogitsProcessors,
    /// Constraint on the output; the workers prepare it before the request is accepted.
    pub grammar: Option<Box<GrammarSpec>>,
    /// Which logprobs to return; sent to the workers in the same message.
    pub logprob_options: LogprobOptions,
}

impl Default for Sampling {
    /// Samples from the model's distribution at temperature 1.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            logits_processors: LogitsProcessors::default(),
            grammar: None,
            logprob_options: LogprobOptions::default(),
        }
    }
}

/// Logprobs to return in addition to those of the generated tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogprobOptions {
    /// Top logprobs for each generated token.
    pub top: u32,
    /// Top logprobs for each prompt token, in addition to its own; `None` = no prompt logprobs,
    /// `WHOLE_VOCABULARY` = all.
    pub prompt: Option<u32>,
    /// Tokens whose logprobs are returned at each generated token, whatever their rank; no
    /// duplicates.
    pub token_ids: Vec<u32>,
}

/// Requests the logprobs of the whole vocabulary; also in the protocol.
pub const WHOLE_VOCABULARY: u32 = u32::MAX;

impl Sampling {
    /// Returns the seed of a choice. Choice 0 uses the request's own seed, so that the first of n
    /// choices equals the only choice of the same request without n. Other seeds are derived by the
    /// finalizer of SplitMix64 (Steele, Lea, Flood 2014), so that choices draw independent noise.
    #[must_use]
    pub fn choice_seed(&self, choice: u32) -> u64 {
        if choice == 0 {
            return self.seed;
        }
        let step = u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed.wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
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

/// Why a request was refused. Nothing has been sent to the client yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("Model is overloaded")]
    Overloaded {
        /// Retry-after hint, estimated from the backlog.
        retry_after: Duration,
    },
    /// No worker can step now (loading, restarting).
    #[error("{reason}")]
    Unavailable {
        /// Explanation for people.
        reason: String,
        /// Retry-after hint.
        retry_after: Duration,
    },
    /// The server is draining.
    #[error("server is shutting down")]
    Draining,
    /// The worker or the scheduler rejected the request itself.
    #[error("{0}")]
    Invalid(String),
    /// Preparing the request failed, and the request is not to blame.
    #[error("{0}")]
    Internal(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 from state 0, as its authors' program prints them.
    #[test]
    fn seeds_of_choices_are_the_outputs_of_splitmix64() {
        let sampling = Sampling::default();
        let seeds = [0, 1, 2, 3].map(|choice| sampling.choice_seed(choice));
        let outputs = [
            0,
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
        ];
        assert_eq!(seeds, outputs);
    }
}
