//! What a request asks to be told of probabilities, and the rules about it.

use crate::engine::types::{Candidate, LogprobOptions, WHOLE_VOCABULARY};
use crate::error::ApiError;
use crate::validate::range::Range;

/// Most alternatives that are told of one token: the workers' limit.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Most tokens whose log-probabilities are told by name: the workers' limit.
pub(crate) const MAX_LOGPROB_TOKEN_IDS: usize = 128;

/// Most log-probabilities told of one prompt, alternatives included: a bound on what an answer
/// holds in memory, and on its length.
const MAX_PROMPT_LOGPROBS: u64 = 1 << 20;

/// What an answer tells beside its text and, always at hand, the log-probability of each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobRequest {
    /// Log-probabilities of tokens, with so many alternatives; `None` = not told.
    pub tokens: Option<u32>,
    /// The prompt stands before the answer; with `tokens`, its log-probabilities too.
    pub echo: bool,
    /// Log-probabilities of the prompt's tokens by themselves, with so many alternatives.
    pub prompt: Option<u32>,
    /// The ids of the tokens of prompt and answer.
    pub ids: bool,
    /// How tokens are written beside their log-probabilities.
    pub names: TokenNames,
}

/// How tokens are written beside their log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenNames {
    /// As their texts.
    #[default]
    Texts,
    /// As `token_id:` and their id.
    Ids,
}

/// A token in some place, and where it stands among all that might be there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedToken {
    /// Vocabulary id.
    pub id: u32,
    /// Natural log of its probability, as it is shown.
    pub logprob: f32,
    /// 1 = the likeliest; `None` = less likely than all that were asked for.
    pub rank: Option<u32>,
}

/// The least log-probability that is shown, as OpenAI has it: JSON knows no infinity.
const MIN_LOGPROB: f32 = -9999.0;

/// How many alternatives may be asked for, `most` by configuration.
pub(crate) const fn range(most: u32) -> Range<u32> {
    Range::new(0, most)
}

/// A log-probability as it is shown.
pub fn clamp_logprob(logprob: f32) -> f32 {
    logprob.max(MIN_LOGPROB)
}

/// The likely tokens in some place and `own`, the one that is there; the likeliest first. `rank` is
/// that one's, if it is known.
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
    /// What `return_tokens_as_token_ids` asks for.
    pub(crate) fn from_flag(ids: Option<bool>) -> Self {
        match ids {
            Some(true) => Self::Ids,
            _ => Self::Texts,
        }
    }
}

impl LogprobRequest {
    /// What the workers are to tell.
    pub fn logprob_options(self) -> LogprobOptions {
        let echoed = self.tokens.filter(|_| self.echo);
        LogprobOptions {
            top: self.tokens.unwrap_or(0),
            prompt: echoed.max(self.prompt),
            token_ids: Vec::new(),
        }
    }

    /// Whether anything about the prompt's tokens is told.
    pub fn includes_prompt(self) -> bool {
        self.echo || self.prompt.is_some() || self.ids
    }

    /// Fails if there are more than `most` alternatives. `name` is the client's for those of `tokens`.
    pub(crate) fn check(self, name: &'static str, most: u32) -> Result<(), ApiError> {
        let prompt = self.prompt.filter(|&count| count != WHOLE_VOCABULARY);
        for (name, count) in [(name, self.tokens), ("prompt_logprobs", prompt)] {
            range(most).check(name, count.unwrap_or(0))?;
        }
        Ok(())
    }

    /// Fails if of a prompt of so many tokens too much would be told, to each of so many answers.
    /// `prompt` is its name, `vocabulary` how many tokens there are.
    pub(crate) fn check_prompt(
        self,
        prompt: &'static str,
        (tokens, answers): (usize, u32),
        vocabulary: usize,
    ) -> Result<(), ApiError> {
        let Some(top) = self.logprob_options().prompt else {
            return Ok(());
        };
        let top = u64::from(top).min(vocabulary as u64);
        let each = (top + 1) * u64::from(answers.max(1));
        if tokens as u64 * each <= MAX_PROMPT_LOGPROBS {
            return Ok(());
        }
        let most = MAX_PROMPT_LOGPROBS / each;
        let rule = format!(
            "`{prompt}` must have at most {most} tokens if {each} log-probabilities are told of \
             each. Given: {tokens}"
        );
        Err(ApiError::validation(prompt, rule))
    }
}
