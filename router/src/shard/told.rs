//! What a step's reply tells beside tokens: log-probabilities that somebody asked for.

use std::ops::Range;

use penstock_scheduler::ids::RequestId;

use crate::{
    engine::types::{Candidate, PromptToken},
    generated::v1,
};

/// Log-probabilities of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTold {
    /// For the generated tokens.
    pub tops: Tops,
    /// For tokens of prompts.
    pub prompts: Vec<PromptPart>,
}

/// What might have been in the place of each token of an outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tops {
    /// For each token, one past its last candidate; empty if nobody asks.
    ends: Vec<usize>,
    candidates: Vec<Candidate>,
}

/// What a run tells of prompt tokens that follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptPart {
    /// Whose prompt.
    pub request: RequestId,
    /// Position of the first.
    pub start: u32,
    /// From there on.
    pub tokens: Vec<PromptToken>,
}

impl Tops {
    /// For a range of the outcome's tokens, the likely ones in the place of each, and those that the
    /// client `named`. `None` if there are none.
    pub fn of(&self, tokens: Range<usize>, named: &[u32]) -> Option<Vec<Vec<Candidate>>> {
        let ends = self.ends.get(tokens.clone())?;
        let mut start = match tokens.start {
            0 => 0,
            first => self.ends[first - 1],
        };
        if ends.last().is_none_or(|&end| end == start) {
            return None;
        }
        let of = |&end: &usize| {
            let candidates = &self.candidates[start..end];
            start = end;
            // An impossible token is no alternative, but the client may have asked about it.
            let told = |c: &&Candidate| c.logprob.is_finite() || named.contains(&c.id);
            candidates.iter().filter(told).copied().collect()
        };
        Some(ends.iter().map(of).collect())
    }
}

/// Takes what a reply tells, after checking that its arrays fit together.
pub(super) fn step_told(reply: &mut v1::StepReply) -> Result<Option<Box<StepTold>>, String> {
    if reply.top_counts.is_empty() && reply.prompts.is_empty() {
        return Ok(None);
    }
    let tops = tops(reply)?;
    let prompts = std::mem::take(&mut reply.prompts).into_iter();
    let prompts = prompts
        .map(|part| prompt_part(&part))
        .collect::<Result<_, _>>()?;
    Ok(Some(Box::new(StepTold { tops, prompts })))
}

fn tops(reply: &v1::StepReply) -> Result<Tops, String> {
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
    Ok(Tops {
        ends: ends.collect(),
        candidates: candidates(&reply.top_token_ids, &reply.top_logprobs).collect(),
    })
}

fn prompt_part(part: &v1::PromptLogprobs) -> Result<PromptPart, String> {
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
    let told = part.logprobs.iter().zip(&part.ranks).enumerate();
    let tokens = told.map(|(at, (&logprob, &rank))| {
        let place = at * top..(at + 1) * top;
        let top = candidates(
            &part.top_token_ids[place.clone()],
            &part.top_logprobs[place],
        );
        PromptToken {
            logprob,
            rank,
            top: top.collect(),
        }
    });
    Ok(PromptPart {
        request: RequestId(part.request_id),
        start: part.start,
        tokens: tokens.collect(),
    })
}

fn candidates<'a>(ids: &'a [u32], logprobs: &'a [f32]) -> impl Iterator<Item = Candidate> + 'a {
    let pairs = ids.iter().zip(logprobs);
    pairs.map(|(&id, &logprob)| Candidate { id, logprob })
}
