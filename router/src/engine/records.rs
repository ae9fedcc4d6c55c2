//! Everything the engine knows of the requests that it has accepted and not ended.

use std::mem;

use foldhash::HashMap;
use penstock_scheduler::{
    ids::{Micros, RequestId, SequenceId, Slot, TokenId},
    plan::{Emission, Finish, StepPlan},
    request::{Pipelining, Request, SchedulingClass},
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::beam::{BeamOutput, BeamSearch};
use super::event_router::{EventBatch, EventSender};
use super::types::{
    Candidate, End, EngineRequest, Logprobs, Sampling, Stopping, SubmitError, TokenEvent,
    WHOLE_VOCABULARY,
};
use crate::client::Client;
use crate::shard::{PromptLogprobs, SlotError};

/// A request that entered a slot unprepared more often than this, without a token between, fails.
const MAX_UNPREPARED_ENTRIES: u8 = 3;
/// A request that was being prepared at so many losses of the workers fails.
const MAX_LOSSES_WHILE_PREPARING: u8 = 2;

/// The answer to a submission, to be given once.
pub(super) type SubmitReply = oneshot::Sender<Result<(), SubmitError>>;

/// A request on its way in.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) id: RequestId,
    pub(super) request: EngineRequest,
    /// Whose it is, if that is known.
    pub(super) client: Option<Client>,
    /// One per branch.
    pub(super) event_senders: Vec<EventSender>,
    pub(super) answer: SubmitReply,
}

/// One request. It outlives the workers.
#[repr(C)]
pub(super) struct Record {
    /// First, since only they are touched for every token.
    choices: SmallVec<[Choice; 1]>,
    pub(super) request: EngineRequest,
    /// Leading tokens of the prompt of which nothing is left to tell; of the first, nothing is told.
    prompt_logprobs_sent: u32,
    pub(super) stage: Stage,
    search: Option<Box<BeamSearch>>,
    /// How often its sequences entered a slot unprepared since a token came.
    unprepared_entries: u8,
    /// Whose it is, if that is known: read when the workers prepare it.
    pub(super) client: Option<Client>,
    /// How often the workers were lost while they prepared it.
    losses: u8,
    /// When it came, on the scheduler's clock.
    pub(super) arrived: Micros,
}

/// One of the answers to a request.
struct Choice {
    event_sender: EventSender,
    /// Whether it has had tokens.
    started: bool,
    /// Whether somebody waits for more.
    open: bool,
    /// Its guide had to close what was open: its tokens ran short.
    closing: bool,
}

/// Who waits for more of a request after one of its branches was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseOutcome {
    LastChoice,
    OthersOpen {
        /// Whether the closed branch has had tokens.
        started: bool,
    },
}

/// What became of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmitOutcome {
    /// They went to the branch's client.
    Delivered,
    /// They were the last of the whole request.
    RequestEnded,
    /// The branch was closed.
    Closed,
}

/// How far a request has come.
pub(super) enum Stage {
    /// Just handed in.
    Submitted(SubmitReply),
    /// The workers prepare it; its submitter waits for the answer.
    Preparing(SubmitReply),
    /// Accepted; no worker has seen its tokens.
    Waiting,
    /// It has entered a slot.
    Started,
}

/// The requests by id.
#[derive(Default)]
pub(super) struct Records(HashMap<RequestId, Record>);

impl Submission {
    pub(super) fn refuse(self, error: SubmitError) {
        // A submitter that has gone away has nothing to hear.
        let _ = self.answer.send(Err(error));
    }
}

impl Record {
    /// A request with a way out for each of its branches.
    pub(super) fn new(
        submission: Submission,
        stage: fn(SubmitReply) -> Stage,
        arrived: Micros,
    ) -> Self {
        let Submission {
            id,
            request,
            client,
            event_senders,
            answer,
        } = submission;
        let first = SequenceId {
            request: id,
            index: 0,
        };
        let choice = |event_sender| Choice {
            event_sender,
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
            losses: 0,
            arrived,
            choices: event_senders.into_iter().map(choice).collect(),
        }
    }

    /// The request as the scheduler takes it: without tokens that it has brought. `salt` is the
    /// prefix cache's.
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
        Request {
            id,
            token_ids: ids.copied().map(TokenId).collect(),
            generated: 0,
            max_new_tokens: stopping.max_new_tokens,
            min_new_tokens: stopping.min_new_tokens,
            stop_token_ids,
            cache_salt: salted(salt, &self.request.cache_salt),
            max_cached_tokens: match self.request.sampling.logprob_options.prompt {
                Some(_) => 0, // every position's logits are needed
                None => u32::MAX,
            },
            preparing: matches!(self.stage, Stage::Preparing(_)),
            pipelining: match self.request.beam {
                Some(_) => Pipelining::Steered,
                None => Pipelining::Ahead,
            },
            sequences: match self.request.beam {
                Some(_) => 1,
                None => self.request.choices.max(1),
            },
            class: SchedulingClass::default(),
        }
    }

    /// Whether it may be prepared once more: the workers drop what they made when they need the
    /// memory, but seldom before it is used.
    pub(super) fn may_prepare_again(&mut self) -> bool {
        self.unprepared_entries = self.unprepared_entries.saturating_add(1);
        self.unprepared_entries <= MAX_UNPREPARED_ENTRIES
    }

    /// Whether a worker may have seen its tokens.
    fn has_started(&self) -> bool {
        matches!(self.stage, Stage::Submitted(_) | Stage::Started)
    }

    /// Takes note of a loss of the workers, if they were preparing it.
    fn was_preparing_too_often(&mut self) -> bool {
        let preparing = matches!(self.stage, Stage::Preparing(_));
        self.losses = self.losses.saturating_add(u8::from(preparing));
        preparing && self.losses >= MAX_LOSSES_WHILE_PREPARING
    }

    /// Tokens whose log-probabilities the client asked for by their ids.
    pub(super) fn logprob_token_ids(&self) -> &[u32] {
        &self.request.sampling.logprob_options.token_ids
    }

    /// Tells the submitter that the request is accepted.
    pub(super) fn accept(&mut self) {
        match mem::replace(&mut self.stage, Stage::Waiting) {
            // A submitter that has gone away sends an abort.
            Stage::Submitted(answer) | Stage::Preparing(answer) => drop(answer.send(Ok(()))),
            later => self.stage = later,
        }
    }

    /// Hands a branch's client what a step brought. A client that has gone away sends an abort. A
    /// branch that fails takes the whole request with it: its answers are asked for together.
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

    /// Takes note of whether a step's guides began to close a branch, of which this is the news.
    pub(super) fn note_closing(&mut self, emission: &Emission, closing: &[Slot]) {
        let choice = emission.sequence.index as usize;
        if let Some(choice) = self.choices.get_mut(choice) {
            choice.closing |= closing.contains(&emission.slot);
        }
    }

    /// Hands all clients what a step tells of their prompt, but for what they have been told: a part
    /// of a prompt is told again if its sequence was preempted before the scheduler knew of it.
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
        if self.request.sampling.logprob_options.prompt != Some(WHOLE_VOCABULARY) {
            for token in &mut prompt {
                // An impossible token is no alternative.
                token.top.retain(|candidate| candidate.logprob.is_finite());
            }
        }
        self.prompt_logprobs_sent += u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if self.prompt_logprobs_sent as usize >= self.request.prompt.len() {
            // All is told: what the sequence recomputes from now on tells nothing.
            self.request.sampling.logprob_options.prompt = None;
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

    /// Takes what could follow one of the sequences of a beam search; see `Search::take`. Whether
    /// the search is over: then the clients have their answers.
    pub(super) fn search(
        &mut self,
        sequence: SequenceId,
        next: Vec<Candidate>,
        steer: impl FnMut(SequenceId, &[TokenId]) -> Vec<SequenceId>,
        event_batch: &mut EventBatch,
    ) -> bool {
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
        // Where little is possible at all, there may be fewer answers than were asked for.
        self.fail_open(&End::Failed("the search has found no other answer".into()));
        true
    }

    /// Takes note that nobody waits for a branch any more.
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

    /// The scheduler's word for a branch's end, if this is it, in the client's terms.
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

    /// Ends the request with a message for the client: as the answer to its submission if that is
    /// still open, else as its last event.
    pub(super) fn fail(mut self, error: SubmitError) {
        match self.stage {
            Stage::Submitted(answer) | Stage::Preparing(answer) => drop(answer.send(Err(error))),
            Stage::Waiting | Stage::Started => self.fail_open(&End::Failed(error.to_string())),
        }
    }
}

/// What a client is told of its sequence, which failed in a slot: the worker's words if the request is
/// to blame. Else they go to the log, since they may name files of this host.
pub(super) fn slot_error_message(id: RequestId, slot: Slot, errors: &[SlotError]) -> String {
    let own = errors.iter().find(|error| error.slot == slot);
    if let Some(invalid) = own.filter(|error| error.invalid) {
        return invalid.message.clone();
    }
    let why = own.map_or("it does not say why", |error| error.message.as_str());
    tracing::warn!(request = id.0, "the worker failed on it: {why}");
    see_log("the worker failed on this request", id)
}

/// What a client is told where only the log says more.
pub(super) fn see_log(what: &str, id: RequestId) -> String {
    format!("{what}; the server's log says why (request {id})")
}

/// A request's own salt behind the cache's: its length, then its bytes.
fn salted(salt: u64, own: &str) -> Vec<u64> {
    let words = own.as_bytes().chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let length = Some(own.len() as u64).filter(|&length| length > 0);
    [salt].into_iter().chain(length).chain(words).collect()
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

    /// Whose request it is, if that is known.
    pub(super) fn client(&self, id: RequestId) -> Option<Client> {
        self.0.get(&id)?.client
    }

    /// All of them, in order of arrival.
    pub(super) fn ids(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.0.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Requests that no worker has seen the tokens of, as far as `needed` says so, in order of arrival.
    pub(super) fn waiting(&self, needed: impl Fn(&Sampling) -> bool) -> Vec<RequestId> {
        let waits = |id: &RequestId| {
            let record = self.0.get(id);
            record.is_some_and(|record| !record.has_started() && needed(&record.request.sampling))
        };
        self.ids().into_iter().filter(waits).collect()
    }

    /// Takes note of who enters a slot with this plan.
    pub(super) fn note_entries(&mut self, plan: &StepPlan) {
        let new = plan.new.iter().map(|new| (new.sequence, new.computed));
        // A fork shares what its request has computed: none of it comes from the cache.
        let forks = plan.forks.iter().map(|fork| (fork.sequence, 0));
        for (id, cached) in new.chain(forks) {
            if let Some(record) = self.0.get_mut(&id.request) {
                record.stage = Stage::Started;
                if let Some(choice) = record.choices.get_mut(id.index as usize) {
                    choice.event_sender.enter(cached);
                }
            }
        }
    }

    /// Removes those that the loss of the workers hits: all that have run, and those that were being
    /// prepared at `MAX_LOSSES_WHILE_PREPARING` losses, since it may be they that end the workers.
    pub(super) fn take_started(&mut self) -> Vec<(RequestId, Record)> {
        self.0
            .extract_if(|_, record| record.has_started() || record.was_preparing_too_often())
            .collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<(RequestId, Record)> {
        self.0.drain().collect()
    }
}
