//! Log-probabilities that the mock worker tells beside its tokens: functions of the history too.

use std::iter;

use penstock_engine::generated::v1;

use crate::{config::Eos, sequence::Sequence};

/// Tells what might stand in the place of a sequence's next token, before it learns it. The likeliest is
/// `token`, the one that does.
pub(crate) fn push_top_logprobs(
    sequence: &Sequence,
    token: u32,
    eos: Eos,
    reply: &mut v1::StepReply,
) {
    let top = sequence.sampling.top_logprobs.min(sequence.vocab) as usize;
    let others = sequence.alternatives(eos).filter(|&other| other != token);
    let first = sequence.logprob_of(token);
    let before = reply.top_token_ids.len();
    for (rank, id) in iter::once(token).chain(others).take(top).enumerate() {
        reply.top_token_ids.push(id);
        reply.top_logprobs.push(first - rank as f32);
    }
    for &id in &sequence.sampling.logprob_token_ids {
        if !reply.top_token_ids[before..].contains(&id) {
            reply.top_token_ids.push(id);
            reply.top_logprobs.push(sequence.logprob_of(id));
        }
    }
    let count = reply.top_token_ids.len() - before;
    reply
        .top_counts
        .push(u32::try_from(count).unwrap_or(u32::MAX));
}

/// Tells of the prompt tokens that follow those computed from `before` on. Each is the likeliest.
pub(crate) fn push_prompt_logprobs(sequence: &Sequence, before: usize, reply: &mut v1::StepReply) {
    let Some(top) = sequence.sampling.prompt_logprobs else {
        return;
    };
    let top = top.min(sequence.vocab);
    let start = before + 1;
    let end = (sequence.computed + 1).min(sequence.prompt.len());
    if start >= end {
        return;
    }
    let mut part = v1::PromptLogprobs {
        request_id: sequence.request,
        start: u32::try_from(start).unwrap_or(u32::MAX),
        top,
        ..Default::default()
    };
    for position in start..end {
        let logprob = sequence.logprob_at(position);
        part.logprobs.push(logprob);
        part.ranks.push(1);
        for rank in 0..top {
            part.top_token_ids
                .push((sequence.prompt[position] + rank) % sequence.vocab);
            // One token of the vocabulary is impossible.
            let last = rank + 1 == sequence.vocab;
            part.top_logprobs.push(match last {
                true => f32::NEG_INFINITY,
                false => logprob - rank as f32,
            });
        }
    }
    reply.prompt_logprobs.push(part);
}

/// Leaves out what nobody asked for.
pub(crate) fn tidy(reply: &mut v1::StepReply) {
    if reply.top_token_ids.is_empty() {
        reply.top_counts.clear();
    }
}
