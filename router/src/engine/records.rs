//! Everything the engine knows of the requests that it has accepted and not ended.

use std::{collections::HashMap, mem};

use penstock_scheduler::{
    ids::{RequestId, Slot, TokenId},
    plan::{Finish, StepPlan},
    request::{Class, Pipelining, Request},
};
use tokio::sync::oneshot;

use super::post::{Outbox, Outlet};
use super::types::{End, EngineRequest, Sampling, Stopping, SubmitError, TokenEvent, Tokens};
use crate::shard::SlotError;

/// The answer to a submission, to be given once.
pub(super) type Answer = oneshot::Sender<Result<(), SubmitError>>;

/// One request. It outlives the scheduler, which can be refilled from it.
pub(super) struct Record {
    pub(super) request: EngineRequest,
    /// Tokens that its client has been sent.
    pub(super) generated: Vec<u32>,
    pub(super) stage: Stage,
    pub(super) outlet: Outlet,
}

/// How far a request has come.
pub(super) enum Stage {
    /// Just handed in.
    Submitted(Answer),
    /// The workers prepare it; its submitter waits for the answer.
    Preparing(Answer),
    /// Accepted; no worker has seen its tokens.
    Waiting,
    /// It has entered this slot.
    Started(Slot),
}

/// The requests by id.
#[derive(Default)]
pub(super) struct Records(HashMap<RequestId, Record>);

impl Record {
    /// The request as the scheduler takes it, with the tokens that it has brought so far. `salt` is
    /// the prefix cache's.
    pub(super) fn to_scheduler(&self, id: RequestId, salt: u64) -> Request {
        let stopping = &self.request.stopping;
        let ids = self.request.prompt.iter().chain(&self.generated);
        let stops = stopping.stop_token_ids.iter().copied().map(TokenId);
        let mut stop_token_ids: Vec<TokenId> = stops.collect();
        stop_token_ids.sort_unstable();
        Request {
            id,
            token_ids: ids.copied().map(TokenId).collect(),
            generated: u32::try_from(self.generated.len()).unwrap_or(u32::MAX),
            max_new_tokens: stopping.max_new_tokens,
            min_new_tokens: stopping.min_new_tokens,
            stop_token_ids,
            cache_salt: vec![salt],
            preparing: matches!(self.stage, Stage::Preparing(_)),
            pipelining: Pipelining::Ahead,
            class: Class::default(),
        }
    }

    /// Tells the submitter that the request is accepted.
    pub(super) fn accept(&mut self) {
        match mem::replace(&mut self.stage, Stage::Waiting) {
            // A submitter that has gone away sends an abort.
            Stage::Submitted(answer) | Stage::Preparing(answer) => drop(answer.send(Ok(()))),
            later => self.stage = later,
        }
    }

    /// Hands the client what a step brought. A client that has gone away sends an abort.
    pub(super) fn emit(&mut self, tokens: Tokens, end: Option<End>, outbox: &mut Outbox) {
        self.generated.extend(tokens.iter().map(|token| token.id));
        self.outlet.put(TokenEvent { tokens, end }, outbox);
    }

    /// The scheduler's word for the end in the client's terms.
    pub(super) fn end(&self, finish: Finish, errors: &[SlotError]) -> End {
        match finish {
            Finish::Length => End::Length,
            Finish::StopToken => End::StopToken,
            Finish::Failed => End::Failed(self.error(errors)),
        }
    }

    /// Ends the request with a message for the client: as the answer to its submission if that is
    /// still open, else as its last event.
    pub(super) fn fail(mut self, error: SubmitError) {
        match self.stage {
            Stage::Submitted(answer) | Stage::Preparing(answer) => drop(answer.send(Err(error))),
            Stage::Waiting | Stage::Started(_) => self.outlet.end(End::Failed(error.to_string())),
        }
    }

    fn error(&self, errors: &[SlotError]) -> String {
        let own = errors
            .iter()
            .find(|e| matches!(self.stage, Stage::Started(s) if s == e.slot));
        own.map_or_else(
            || "the worker failed on this request".into(),
            |e| e.message.clone(),
        )
    }
}

impl Records {
    pub(super) fn insert(&mut self, id: RequestId, record: Record) {
        self.0.insert(id, record);
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Record> {
        self.0.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Record> {
        self.0.remove(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the workers must know of a request that enters a slot.
    pub(super) fn parameters(&self, id: RequestId) -> Option<(&Sampling, &Stopping)> {
        self.0
            .get(&id)
            .map(|record| (&record.request.sampling, &record.request.stopping))
    }

    /// Takes note of who enters a slot with this plan.
    pub(super) fn note_slots(&mut self, plan: &StepPlan) {
        for new in &plan.new {
            if let Some(record) = self.0.get_mut(&new.sequence.request) {
                record.stage = Stage::Started(new.slot);
                record.outlet.enter();
            }
        }
    }

    /// Removes those that the loss of the workers hits: all that are being prepared or have run.
    pub(super) fn take_begun(&mut self) -> Vec<(RequestId, Record)> {
        self.0
            .extract_if(|_, record| !matches!(record.stage, Stage::Waiting))
            .collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<(RequestId, Record)> {
        self.0.drain().collect()
    }
}
