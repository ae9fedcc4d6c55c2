//! The engine's records of running requests, from acceptance to the end.

use std::{collections::BTreeSet, mem, time::Instant};

use foldhash::HashMap;
use penstock_request::{
    client::Client,
    deadline::Deadline,
    sampling_params::WHOLE_VOCABULARY,
    tenant::{Caller, Share},
    types::{Candidate, End, EngineRequest, Logprobs, SubmitError, TokenEvent},
};
use penstock_scheduler::{
    ids::{Micros, RequestId, SequenceId, Slot, TokenId},
    plan::{Emission, Finish, StepPlan},
    request::{BegunSequence, Pipelining, Request, SchedulingClass},
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::beam::{BeamOutput, BeamSearch};
use super::event_router::{EventBatch, EventSender};
use crate::shard::{PromptLogprobs, SlotError};

/// Entries into a slot while unprepared, without a token in between, after which a request fails.
const MAX_UNPREPARED_ENTRIES: u8 = 3;

/// Replies to a submission; used once.
pub(super) type SubmitReply = oneshot::Sender<Result<(), SubmitError>>;

/// A submitted request.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) id: RequestId,
    pub(super) request: EngineRequest,
    /// The request's client, if known.
    pub(super) client: Option<Client>,
    /// When its client no longer wants the answer.
    pub(super) deadline: Option<Deadline>,
    /// On whose behalf it runs.
    pub(super) caller: Caller,
    /// One per choice.
    pub(super) event_senders: Vec<EventSender>,
    pub(super) answer: SubmitReply,
}

/// The state of one request. It outlives the workers.
#[repr(C)]
pub(super) struct Record {
    /// First field, since only the choices are touched for every token.
    choices: SmallVec<[Choice; 1]>,
    pub(super) request: EngineRequest,
    /// Prompt positions whose logprobs were already sent. Position 0 has none.
    prompt_logprobs_sent: u32,
    pub(super) stage: Stage,
    search: Option<Box<BeamSearch>>,
    /// Entries into a slot while unprepared since the last token.
    unprepared_entries: u8,
    /// The request's client, if known; used when the workers prepare the request.
    pub(super) client: Option<Client>,
    /// Whether it waits until all suspects of the last loss have run.
    pub(super) held: bool,
    /// On whose behalf it runs.
    caller: Caller,
    /// Arrival time on the scheduler's clock.
    pub(super) arrived: Micros,
    /// When its client no longer wants the answer.
    pub(super) deadline: Option<Deadline>,
}

/// One of a request's choices.
struct Choice {
    event_sender: EventSender,
    /// The tokens that its client has.
    tokens: Vec<u32>,
    /// Whether it has produced tokens.
    started: bool,
    /// Whether its client waits for more.
    open: bool,
    /// Whether the grammar forced it to close because its tokens ran short.
    closing: bool,
}

/// What remains of a request after one of its choices was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseOutcome {
    LastChoice,
    OthersOpen {
        /// Whether the closed choice has produced tokens.
        started: bool,
    },
}

/// The result of delivering an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmitOutcome {
    /// The choice's client gets it.
    Delivered,
    /// It ended the request's last open choice.
    RequestEnded,
    /// The choice was already closed.
    Closed,
}

/// The stage of a request.
pub(super) enum Stage {
    /// Queued; its submitter waits until the workers are up.
    Submitted(SubmitReply),
    /// The workers prepare it; its submitter waits for the result.
    Preparing(SubmitReply),
    /// Accepted; no worker has seen its tokens.
    Waiting,
    /// It has entered a slot.
    Started,
}

/// All requests by id.
#[derive(Default)]
pub(super) struct Records {
    records: HashMap<RequestId, Record>,
    /// Of the requests that have one, the earliest first.
    deadlines: BTreeSet<(Instant, RequestId)>,
}

impl Submission {
    pub(super) fn refuse(self, error: SubmitError) {
        // The submitter may be gone.
        let _ = self.answer.send(Err(error));
    }
}

impl Record {
    /// Creates the record of a request, with an event sender for each choice.
    pub(super) fn new(
        submission: Submission,
        stage: fn(SubmitReply) -> Stage,
        arrived: Micros,
    ) -> Self {
        let Submission {
            id,
            request,
            client,
            deadline,
            caller,
            event_senders,
            answer,
        } = submission;
        let first = SequenceId {
            request: id,
            index: 0,
        };
        let choice = |event_sender| Choice {
            event_sender,
            tokens: Vec::new(),
            started: false,
            open: true,
            closing: false,
        };
        Self {
            search: BeamSearch::new(&request, first).map(Box::new),
            request,
            prompt_logprobs_sent: 1,
            stage: stage(answer),
            unprepared_entries: 0,
            client,
            held: false,
            caller,
            arrived,
            deadline,
            choices: event_senders.into_iter().map(choice).collect(),
        }
    }

    /// Converts the request for the scheduler, without generated tokens. `salt` is the prefix
    /// cache's.
    pub(super) fn to_scheduler(&self, id: RequestId, salt: u64) -> Request {
        let stopping = &self.request.stopping;
        let ids = self.request.prompt.iter();
        let mut stop_token_ids: Vec<TokenId> = match self.request.beam {
            Some(_) => Vec::new(),
            None => stopping
                .stop_token_ids
                .iter()
                .copied()
                .map(TokenId)
                .collect(),
        };
        stop_token_ids.sort_unstable();
        let share = self.caller.share(self.client);
        Request {
            id,
            token_ids: ids.copied().map(TokenId).collect(),
            generated: 0,
            max_new_tokens: stopping.max_new_tokens,
            min_new_tokens: stopping.min_new_tokens,
            stop_token_ids,
            cache_salt: salted(salt, share, &self.request.cache_salt),
            max_cached_tokens: match self.request.sampling.prompt_logprobs {
                Some(_) => 0, // every position's logits are needed
                None => u32::MAX,
            },
            preparing: self.held || matches!(self.stage, Stage::Preparing(_)),
            pipelining: match self.request.beam {
                Some(_) => Pipelining::Steered,
                None => Pipelining::Ahead,
            },
            sequences: match self.request.beam {
                Some(_) => 1,
                None => self.request.choices.max(1),
            },
            class: SchedulingClass {
                priority: self.caller.priority(self.request.priority),
                tenant: share.id,
                weight: share.weight,
                deadline: self.caller.first_token_within.map(|within| {
                    let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
                    self.arrived.0.saturating_add(within)
                }),
            },
        }
    }

    /// Returns the request's sequences as its clients know them, for a new scheduler; empty if none
    /// has tokens. `None` if they cannot be known.
    pub(super) fn begun_sequences(&mut self) -> Option<Vec<BegunSequence>> {
        let begun = |(index, tokens): (u32, &[u32])| BegunSequence {
            index,
            generated: tokens.iter().copied().map(TokenId).collect(),
        };
        if let Some(search) = &mut self.search {
            let sequences = search.restart()?;
            let begun = sequences
                .iter()
                .map(|(id, tokens)| begun((id.index, tokens)));
            return Some(begun.collect());
        }
        if self.choices.iter().all(|choice| choice.tokens.is_empty()) {
            return Some(Vec::new());
        }
        let choices = (0..).zip(&self.choices).filter(|(_, choice)| choice.open);
        let choices = choices.map(|(index, choice)| begun((index, &choice.tokens)));
        Some(choices.collect())
    }

    /// Counts an unprepared entry and returns whether the request may be prepared again. Workers
    /// drop prepared state when they need the memory, but seldom before its use.
    pub(super) fn may_prepare_again(&mut self) -> bool {
        self.unprepared_entries = self.unprepared_entries.saturating_add(1);
        self.unprepared_entries <= MAX_UNPREPARED_ENTRIES
    }

    /// Whether a worker may have seen its tokens.
    pub(super) fn has_started(&self) -> bool {
        matches!(self.stage, Stage::Started)
    }

    /// Whether its submitter still waits for the reply.
    fn is_unanswered(&self) -> bool {
        matches!(self.stage, Stage::Submitted(_) | Stage::Preparing(_))
    }

    /// Token ids whose logprobs the client requested.
    pub(super) fn logprob_token_ids(&self) -> &[u32] {
        &self.request.sampling.logprob_token_ids
    }

    /// Reports to the submitter that the request is accepted.
    pub(super) fn accept(&mut self) {
        match mem::replace(&mut self.stage, Stage::Waiting) {
            // If the submitter is gone, its stream sends an abort.
            Stage::Submitted(answer) | Stage::Preparing(answer) => drop(answer.send(Ok(()))),
            later => self.stage = later,
        }
    }

    /// Delivers an event to a choice's client. If the client is gone, its stream sends an abort. A
    /// failed choice fails the whole request, since its choices are returned together.
    pub(super) fn emit(
        &mut self,
        choice: u32,
        event: TokenEvent,
        event_batch: &mut EventBatch,
    ) -> EmitOutcome {
        let Some(own) = self.choices.get_mut(choice as usize) else {
            return EmitOutcome::Closed;
        };
        if !own.open {
            return EmitOutcome::Closed;
        }
        let end = event.end.clone();
        let failure = end.filter(|end| matches!(end, End::Failed(_)));
        own.tokens.extend(event.tokens.iter().map(|token| token.id));
        own.open = event.end.is_none();
        own.started = true;
        self.unprepared_entries = 0;
        own.event_sender.put(event, event_batch);
        if let Some(failure) = failure {
            self.fail_open(&failure);
        }
        if self.is_open() {
            EmitOutcome::Delivered
        } else {
            EmitOutcome::RequestEnded
        }
    }

    /// Records whether the grammar started forcing this choice to close.
    pub(super) fn note_closing(&mut self, emission: &Emission, closing: &[Slot]) {
        let choice = emission.sequence.index as usize;
        if let Some(choice) = self.choices.get_mut(choice) {
            choice.closing |= closing.contains(&emission.slot);
        }
    }

    /// Delivers prompt logprobs to all open choices, skipping positions already sent: a sequence
    /// that was preempted before the scheduler saw them computes them again.
    pub(super) fn send_prompt_logprobs(
        &mut self,
        part: PromptLogprobs,
        event_batch: &mut EventBatch,
    ) {
        let skipped = self.prompt_logprobs_sent.saturating_sub(part.start) as usize;
        let mut prompt: Vec<_> = part.tokens.into_iter().skip(skipped).collect();
        if prompt.is_empty() || part.start > self.prompt_logprobs_sent {
            return;
        }
        if self.request.sampling.prompt_logprobs != Some(WHOLE_VOCABULARY) {
            for token in &mut prompt {
                // A token of probability 0 is no alternative.
                token.top.retain(|candidate| candidate.logprob.is_finite());
            }
        }
        self.prompt_logprobs_sent += u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if self.prompt_logprobs_sent as usize >= self.request.prompt.len() {
            // All positions are sent; do not request them again when the sequence is recomputed.
            self.request.sampling.prompt_logprobs = None;
        }
        for choice in self.choices.iter_mut().filter(|choice| choice.open) {
            let logprobs = Logprobs {
                top_logprobs: Vec::new(),
                prompt: prompt.clone(),
            };
            let event = TokenEvent {
                logprobs: Some(Box::new(logprobs)),
                ..TokenEvent::default()
            };
            choice.event_sender.put(event, event_batch);
        }
    }

    /// Passes a sequence's candidates to the beam search; see `BeamSearch::take`. Returns whether
    /// the search is over; its results are delivered then.
    pub(super) fn search(
        &mut self,
        sequence: SequenceId,
        next: Vec<Candidate>,
        steer: impl FnMut(SequenceId, &[TokenId]) -> Vec<SequenceId>,
        event_batch: &mut EventBatch,
    ) -> bool {
        self.unprepared_entries = 0;
        let search = self.search.as_mut();
        let Some(found) = search.and_then(|search| search.take(sequence, next, steer)) else {
            return false;
        };
        let mut found = found.into_iter();
        for choice in &mut self.choices {
            let Some(BeamOutput {
                tokens,
                top_logprobs,
                end,
            }) = found.next()
            else {
                break;
            };
            if choice.open {
                let prompt = Vec::new();
                let logprobs = (!top_logprobs.is_empty()).then(|| {
                    Box::new(Logprobs {
                        top_logprobs,
                        prompt,
                    })
                });
                let event = TokenEvent {
                    tokens: tokens.into(),
                    end: Some(end),
                    logprobs,
                };
                choice.event_sender.put(event, event_batch);
                choice.open = false;
            }
        }
        // With few possible continuations, the search may find fewer results than requested.
        self.fail_open(&End::Failed(
            "beam search found fewer results than requested".into(),
        ));
        true
    }

    /// Closes a choice that no client waits for.
    pub(super) fn close(&mut self, choice: u32) -> CloseOutcome {
        let mut started = false;
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            choice.open = false;
            started = choice.started;
        }
        if self.is_open() {
            CloseOutcome::OthersOpen { started }
        } else {
            CloseOutcome::LastChoice
        }
    }

    /// Returns how a choice ends with this emission, in the client's terms; `None` if it continues.
    pub(super) fn end(&self, emission: &Emission, errors: &[SlotError]) -> Option<End> {
        Some(match emission.finish? {
            Finish::Length => End::Length,
            Finish::StopToken if self.is_closing(emission.sequence.index) => End::Length,
            Finish::StopToken => End::StopToken,
            Finish::Failed => End::Failed(slot_error_message(
                emission.sequence.request,
                emission.slot,
                errors,
            )),
        })
    }

    fn is_closing(&self, choice: u32) -> bool {
        let found = self.choices.get(choice as usize);
        found.is_some_and(|choice| choice.closing)
    }

    fn is_open(&self) -> bool {
        self.choices.iter().any(|choice| choice.open)
    }

    fn fail_open(&mut self, failure: &End) {
        for choice in self.choices.iter_mut().filter(|choice| choice.open) {
            choice.open = false;
            choice.event_sender.end(failure.clone());
        }
    }

    /// Ends the request with an error for the client: as the reply to its submission if that is
    /// still pending, otherwise as its last event.
    pub(super) fn fail(mut self, error: SubmitError) {
        match self.stage {
            Stage::Submitted(answer) | Stage::Preparing(answer) => drop(answer.send(Err(error))),
            Stage::Waiting | Stage::Started => {
                let message = error.to_string();
                self.fail_open(&match error {
                    SubmitError::DeadlinePassed { .. } => End::DeadlinePassed(message),
                    _ => End::Failed(message),
                });
            }
        }
    }
}

/// Returns the client's message for a sequence that failed in a slot: the worker's message if the
/// request is invalid. Other messages go only to the log, since they may name files of this host.
pub(super) fn slot_error_message(id: RequestId, slot: Slot, errors: &[SlotError]) -> String {
    let own = errors.iter().find(|error| error.slot == slot);
    if let Some(invalid) = own.filter(|error| error.invalid) {
        return invalid.message.clone();
    }
    let why = own.map_or("the worker gave no reason", |error| error.message.as_str());
    tracing::warn!(request = id.0, "the worker failed on this request: {why}");
    see_log("the worker failed on this request", id)
}

/// Returns a client message that refers to the log for the cause.
pub(super) fn see_log(what: &str, id: RequestId) -> String {
    format!("{what}; the server's log says why (request {id})")
}

/// Marks a tenant's part of a cache salt. No request's own salt is that long.
const TENANT: u64 = u64::MAX;

/// Returns the cache salt, followed by the tenant's part if it has a cache of its own, and by the
/// request's own: its length, then its bytes.
fn salted(salt: u64, share: Share, own: &str) -> Vec<u64> {
    let words = own.as_bytes().chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let length = Some(own.len() as u64).filter(|&length| length > 0);
    let tenant = share.isolated.then_some([TENANT, share.id]);
    let tenant = tenant.into_iter().flatten();
    let own = length.into_iter().chain(words);
    [salt].into_iter().chain(tenant).chain(own).collect()
}

impl Records {
    pub(super) fn insert(&mut self, id: RequestId, record: Record) {
        if let Some(deadline) = record.deadline {
            self.deadlines.insert((deadline.at, id));
        }
        self.records.insert(id, record);
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Record> {
        self.records.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Record> {
        let record = self.records.remove(&id)?;
        if let Some(deadline) = record.deadline {
            self.deadlines.remove(&(deadline.at, id));
        }
        Some(record)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns a request, with the parameters that the workers need when it enters a slot.
    pub(super) fn request(&self, id: RequestId) -> Option<&EngineRequest> {
        Some(&self.records.get(&id)?.request)
    }

    /// Returns the request's client, if known.
    pub(super) fn client(&self, id: RequestId) -> Option<Client> {
        self.records.get(&id)?.client
    }

    /// Returns all request ids in order of arrival.
    pub(super) fn ids(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.records.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the requests selected by `wanted`, in order of arrival.
    pub(super) fn select(&self, wanted: impl Fn(&Record) -> bool) -> Vec<RequestId> {
        let selected = |id: &RequestId| self.records.get(id).is_some_and(&wanted);
        self.ids().into_iter().filter(selected).collect()
    }

    /// Records the sequences that enter a slot with this plan.
    pub(super) fn note_entries(&mut self, plan: &StepPlan) {
        let new = plan.new.iter().map(|new| (new.sequence, new.computed));
        // A fork shares its parent's blocks; none of them count as cached.
        let forks = plan.forks.iter().map(|fork| (fork.sequence, 0));
        for (id, cached) in new.chain(forks) {
            if let Some(record) = self.records.get_mut(&id.request) {
                record.stage = Stage::Started;
                if let Some(choice) = record.choices.get_mut(id.index as usize) {
                    choice.event_sender.enter(cached);
                }
            }
        }
    }

    /// Removes the requests whose submitters wait for a reply.
    pub(super) fn take_unanswered(&mut self) -> Vec<(RequestId, Record)> {
        self.take(|_, record| record.is_unanswered())
    }

    /// Returns the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the requests whose deadlines have passed.
    pub(super) fn late(&self, now: Instant) -> Vec<(RequestId, Deadline)> {
        let passed = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        let late = |&(_, id): &(Instant, RequestId)| Some((id, self.records.get(&id)?.deadline?));
        passed.filter_map(late).collect()
    }

    /// Removes the requests that are `wanted`.
    fn take(
        &mut self,
        wanted: impl FnMut(&RequestId, &mut Record) -> bool,
    ) -> Vec<(RequestId, Record)> {
        let taken: Vec<_> = self.records.extract_if(wanted).collect();
        for (id, record) in &taken {
            if let Some(deadline) = record.deadline {
                self.deadlines.remove(&(deadline.at, *id));
            }
        }
        taken
    }

    /// Verifies that every deadline is that of a request, and that every request is open.
    pub(super) fn check(&self) {
        let deadline = |(&id, record): (&_, &Record)| Some((record.deadline?.at, id));
        let deadlines: BTreeSet<_> = self.records.iter().filter_map(deadline).collect();
        assert_eq!(self.deadlines, deadlines, "deadlines of requests");
        let open = self.records.values().all(Record::is_open);
        assert!(open, "a request is over and has a record");
    }

    pub(super) fn take_all(&mut self) -> Vec<(RequestId, Record)> {
        self.deadlines.clear();
        self.records.drain().collect()
    }
}
