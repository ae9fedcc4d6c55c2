//! The engine without its task: scheduler and records, driven by calls. It does no I/O.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use penstock_request::{
    client::Client,
    deadline::Deadline,
    types::{Candidate, EngineRequest, Logprobs, SubmitError, Token, TokenEvent},
};
use penstock_scheduler::{
    Policy, Scheduler, Snapshot,
    config::{ConfigError, SchedulerConfig},
    ids::{Epoch, Micros, RequestId, SequenceId, TokenId},
    plan::{Emission, Finish, StepPlan},
    request::{AddError, Request},
};
use tokio::time::Instant;

use super::{
    EngineMetrics,
    config::micros,
    event_router::EventBatch,
    metrics::StepFacts,
    promises::Promises,
    records::{
        CloseOutcome, EmitOutcome, Record, Records, Stage, Submission, SubmitReply, see_log,
        slot_error_message,
    },
    suspects::{Release, Suspects},
};
use crate::shard::{PrepareError, StepAnswer, StepLogprobs};

/// Bounds of the retry-after hint.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Creates the policy of a new scheduler. Each scheduler gets its own, since a policy may keep
/// state.
pub(super) type MakePolicy = Arc<dyn Fn() -> Box<dyn Policy> + Send + Sync>;

/// Scheduler and records of one group of workers. `losses` handles what a loss does to them.
pub(super) struct Core {
    pub(super) scheduler: Scheduler,
    pub(super) policy: MakePolicy,
    pub(super) config: SchedulerConfig,
    pub(super) epoch: Epoch,
    pub(super) records: Records,
    /// Facts about the steps in flight, oldest first.
    pub(super) facts: VecDeque<StepFacts>,
    /// The last step's answer and emissions, between `absorb` and `deliver`.
    pub(super) arrived: Option<(StepAnswer, Vec<Emission>)>,
    pub(super) event_batch: EventBatch,
    /// The requests that may be the cause of the last losses.
    pub(super) suspects: Suspects,
    /// Places in the queue that refused requests may come back for.
    promises: Promises,
    /// Steps of this epoch that were answered.
    pub(super) answered: u64,
    began: Instant,
    /// When the scheduler's metrics were last published.
    pub(super) published_at: Instant,
    pub(super) published: Snapshot,
    /// Counter totals of schedulers that a panic ended.
    pub(super) earlier: Snapshot,
    /// Secret seed of the prefix cache's hashes; prevents crafted collisions.
    pub(super) salt: u64,
    pub(super) metrics: EngineMetrics,
}

impl Core {
    pub(super) fn new(
        config: SchedulerConfig,
        policy: MakePolicy,
        metrics: EngineMetrics,
    ) -> Result<Self, ConfigError> {
        let scheduler = Scheduler::new(config.clone(), policy())?;
        Ok(Self {
            scheduler,
            policy,
            config,
            epoch: Epoch(0),
            records: Records::default(),
            facts: VecDeque::new(),
            arrived: None,
            event_batch: EventBatch::default(),
            suspects: Suspects::default(),
            promises: Promises::default(),
            answered: 0,
            began: Instant::now(),
            published_at: Instant::now(),
            published: Snapshot::default(),
            earlier: Snapshot::default(),
            salt: RandomState::new().hash_one(0_u64),
            metrics,
        })
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    /// Adopts the limits of restarted workers. Requests that no longer fit them fail.
    pub(super) fn adopt(&mut self, config: SchedulerConfig) -> Result<(), ConfigError> {
        if config == self.config {
            return Ok(());
        }
        let misfits = self.scheduler.replace(config.clone(), self.now())?;
        self.config = config;
        for id in misfits {
            let reason = "the restarted workers hold fewer tokens than this request needs";
            if let Some(record) = self.records.remove(id) {
                record.fail(SubmitError::Invalid(reason.into()));
            }
        }
        Ok(())
    }

    /// Accepts a request, or replies with the reason for refusing it.
    pub(super) fn admit(&mut self, submission: Submission) {
        let id = submission.id;
        if self.add(submission, Stage::Submitted)
            && let Some(record) = self.records.get_mut(id)
        {
            record.accept();
        }
    }

    /// Queues a request that must be prepared before it is accepted. Returns whether that may begin
    /// now.
    pub(super) fn admit_preparing(&mut self, submission: Submission) -> bool {
        self.add(submission, Stage::Preparing) && !self.suspects.is_holding()
    }

    /// Queues a request while the workers restart. Its submitter waits until they are up.
    pub(super) fn admit_waiting(&mut self, submission: Submission) {
        self.add(submission, Stage::Submitted);
    }

    /// Begins an epoch: all requests wait until `release` lets them run.
    pub(super) fn resume(&mut self) {
        for id in self.records.ids() {
            self.scheduler.prepare_again(id);
            if let Some(record) = self.records.get_mut(id) {
                record.held = true;
            }
        }
        self.answered = 0;
        if !self.suspects.is_holding() {
            self.suspects.hold_rest();
        }
    }

    /// Lets requests run whose turn it is after a loss. Returns those that `needed` selects: the
    /// new workers must prepare them first.
    pub(super) fn release(&mut self, needed: impl Fn(&EngineRequest) -> bool) -> Vec<RequestId> {
        let mut unprepared = Vec::new();
        let now = self.now();
        while let Some(release) = self
            .suspects
            .release(|id| self.records.request(id).is_some())
        {
            let ids = match release {
                Release::Group(ids) => ids,
                Release::Rest => self.records.select(|record| record.held),
            };
            for id in ids {
                let Some(record) = self.records.get_mut(id) else {
                    continue;
                };
                record.held = false;
                if needed(&record.request) {
                    unprepared.push(id);
                } else {
                    record.accept();
                    self.scheduler.prepared(id, now);
                }
            }
        }
        unprepared
    }

    /// Returns requests whose sequences could not run in the last step because the workers had
    /// dropped their prepared state. Requests whose call is `under_way` are skipped: all sequences
    /// of a request share one call. A request that exceeded its attempts fails.
    pub(super) fn take_unprepared(
        &mut self,
        under_way: impl Fn(RequestId) -> bool,
    ) -> Vec<RequestId> {
        let mut ids = self.scheduler.take_unprepared();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|&id| !under_way(id));
        ids.retain(|&id| {
            let may = self
                .records
                .get_mut(id)
                .is_some_and(Record::may_prepare_again);
            if !may {
                let why = "the workers lack the memory for the grammar of this request";
                self.fail(id, unavailable(why.to_owned()));
            }
            may
        });
        ids
    }

    /// Handles the result of preparing a request.
    pub(super) fn prepared(&mut self, id: RequestId, result: Result<(), PrepareError>) {
        let now = self.now();
        match result {
            Ok(()) => {
                if let Some(record) = self.records.get_mut(id) {
                    record.accept();
                    self.scheduler.prepared(id, now);
                }
            }
            Err(PrepareError::Invalid(why)) => self.fail(id, SubmitError::Invalid(why)),
            Err(PrepareError::Internal(why)) => {
                tracing::warn!(request = id.0, "the workers could not prepare it: {why}");
                let message = "the workers could not prepare this request";
                self.fail(id, SubmitError::Internal(see_log(message, id)));
            }
            // It is prepared again after the loss.
            Err(PrepareError::Lost(_)) => {}
        }
    }

    /// Closes a choice that is complete or whose client disconnected; with the last open choice,
    /// ends the request. A choice without tokens is ended at its first one, because the scheduler
    /// may not have forked the other choices yet. Returns whether the request ended.
    pub(super) fn close(&mut self, id: SequenceId) -> bool {
        let Some(record) = self.records.get_mut(id.request) else {
            return true;
        };
        let outcome = record.close(id.index);
        match outcome {
            CloseOutcome::LastChoice => self.end(id.request),
            CloseOutcome::OthersOpen { started: true } => self.scheduler.finish(id),
            CloseOutcome::OthersOpen { started: false } => {}
        }
        matches!(outcome, CloseOutcome::LastChoice)
    }

    /// Returns the next step, if one may be sent now.
    pub(super) fn plan(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(self.now())?;
        self.records.note_entries(&plan);
        let facts = StepFacts::new(&plan);
        self.metrics.sent(facts);
        self.facts.push_back(facts);
        Some(plan)
    }

    /// Returns how long the newest step should take; zero = unknown.
    pub(super) fn expected_time(&self) -> Duration {
        self.scheduler
            .expected_time()
            .map_or(Duration::ZERO, Duration::from_micros)
    }

    /// Returns a request, with the parameters that the workers need when it enters a slot.
    pub(super) fn request(&self, id: RequestId) -> Option<&EngineRequest> {
        self.records.request(id)
    }

    /// Returns the request's client, if known.
    pub(super) fn client(&self, id: RequestId) -> Option<Client> {
        self.records.client(id)
    }

    /// Passes a step's outcome to the scheduler, so that the next step can be planned. `deliver`
    /// sends the tokens to the clients.
    pub(super) fn absorb(&mut self, mut answer: StepAnswer) {
        if let Some(facts) = self.facts.pop_front() {
            self.metrics.answered(facts, &answer);
        }
        if let Some(cost) = answer.timing.cost() {
            answer.outcome.duration = cost;
        }
        let mut emissions = self.scheduler.complete(&answer.outcome, self.now());
        self.answered += 1;
        if self.suspects.any() {
            self.suspects.on_step();
            for emission in &emissions {
                self.suspects.on_emission(emission.sequence.request);
            }
        }
        if emissions.iter().any(|emission| emission.steered) {
            self.steer_searches(&mut answer, &mut emissions);
        }
        self.arrived = Some((answer, emissions));
    }

    /// Steers the beam searches that a step advanced, so that the next step can be planned, and
    /// removes their emissions. A failed sequence fails its request, since its other sequences wait
    /// for it.
    fn steer_searches(&mut self, answer: &mut StepAnswer, emissions: &mut Vec<Emission>) {
        // A search may end below; its prompt logprobs must be sent first.
        self.send_prompt_logprobs(answer);
        let now = self.now();
        emissions.retain(|emission| {
            let sequence = emission.sequence;
            if !emission.steered {
                return true;
            }
            let Some(record) = self.records.get_mut(sequence.request) else {
                return false;
            };
            if emission.finish == Some(Finish::Failed) {
                let why = slot_error_message(sequence.request, emission.slot, &answer.errors);
                self.fail(sequence.request, SubmitError::Internal(why));
                return false;
            }
            let Some(next) = candidates(answer, emission) else {
                let message = "the worker returned no top logprobs, which beam search needs";
                self.fail(sequence.request, SubmitError::Internal(message.into()));
                return false;
            };
            let steer = |id, tokens: &[TokenId]| self.scheduler.steer(id, tokens, now);
            if record.search(sequence, next, steer, &mut self.event_batch) {
                self.end(sequence.request);
            }
            false
        });
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.arrived.is_some()
    }

    /// Delivers the last step to the clients.
    pub(super) fn deliver(&mut self) {
        let Some((mut answer, emissions)) = self.arrived.take() else {
            return;
        };
        self.send_prompt_logprobs(&mut answer);
        for emission in emissions {
            let SequenceId {
                request,
                index: choice,
            } = emission.sequence;
            let Some(record) = self.records.get_mut(request) else {
                continue;
            };
            let event = event(&answer, &emission, record.logprob_token_ids());
            record.note_closing(&emission, &answer.closing);
            let end = record.end(&emission, &answer.errors);
            match record.emit(choice, TokenEvent { end, ..event }, &mut self.event_batch) {
                EmitOutcome::RequestEnded => self.end(request),
                EmitOutcome::Delivered => {}
                EmitOutcome::Closed => self.scheduler.finish(emission.sequence),
            }
        }
        self.event_batch.flush();
    }

    /// Delivers a step's prompt logprobs to the clients.
    fn send_prompt_logprobs(&mut self, answer: &mut StepAnswer) {
        for part in answer
            .step_logprobs
            .iter_mut()
            .flat_map(|step| step.prompts.drain(..))
        {
            if let Some(record) = self.records.get_mut(part.request) {
                record.send_prompt_logprobs(part, &mut self.event_batch);
            }
        }
    }

    /// Removes a request that has no open choices.
    fn end(&mut self, id: RequestId) {
        self.records.remove(id);
        self.scheduler.abort(id);
    }

    fn add(&mut self, submission: Submission, stage: fn(SubmitReply) -> Stage) -> bool {
        let (id, arrived) = (submission.id, self.now());
        if let Some(error) = submission
            .deadline
            .and_then(|deadline| self.lateness(deadline))
        {
            submission.refuse(error);
            return false;
        }
        let mut record = Record::new(submission, stage, arrived);
        record.held = self.suspects.is_holding();
        if let Err(error) = self.schedule(record.to_scheduler(id, self.salt), arrived) {
            record.fail(error);
            return false;
        }
        self.records.insert(id, record);
        true
    }

    /// Queues a request, unless the free places are promised to others.
    fn schedule(&mut self, request: Request, now: Micros) -> Result<(), SubmitError> {
        let arrival = self.promises.arrival(&request);
        let claim = self.promises.claim(arrival, now);
        let free = self.promises.kept_free(claim, self.config.max_waiting);
        match self.scheduler.add_leaving(request, free, now) {
            Ok(()) => self.promises.forget(arrival),
            Err(AddError::QueueFull | AddError::TokensFull) => {
                let pace = self.scheduler.start_interval();
                let retry_after = self.promises.give(arrival, claim, pace, now);
                return Err(SubmitError::Overloaded { retry_after });
            }
            Err(error) => return Err(refusal(error)),
        }
        Ok(())
    }

    pub(super) fn fail(&mut self, id: RequestId, error: SubmitError) {
        self.scheduler.abort(id);
        if let Some(record) = self.records.remove(id) {
            record.fail(error);
        }
    }

    /// Returns why a request that arrives now cannot meet its deadline, if it cannot.
    fn lateness(&self, deadline: Deadline) -> Option<SubmitError> {
        let timeout = deadline.timeout;
        let left = Instant::from_std(deadline.at).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(SubmitError::DeadlinePassed { timeout });
        }
        let wait = Duration::from_micros(self.scheduler.backlog());
        let excess = wait.checked_sub(left)?;
        Some(SubmitError::TooLate {
            timeout,
            wait,
            retry_after: Duration::from_secs(excess.as_secs() + 1).clamp(RETRY.0, RETRY.1),
        })
    }

    /// Returns the earliest deadline of a request.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.records.next_deadline().map(Instant::from_std)
    }

    /// Fails the requests whose deadlines have passed; returns them.
    pub(super) fn fail_late(&mut self) -> Vec<RequestId> {
        if self.next_deadline().is_none_or(|at| at > Instant::now()) {
            return Vec::new();
        }
        // Their last tokens come first.
        self.deliver();
        let late = self.records.late(Instant::now().into_std()).into_iter();
        let fail = |(id, Deadline { timeout, .. })| {
            self.fail(id, SubmitError::DeadlinePassed { timeout });
            id
        };
        late.map(fail).collect()
    }

    pub(super) fn now(&self) -> Micros {
        Micros(micros(self.began.elapsed()))
    }
}

/// Converts an error of `add` other than a full queue.
fn refusal(error: AddError) -> SubmitError {
    match error {
        AddError::TooLong { tokens, limit } => SubmitError::Invalid(format!(
            "the prompt and `max_new_tokens` need {tokens} tokens, but the limit is {limit}"
        )),
        AddError::Empty => SubmitError::Invalid(
            "the prompt must have a token, and `max_new_tokens` must be 1 or more".into(),
        ),
        other => SubmitError::Internal(format!("the scheduler refused the request: {other:?}")),
    }
}

pub(super) fn unavailable(reason: String) -> SubmitError {
    SubmitError::Unavailable {
        reason,
        retry_after: RETRY.0,
    }
}

/// Returns the candidates for the next token of a beam search's sequence, if the worker sent them.
fn candidates(answer: &StepAnswer, emission: &Emission) -> Option<Vec<Candidate>> {
    let top_logprobs =
        |step: &StepLogprobs| step.top_logprobs.for_tokens(emission.tokens.clone(), &[]);
    answer
        .step_logprobs
        .as_deref()
        .and_then(top_logprobs)?
        .pop()
}

fn event(answer: &StepAnswer, emission: &Emission, named: &[u32]) -> TokenEvent {
    let ids = &answer.outcome.token_ids[emission.tokens.clone()];
    let logprobs = &answer.logprobs[emission.tokens.clone()];
    let tokens = ids
        .iter()
        .zip(logprobs)
        .map(|(id, &logprob)| Token { id: id.0, logprob });
    let top_logprobs =
        |step: &StepLogprobs| step.top_logprobs.for_tokens(emission.tokens.clone(), named);
    let logprobs = answer
        .step_logprobs
        .as_deref()
        .and_then(top_logprobs)
        .map(|top_logprobs| {
            let prompt = Vec::new();
            Box::new(Logprobs {
                top_logprobs,
                prompt,
            })
        });
    TokenEvent {
        tokens: tokens.collect(),
        end: None,
        logprobs,
    }
}
