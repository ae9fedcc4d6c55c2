//! What the engine takes and gives: token ids in, token ids out. Text is made and read elsewhere.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::logits_processors::LogitsProcessors;

/// A validated request: nobody re-checks it after this type exists.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// Token ids of the whole prompt, chat template and truncation applied; never empty.
    pub prompt: Vec<u32>,
    /// How tokens are chosen; travels to the workers.
    pub sampling: Sampling,
    /// When the answer ends; read by the scheduler.
    pub stopping: Stopping,
    /// Answers to make of the one prompt, each with a seed of its own; at least 1.
    pub choices: u32,
    /// Search for the likeliest answers instead of sampling; `choices` of them are told.
    pub beam: Option<BeamParameters>,
    /// Computed blocks are shared only among requests with the same one; empty = the common cache.
    pub cache_salt: Box<str>,
}

/// How beam search goes. The names are those of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParameters {
    /// Sequences that go on from each step.
    pub width: u32,
    /// Answers are ranked by the sum of log-probabilities / length^this: above 0 favours long ones.
    pub length_penalty: f32,
    /// When the search ends before `max_new_tokens`.
    pub early_stopping: EarlyStopping,
    /// Alternatives to tell of each token of an answer; 0 = none. Set when the request is valid.
    pub top_logprobs: u32,
}

/// When a beam search with `width` answers ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When no running sequence, were it to end now, would be better than the worst answer.
    #[default]
    Heuristic,
    /// At once.
    WhenFull,
    /// When no running sequence, however long, could be better than the worst answer.
    Never,
}

/// What the tokens of an answer must spell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarSpec {
    /// What `text` is written in.
    pub kind: GrammarFormat,
    /// What the client calls it; read by error messages.
    pub field: &'static str,
    /// A JSON schema, a regular expression or a grammar, as the client sent it; or calls.
    pub text: String,
    /// Whether the answer is steered to an end before its tokens run out.
    pub complete: bool,
    /// The model's end tokens: what may follow where the text is whole.
    pub end_token_ids: Vec<u32>,
    /// What may come before the text; known when the prompt is.
    pub reasoning: Option<ReasoningMarkers>,
}

/// What a model says to itself before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// What opens and what closes them: text, or a special token.
    pub marks: [&'static str; 2],
    /// Whether the prompt ends inside them.
    pub started: bool,
}

/// What a guide is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarFormat {
    /// A JSON schema: the answer is a document of it.
    JsonSchema,
    /// A regular expression that matches the whole answer.
    Regex,
    /// A grammar in Lark's syntax, or in EBNF with `root ::=`.
    Ebnf,
    /// Tool calls, as proto/README.md describes them.
    ToolCalls,
}

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// Seed of the counter-based generator; chosen by the router when the client gave none.
    pub seed: u64,
    /// What is asked of the logits before.
    pub logits_processors: LogitsProcessors,
    /// What the answer must spell; the workers prepare it before the client hears of success.
    pub grammar: Option<Box<GrammarSpec>>,
    /// What is told beside the tokens; by the same message to the workers.
    pub logprob_options: LogprobOptions,
}

impl Default for Sampling {
    /// All that the model says, at temperature 1.
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

/// Log-probabilities to tell beside those of the chosen tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogprobOptions {
    /// Alternatives of each generated token.
    pub top: u32,
    /// Alternatives of each prompt token, beside its own; `None` = nothing is told of the prompt,
    /// `WHOLE_VOCABULARY` = all there are.
    pub prompt: Option<u32>,
    /// Tokens that are told with each generated token too, however likely; each once.
    pub token_ids: Vec<u32>,
}

/// As many alternatives as there are, in the protocol too.
pub const WHOLE_VOCABULARY: u32 = u32::MAX;

impl Sampling {
    /// The seed of a request's branch: its own for branch 0, so that the first of n answers is the
    /// only answer to the same request without n. For the others one derived by the finalizer of
    /// SplitMix64 (Steele, Lea, Flood 2014), so that branches draw independent noise.
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

/// When an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// At least 1; prompt + this fits the model's limit.
    pub max_new_tokens: u32,
    /// Stop tokens are masked before this many generated tokens.
    pub min_new_tokens: u32,
    /// Tokens that end the answer; empty with `ignore_eos`.
    pub stop_token_ids: Vec<u32>,
}

/// What has come for one request since the last event: everything that is ready together. Nearly
/// always what one step brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenEvent {
    /// New tokens, in order; empty only together with `end` or `told`.
    pub tokens: Tokens,
    /// Set on the last event.
    pub end: Option<End>,
    /// What was asked to be told beside the tokens. Boxed, since it is nearly always absent.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Log-probabilities that a request asks for, beside those of its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// For each token of the event, what might have been in its place; empty if nobody asks.
    pub top_logprobs: Vec<Vec<Candidate>>,
    /// Of the prompt's tokens, from the second on, each after those of earlier events.
    pub prompt: Vec<PromptToken>,
}

/// A token that might stand in some place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability there, before temperature.
    pub logprob: f32,
}

/// What the tokens before a prompt token say of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    /// Natural log of its probability.
    pub logprob: f32,
    /// 1 = it was the likeliest.
    pub rank: u32,
    /// The likeliest tokens in its place, in order.
    pub top: Vec<Candidate>,
}

/// Tokens of one step: nearly always one, so that it costs no allocation.
pub type Tokens = SmallVec<[Token; 2]>;

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability, before temperature.
    pub logprob: f32,
}

/// The first entry of a sequence into a slot: it begins to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Instant,
    /// Leading prompt tokens that were found in the prefix cache.
    pub cached_tokens: u32,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `max_new_tokens` reached.
    Length,
    /// The last token is a stop token.
    StopToken,
    /// The request failed after it had begun; the message is for the client.
    Failed(String),
}

impl Logprobs {
    /// Joins what came later.
    pub(super) fn extend(&mut self, later: Self) {
        self.top_logprobs.extend(later.top_logprobs);
        self.prompt.extend(later.prompt);
    }

    /// Takes what belongs to the first `tokens` tokens, and all that is told of the prompt.
    pub(super) fn split_off_front(&mut self, tokens: usize) -> Self {
        Self {
            top_logprobs: self
                .top_logprobs
                .drain(..tokens.min(self.top_logprobs.len()))
                .collect(),
            prompt: std::mem::take(&mut self.prompt),
        }
    }
}

/// Why a request was not begun. Nothing has been sent to the client yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("Model is overloaded")]
    Overloaded {
        /// When to try again, from the backlog.
        retry_after: Duration,
    },
    /// No worker can step now (loading, restarting).
    #[error("{reason}")]
    Unavailable {
        /// What is going on, for people.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The server drains.
    #[error("server is shutting down")]
    Draining,
    /// Worker or scheduler found the request itself impossible.
    #[error("{0}")]
    Invalid(String),
    /// Preparing it failed on our side.
    #[error("{0}")]
    Internal(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 from the state 0, as its authors' program prints them.
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
