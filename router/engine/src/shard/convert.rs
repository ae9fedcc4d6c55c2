//! Conversion of the scheduler's plans to messages, and of the workers' replies to outcomes.

use penstock_request::{
    grammar_spec::{GrammarFormat, GrammarSpec},
    sampling_params::SamplingParams,
    types::EngineRequest,
};
use penstock_scheduler::{
    ids::{BlockId, Epoch, RequestId, SequenceId, Slot, StepId, TokenId},
    plan::{BlockCopy, Fork, Growth, NewSequence, StepOutcome, StepPlan, Table},
};

use super::{
    PrepareError, StepLogprobs,
    logprobs::{has_logprobs, parse_logprobs},
};
use crate::generated::v1;

/// The result of a step: the scheduler's part, and parts that only clients need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepAnswer {
    /// The scheduler's part.
    pub outcome: StepOutcome,
    /// Logprobs, one per token of the outcome.
    pub logprobs: Vec<f32>,
    /// Why the sequences in `outcome.failed` failed, in the same order.
    pub errors: Vec<SlotError>,
    /// Slots whose grammar forbids tokens only because few tokens are left.
    pub closing: Vec<Slot>,
    /// The worker's measurements; for metrics.
    pub timing: Timing,
    /// Requested top logprobs and prompt logprobs.
    pub step_logprobs: Option<Box<StepLogprobs>>,
}

/// A sequence that failed in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotError {
    /// The sequence's slot.
    pub slot: Slot,
    /// The worker's message.
    pub message: String,
    /// Whether the request is invalid. Then its client gets the message. Other messages go only to
    /// the log, since they may name files of the worker's host.
    pub invalid: bool,
}

/// Durations within one step, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Preparing the batch and launching it.
    pub host: u32,
    /// From the launch until the tokens are on the host.
    pub device: u32,
}

impl Timing {
    /// Returns a step's cost when steps follow one another: the longer of host and device time,
    /// since both work in parallel. `None` if the worker did not report them.
    #[must_use]
    pub fn cost(self) -> Option<u64> {
        let cost = self.host.max(self.device);
        (cost > 0).then_some(u64::from(cost))
    }
}

/// Converts the sampling parameters of one sequence. `choice` selects its seed. Absent fields mean
/// "off".
pub(super) fn sampling(request: &EngineRequest, choice: u32) -> v1::Sampling {
    // Every parameter is named, so that the compiler finds one that is not sent.
    let SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        repetition_penalty: _,
        frequency_penalty: _,
        presence_penalty: _,
        seed: _,
        logit_bias,
        allowed_token_ids,
        banned_token_ids,
        bad_words,
        watermark,
        top_logprobs: _,
        prompt_logprobs,
        logprob_token_ids,
        thinking_token_budget: _,
    } = &request.sampling;
    let (token_ids, values) = logit_bias.iter().copied().unzip();
    let bad_words = bad_words.iter().cloned();
    v1::Sampling {
        temperature: *temperature,
        top_k: *top_k,
        top_p: *top_p,
        min_p: *min_p,
        typical_p: *typical_p,
        penalties: penalties(&request.sampling),
        seed: request.sampling.choice_seed(choice),
        min_tokens: request.stopping.min_new_tokens,
        stop_token_ids: request.stopping.stop_token_ids.clone(),
        logit_bias: (!logit_bias.is_empty()).then_some(v1::LogitBias { token_ids, values }),
        allowed: allowed_token_ids
            .clone()
            .map(|token_ids| v1::TokenSet { token_ids }),
        banned_token_ids: banned_token_ids.clone(),
        bad_words: bad_words
            .map(|token_ids| v1::BadWord { token_ids })
            .collect(),
        watermark: watermark.map(|mark| v1::Watermark {
            gamma: mark.gamma,
            delta: mark.delta,
            key: mark.key,
        }),
        top_logprobs: request.worker_top_logprobs(),
        prompt_logprobs: *prompt_logprobs,
        logprob_token_ids: logprob_token_ids.clone(),
    }
}

/// Converts the penalties; `None` if none has an effect.
fn penalties(params: &SamplingParams) -> Option<v1::Penalties> {
    let penalties = v1::Penalties {
        repetition: params.repetition_penalty,
        frequency: params.frequency_penalty,
        presence: params.presence_penalty,
    };
    let off = v1::Penalties {
        repetition: 1.0,
        ..v1::Penalties::default()
    };
    (penalties != off).then_some(penalties)
}

/// Converts the request's grammar; `None` if it has none.
pub(super) fn grammar(request: &EngineRequest) -> Option<v1::Grammar> {
    let GrammarSpec {
        constraint,
        end_token_ids,
        reasoning,
    } = request.grammar.as_deref()?;
    let kind = match constraint.kind {
        GrammarFormat::JsonSchema => v1::grammar::Kind::JsonSchema,
        GrammarFormat::Regex => v1::grammar::Kind::Regex,
        GrammarFormat::Ebnf => v1::grammar::Kind::Grammar,
        GrammarFormat::ToolCalls => v1::grammar::Kind::Calls,
        GrammarFormat::Text => v1::grammar::Kind::Text,
    };
    Some(v1::Grammar {
        kind: kind.into(),
        text: constraint.text.clone(),
        complete: constraint.complete,
        max_new_tokens: request.stopping.max_new_tokens,
        end_token_ids: end_token_ids.clone(),
        reasoning: reasoning.map(|reasoning| v1::Reasoning {
            open: reasoning.marks[0].to_owned(),
            close: reasoning.marks[1].to_owned(),
            started: reasoning.started,
            header: reasoning.header.to_owned(),
            budget: request.sampling.thinking_token_budget,
        }),
    })
}

/// Converts a plan. `requests` must return every request that enters a slot; if it returns `None`,
/// the request's id is the error.
pub(super) fn step_request<'a>(
    plan: &StepPlan,
    requests: impl Fn(RequestId) -> Option<&'a EngineRequest>,
) -> Result<v1::StepRequest, RequestId> {
    let request_of = |sequence: SequenceId| requests(sequence.request).ok_or(sequence.request);
    let new = plan
        .new
        .iter()
        .map(|new| Ok(new_sequence(new, request_of(new.sequence)?)));
    let forks = plan.forks.iter().map(|fork| {
        let params = &request_of(fork.sequence)?.sampling;
        Ok(slot_fork(fork, params.choice_seed(fork.sequence.index)))
    });
    Ok(v1::StepRequest {
        epoch: plan.epoch.0,
        step: plan.step.0,
        finished: plan.finished.iter().map(|slot| slot.0).collect(),
        new: new.collect::<Result<_, _>>()?,
        forks: forks.collect::<Result<_, _>>()?,
        copies: block_copies(&plan.copies),
        growth: plan.growth.iter().map(block_growth).collect(),
        run_slots: plan.runs.iter().map(|run| run.slot.0).collect(),
        run_tokens: plan.runs.iter().map(|run| run.tokens).collect(),
        steered_slots: plan.steered.iter().map(|steered| steered.slot.0).collect(),
        steered_tokens: plan.steered.iter().map(|steered| steered.token.0).collect(),
    })
}

/// Converts a reply after checking that its arrays fit together. The caller fills in the duration,
/// since it knows when the step began.
pub(super) fn step_answer(mut reply: v1::StepReply) -> Result<StepAnswer, String> {
    check_lengths(&reply)?;
    let step_logprobs = match has_logprobs(&reply) {
        true => Some(parse_logprobs(&mut reply)?),
        false => None,
    };
    let (unprepared, failed): (Vec<_>, Vec<_>) = reply.errors.into_iter().partition(is_unprepared);
    let errors: Vec<SlotError> = failed.into_iter().map(slot_error).collect();
    let timing = reply.timing.unwrap_or_default();
    let outcome = StepOutcome {
        epoch: Epoch(reply.epoch),
        step: StepId(reply.step),
        slots: reply.slots.into_iter().map(Slot).collect(),
        counts: reply.counts,
        token_ids: reply.token_ids.into_iter().map(TokenId).collect(),
        failed: errors.iter().map(|error| error.slot).collect(),
        unprepared: unprepared.iter().map(|error| Slot(error.slot)).collect(),
        duration: 0,
    };
    let timing = Timing {
        host: timing.host,
        device: timing.device,
    };
    Ok(StepAnswer {
        outcome,
        logprobs: reply.logprobs,
        errors,
        closing: reply.closing.into_iter().map(Slot).collect(),
        timing,
        step_logprobs,
    })
}

pub(super) fn prepare_result(reply: v1::PrepareReply) -> Result<(), PrepareError> {
    match reply.error {
        None => Ok(()),
        Some(error) if error.kind() == v1::request_error::Kind::Invalid => {
            Err(PrepareError::Invalid(error.message))
        }
        Some(error) => Err(PrepareError::Internal(error.message)),
    }
}

fn check_lengths(reply: &v1::StepReply) -> Result<(), String> {
    let (slots, counts) = (reply.slots.len(), reply.counts.len());
    if slots != counts {
        return Err(format!(
            "a StepReply has {slots} slots, but {counts} counts"
        ));
    }
    let sum: u64 = reply.counts.iter().map(|count| u64::from(*count)).sum();
    let (tokens, logprobs) = (reply.token_ids.len() as u64, reply.logprobs.len() as u64);
    if tokens != sum || logprobs != sum {
        return Err(format!(
            "the counts of a StepReply sum to {sum}, but it has {tokens} token_ids and \
             {logprobs} logprobs"
        ));
    }
    Ok(())
}

fn is_unprepared(error: &v1::SlotError) -> bool {
    let unprepared = v1::request_error::Kind::Unprepared;
    error
        .error
        .as_ref()
        .is_some_and(|error| error.kind() == unprepared)
}

fn slot_error(error: v1::SlotError) -> SlotError {
    let kind = error.error.as_ref().map(v1::RequestError::kind);
    let message = error
        .error
        .map(|e| e.message)
        .filter(|message| !message.is_empty());
    SlotError {
        slot: Slot(error.slot),
        message: message.unwrap_or_else(|| "the worker failed on this request".into()),
        invalid: kind == Some(v1::request_error::Kind::Invalid),
    }
}

fn new_sequence(new: &NewSequence, request: &EngineRequest) -> v1::NewSequence {
    v1::NewSequence {
        slot: new.slot.0,
        request_id: new.sequence.request.0,
        token_ids: new.token_ids.iter().map(|token| token.0).collect(),
        generated: new.generated,
        computed: new.computed,
        tables: tables(&new.tables),
        sampling: Some(sampling(request, new.sequence.index)),
        grammar: grammar(request),
    }
}

fn slot_fork(fork: &Fork, seed: u64) -> v1::SlotFork {
    v1::SlotFork {
        source: fork.source.0,
        destination: fork.destination.0,
        request_id: fork.sequence.request.0,
        tables: tables(&fork.tables),
        seed,
    }
}

fn tables(tables: &[Table]) -> Vec<v1::BlockTable> {
    let table = |table: &Table| v1::BlockTable {
        group: table.group.0,
        blocks: block_ids(&table.blocks),
    };
    tables.iter().map(table).collect()
}

/// Groups copies into one message per run of the same KV group.
fn block_copies(copies: &[BlockCopy]) -> Vec<v1::BlockCopies> {
    let chunks = copies.chunk_by(|a, b| a.group == b.group);
    let message = |chunk: &[BlockCopy]| v1::BlockCopies {
        group: chunk[0].group.0,
        sources: chunk.iter().map(|copy| copy.source.0).collect(),
        destinations: chunk.iter().map(|copy| copy.destination.0).collect(),
    };
    chunks.map(message).collect()
}

fn block_growth(growth: &Growth) -> v1::BlockGrowth {
    v1::BlockGrowth {
        group: growth.group.0,
        counts: growth.counts.clone(),
        blocks: block_ids(&growth.blocks),
    }
}

fn block_ids(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
