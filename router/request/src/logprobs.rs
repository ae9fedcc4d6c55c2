//! The logprob options of a request; `validate` has their rules.

use crate::range::Range;
use crate::types::Candidate;

/// Maximum top logprobs per token: the workers' limit.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Maximum tokens whose logprobs are requested by id: the workers' limit.
pub const MAX_LOGPROB_TOKEN_IDS: usize = 128;

/// The logprobs that a response includes. The logprob of each token itself is always available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobRequest {
    /// Top logprobs per token; `None` = no logprobs.
    pub tokens: Option<u32>,
    /// Whether the response echoes the prompt; with `tokens`, also its logprobs.
    pub echo: bool,
    /// Top logprobs per prompt token, independent of echo; `None` = no prompt logprobs.
    pub prompt: Option<u32>,
    /// Whether the response includes the token ids of prompt and output.
    pub ids: bool,
    /// How logprobs name tokens.
    pub names: TokenNames,
}

/// How logprobs name tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenNames {
    /// By their texts.
    #[default]
    Texts,
    /// By `token_id:` and the id.
    Ids,
}

/// A candidate at a position, with its rank among all tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedToken {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability, clamped for display.
    pub logprob: f32,
    /// 1-based rank; 1 = the most likely token; `None` = below all requested candidates.
    pub rank: Option<u32>,
}

/// The smallest logprob that is returned, as with OpenAI: JSON has no infinity.
const MIN_LOGPROB: f32 = -9999.0;

/// Returns the allowed numbers of top logprobs; `most` comes from the configuration.
pub const fn range(most: u32) -> Range<u32> {
    Range::new(0, most)
}

/// Clamps a logprob for display.
pub fn clamp_logprob(logprob: f32) -> f32 {
    logprob.max(MIN_LOGPROB)
}

/// Merges the actual token `own` into the top candidates at its position, most likely first. `rank`
/// is the rank of `own`, if known.
pub fn rank_candidates(own: Candidate, rank: Option<u32>, top: &[Candidate]) -> Vec<RankedToken> {
    let entry = |candidate: Candidate, rank| RankedToken {
        id: candidate.id,
        logprob: clamp_logprob(candidate.logprob),
        rank,
    };
    let places = top.iter().zip(1..);
    let found = places.clone().find(|(c, _)| c.id == own.id);
    let rank = rank.or(found.map(|(_, place)| place));
    let likely = places.filter(|(c, _)| c.id != own.id);
    let mut entries: Vec<_> = likely.map(|(&c, place)| entry(c, Some(place))).collect();
    let before = |other: &RankedToken| rank.is_none_or(|rank| other.rank < Some(rank));
    entries.insert(entries.partition_point(before), entry(own, rank));
    entries
}

impl TokenNames {
    /// Converts `return_tokens_as_token_ids`.
    pub fn from_flag(ids: Option<bool>) -> Self {
        match ids {
            Some(true) => Self::Ids,
            _ => Self::Texts,
        }
    }
}

impl LogprobRequest {
    /// Returns the top logprobs for each prompt token that the workers return.
    pub(crate) fn prompt_logprobs(self) -> Option<u32> {
        self.tokens.filter(|_| self.echo).max(self.prompt)
    }

    /// Whether the response includes anything about the prompt's tokens.
    pub fn includes_prompt(self) -> bool {
        self.echo || self.prompt.is_some() || self.ids
    }
}
