//! The logprobs of a step's reply.

use std::ops::Range;

use penstock_request::types::{Candidate, PromptToken};
use penstock_scheduler::ids::RequestId;

use crate::generated::v1;

/// Requested logprobs of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLogprobs {
    /// Logprobs of candidates at the generated tokens.
    pub top_logprobs: TopLogprobs,
    /// Logprobs of prompt tokens.
    pub prompts: Vec<PromptLogprobs>,
}

/// The candidates at each token of an outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprobs {
    /// For each token, the end index of its candidates; empty if none were requested.
    ends: Vec<usize>,
    candidates: Vec<Candidate>,
}

/// Logprobs of consecutive prompt tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogprobs {
    /// The request of the prompt.
    pub request: RequestId,
    /// Position of the first token.
    pub start: u32,
    /// Logprobs from that position on.
    pub tokens: Vec<PromptToken>,
}

impl TopLogprobs {
    /// Returns the candidates at each token of a range of the outcome. Candidates of probability 0
    /// are dropped unless the client `named` them. `None` if there are no candidates.
    pub fn for_tokens(&self, tokens: Range<usize>, named: &[u32]) -> Option<Vec<Vec<Candidate>>> {
        let ends = self.ends.get(tokens.clone())?;
        let mut start = match tokens.start {
            0 => 0,
            first => self.ends[first - 1],
        };
        if ends.last().is_none_or(|&end| end == start) {
            return None;
        }
        let candidates_until = |&end: &usize| {
            let candidates = &self.candidates[start..end];
            start = end;
            // A token of probability 0 is no alternative, but the client may have requested its
            // logprob.
            let is_shown = |c: &&Candidate| c.logprob.is_finite() || named.contains(&c.id);
            candidates.iter().filter(is_shown).copied().collect()
        };
        Some(ends.iter().map(candidates_until).collect())
    }
}

/// Whether a reply has more logprobs than those of its tokens.
pub(super) fn has_logprobs(reply: &v1::StepReply) -> bool {
    !reply.top_counts.is_empty() || !reply.prompt_logprobs.is_empty()
}

/// Parses the logprobs of a reply after checking that its arrays fit together.
pub(super) fn parse_logprobs(reply: &mut v1::StepReply) -> Result<Box<StepLogprobs>, String> {
    let top_logprobs = top_logprobs(reply)?;
    let prompts = std::mem::take(&mut reply.prompt_logprobs).into_iter();
    let prompts = prompts
        .map(|part| prompt_logprobs(&part))
        .collect::<Result<_, _>>()?;
    Ok(Box::new(StepLogprobs {
        top_logprobs,
        prompts,
    }))
}

fn top_logprobs(reply: &v1::StepReply) -> Result<TopLogprobs, String> {
    let (counts, tokens) = (reply.top_counts.len(), reply.token_ids.len());
    let sum: u64 = reply.top_counts.iter().map(|&count| u64::from(count)).sum();
    let (ids, logprobs) = (reply.top_token_ids.len(), reply.top_logprobs.len());
    if (counts > 0 && counts != tokens) || ids as u64 != sum || logprobs != ids {
        return Err(format!(
            "a StepReply of {tokens} tokens has {counts} top_counts with the sum {sum}, \
             {ids} top_token_ids and {logprobs} top_logprobs"
        ));
    }
    let ends = reply.top_counts.iter().scan(0, |end, &count| {
        *end += count as usize;
        Some(*end)
    });
    Ok(TopLogprobs {
        ends: ends.collect(),
        candidates: candidates(&reply.top_token_ids, &reply.top_logprobs).collect(),
    })
}

fn prompt_logprobs(part: &v1::PromptLogprobs) -> Result<PromptLogprobs, String> {
    let (tokens, ranks) = (part.logprobs.len(), part.ranks.len());
    let (ids, logprobs) = (part.top_token_ids.len(), part.top_logprobs.len());
    let (top, whole) = (part.top as usize, tokens as u64 * u64::from(part.top));
    if ranks != tokens || ids as u64 != whole || logprobs != ids || part.start == 0 {
        return Err(format!(
            "PromptLogprobs from position {} on have {tokens} logprobs, {ranks} ranks, {top} top, \
             {ids} top_token_ids and {logprobs} top_logprobs",
            part.start
        ));
    }
    let rows = part.logprobs.iter().zip(&part.ranks).enumerate();
    let tokens = rows.map(|(at, (&logprob, &rank))| {
        let range = at * top..(at + 1) * top;
        let top = candidates(
            &part.top_token_ids[range.clone()],
            &part.top_logprobs[range],
        );
        PromptToken {
            logprob,
            rank,
            top: top.collect(),
        }
    });
    Ok(PromptLogprobs {
        request: RequestId(part.request_id),
        start: part.start,
        tokens: tokens.collect(),
    })
}

fn candidates<'a>(ids: &'a [u32], logprobs: &'a [f32]) -> impl Iterator<Item = Candidate> + 'a {
    let pairs = ids.iter().zip(logprobs);
    pairs.map(|(&id, &logprob)| Candidate { id, logprob })
}
