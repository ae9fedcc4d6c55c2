//! The workers of one tensor-parallel group, presented as one.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};
use penstock_request::{client::Client, types::EngineRequest};
use penstock_scheduler::{
    ids::{Epoch, RequestId},
    plan::StepPlan,
};
use prost::{Message, bytes::Bytes};
use tokio::time::Instant;

use super::{
    Endpoint, LoadConfig, Loaded, PrepareError, Progress, ShardError, StepAnswer, StepLimits,
    Transport, convert,
    deadline::Deadline,
    stream::{StepStream, StreamEnd},
    worker::Worker,
};
use crate::generated::v1;

/// A tensor-parallel group of workers. All ranks get the same bytes; rank 0's reply is the answer,
/// the others' replies are only checked. After an error from any method the group is lost: drop it,
/// or `begin` again after `ShardError::Step`.
pub struct ShardGroup {
    workers: Arc<[Worker]>,
    /// One per worker; empty before `begin`.
    streams: Vec<StepStream>,
    /// The epoch of plans and outcomes.
    epoch: Epoch,
    /// The workers' number of this epoch. It differs if they served another router before.
    workers_epoch: Epoch,
    /// Steps that some rank has not answered, oldest first.
    sent: VecDeque<SentStep>,
    /// Steps that every rank has answered.
    settled: u64,
    /// When rank 0 last answered.
    answered_at: Option<Instant>,
    deadline: Deadline,
    /// Size of the vocabulary; token ids are below it.
    vocab_size: u32,
}

/// A step on its way.
#[derive(Clone, Copy)]
struct SentStep {
    at: Instant,
    /// How long it should take; zero = unknown.
    expected: Duration,
}

/// Sends `Prepare` to a group, concurrent with its step stream.
#[derive(Clone)]
pub struct Preparer(Arc<[Worker]>);

impl ShardGroup {
    /// Connects to the workers and loads the model on all of them in parallel: `loads[i]` goes to
    /// `endpoints[i]`. Fails with the first rank's error, or if the ranks report different limits.
    pub async fn connect(
        endpoints: &[Endpoint],
        loads: &[LoadConfig],
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(Self, Loaded), ShardError> {
        let ranks = endpoints.iter().zip(0..);
        let workers =
            try_join_all(ranks.map(|(endpoint, rank)| Worker::connect(rank, endpoint))).await?;
        Self::load(workers, loads, progress).await
    }

    /// Like `connect`, with workers that these transports reach.
    pub async fn over(
        transports: Vec<Transport>,
        loads: &[LoadConfig],
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(Self, Loaded), ShardError> {
        let ranks = (0..).zip(transports);
        let workers = ranks.map(|(rank, transport)| Worker::over(rank, transport));
        Self::load(workers.collect(), loads, progress).await
    }

    async fn load(
        workers: Vec<Worker>,
        loads: &[LoadConfig],
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(Self, Loaded), ShardError> {
        let pairs = workers.iter().zip(loads);
        let all = try_join_all(pairs.map(|(worker, load)| worker.load(load, progress))).await?;
        let loaded = agreed(&workers, all)?;
        let group = Self {
            workers: workers.into(),
            streams: Vec::new(),
            epoch: Epoch(0),
            workers_epoch: Epoch(0),
            sent: VecDeque::new(),
            settled: 0,
            answered_at: None,
            deadline: Deadline::new(StepLimits::default()),
            vocab_size: loaded.vocab_size,
        };
        Ok((group, loaded))
    }

    /// Begins an epoch: resets all ranks and opens their step streams at step 0. `epoch` is the
    /// epoch of the following plans; the workers number it one above their last.
    pub async fn begin(&mut self, epoch: Epoch, limits: StepLimits) -> Result<(), ShardError> {
        self.streams.clear();
        self.sent.clear();
        let epochs = try_join_all(self.workers.iter().map(Worker::epoch)).await?;
        let last = epochs.into_iter().max().unwrap_or_default();
        self.workers_epoch = Epoch(last.0 + 1);
        let begun = self.workers_epoch;
        try_join_all(self.workers.iter().map(|worker| worker.reset(begun))).await?;
        self.streams = self.workers.iter().map(Worker::open_steps).collect();
        self.epoch = epoch;
        self.settled = 0;
        self.answered_at = None;
        self.deadline = Deadline::new(limits);
        Ok(())
    }

    /// Sends a step to all ranks, which should take the `expected` time (zero: unknown). `requests`
    /// must return each request that enters a slot.
    pub fn send<'a>(
        &mut self,
        plan: &StepPlan,
        expected: Duration,
        requests: impl Fn(RequestId) -> Option<&'a EngineRequest>,
    ) -> Result<(), ShardError> {
        let mut request =
            convert::step_request(plan, requests).map_err(|id| ShardError::Protocol {
                rank: 0,
                message: format!("the plan names request {id}"),
            })?;
        request.epoch = self.workers_epoch.0;
        let bytes = Bytes::from(request.encode_to_vec());
        for (worker, stream) in self.workers.iter().zip(&self.streams) {
            stream
                .send(bytes.clone())
                .map_err(|why| worker.lost(why.into()))?;
        }
        let at = Instant::now();
        self.sent.push_back(SentStep { at, expected });
        Ok(())
    }

    /// Returns when the oldest step in flight is overdue.
    pub fn overdue_at(&self) -> Option<Instant> {
        let (began, step) = self.oldest_step()?;
        Some(began + self.deadline.overdue(step.expected))
    }

    /// Waits for the next answer; with no step in flight, for a loss. Cancel-safe.
    pub async fn answer(&mut self) -> Result<StepAnswer, ShardError> {
        poll_fn(|cx| self.poll_answer(cx)).await
    }

    /// Returns a handle that prepares requests, concurrent with the step stream.
    pub fn preparer(&self) -> Preparer {
        Preparer(Arc::clone(&self.workers))
    }

    /// Requests all workers to exit.
    pub async fn shutdown(self) {
        drop(self.streams);
        join_all(self.workers.iter().map(Worker::shutdown)).await;
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<StepAnswer, ShardError>> {
        self.take_followers(cx)?;
        let Some(leader) = self.streams.first_mut() else {
            return Poll::Pending;
        };
        if let Poll::Ready(reply) = leader.poll(cx) {
            let answer = self.take_leader(reply);
            self.settle();
            return Poll::Ready(answer);
        }
        self.settle();
        self.poll_deadline(cx)
    }

    fn take_leader(
        &mut self,
        reply: Result<v1::StepReply, StreamEnd>,
    ) -> Result<StepAnswer, ShardError> {
        let reply = reply.map_err(|end| self.stream_error(0, end))?;
        let answered = self.streams[0].answered;
        check_order(&self.workers[0], &reply, self.due(answered))?;
        let took = self.time_step();
        let leader = &self.workers[0];
        check_ids(&reply, self.vocab_size).map_err(|rule| leader.protocol(rule))?;
        let mut answer = convert::step_answer(reply).map_err(|rule| leader.protocol(rule))?;
        answer.outcome.epoch = self.epoch;
        answer.outcome.duration = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        Ok(answer)
    }

    /// Checks the replies of the other ranks as they arrive. Only their order matters.
    fn take_followers(&mut self, cx: &mut Context<'_>) -> Result<(), ShardError> {
        for rank in 1..self.streams.len() {
            while let Poll::Ready(reply) = self.streams[rank].poll(cx) {
                let reply = reply.map_err(|end| self.stream_error(rank, end))?;
                let due = self.due(self.streams[rank].answered);
                check_order(&self.workers[rank], &reply, due)?;
            }
        }
        Ok(())
    }

    /// Other ranks may wait in a collective for a rank that failed in a step, so only a group of one
    /// can begin again.
    fn stream_error(&self, rank: usize, end: StreamEnd) -> ShardError {
        match end {
            StreamEnd::Failed(message) if self.workers.len() == 1 => ShardError::Step { message },
            StreamEnd::Failed(message) | StreamEnd::Lost(message) => {
                self.workers[rank].lost(message)
            }
        }
    }

    /// Returns the step that a rank's n-th reply must answer; `None` if fewer were sent.
    fn due(&self, nth: u64) -> Option<(Epoch, u64)> {
        let sent = self.settled + self.sent.len() as u64;
        (nth <= sent).then(|| (self.workers_epoch, nth - 1))
    }

    /// Returns the time that the workers spent on the step just answered, excluding its wait for
    /// the step before.
    fn time_step(&mut self) -> Duration {
        let now = Instant::now();
        let position = self.streams[0].answered - 1 - self.settled;
        let sent = usize::try_from(position)
            .ok()
            .and_then(|at| self.sent.get(at))
            .map(|step| step.at);
        let began = sent.max(self.answered_at).unwrap_or(now);
        self.answered_at = Some(now);
        let took = now.saturating_duration_since(began);
        self.deadline.observe(took);
        took
    }

    /// Drops the steps that every rank has answered.
    fn settle(&mut self) {
        let settled = self
            .streams
            .iter()
            .map(|stream| stream.answered)
            .min()
            .unwrap_or(0);
        while self.settled < settled {
            self.sent.pop_front();
            self.settled += 1;
        }
    }

    /// Returns the oldest step in flight and when the workers could begin it.
    fn oldest_step(&self) -> Option<(Instant, SentStep)> {
        let step = *self.sent.front()?;
        let leader_owes = self
            .streams
            .first()
            .is_some_and(|s| s.answered == self.settled);
        // Until rank 0 has answered the step before, this step waits in the workers' queue.
        let turn = self.answered_at.filter(|_| leader_owes);
        Some((turn.map_or(step.at, |turn| turn.max(step.at)), step))
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<Result<StepAnswer, ShardError>> {
        let limited = self.oldest_step().map(|(began, step)| {
            let limit = self.deadline.limit(step.expected);
            (began + limit, limit)
        });
        let due = limited.map(|(due, _)| due);
        if self.deadline.poll(due, cx).is_pending() {
            return Poll::Pending;
        }
        let owes = |(_, stream): &(&Worker, &StepStream)| stream.answered == self.settled;
        let rank = self
            .workers
            .iter()
            .zip(&self.streams)
            .find(owes)
            .map_or(0, |(w, _)| w.rank);
        let limit = limited.map_or(Duration::ZERO, |(_, limit)| limit);
        Poll::Ready(Err(ShardError::Deadline {
            rank,
            step: self.settled,
            limit,
        }))
    }
}

impl Preparer {
    /// Prepares `request` of `client`; ready when all ranks have prepared it.
    pub fn prepare(
        &self,
        id: RequestId,
        client: Option<Client>,
        request: &EngineRequest,
    ) -> impl Future<Output = Result<(), PrepareError>> + Send + 'static {
        let workers = Arc::clone(&self.0);
        let message = v1::PrepareRequest {
            request_id: id.0,
            grammar: convert::grammar(request),
            sampling: Some(convert::sampling(request, 0)),
        };
        async move {
            let prepare = |worker: &'_ Worker| {
                let (worker, message) = (worker.clone(), message.clone());
                async move { worker.prepare(message, client).await }
            };
            let calls = workers.iter().map(prepare);
            try_join_all(calls).await.map(|_| ())
        }
    }
}

fn agreed(workers: &[Worker], all: Vec<Loaded>) -> Result<Loaded, ShardError> {
    let mut ranks = workers.iter().zip(all);
    let Some((_, first)) = ranks.next() else {
        return Err(ShardError::Protocol {
            rank: 0,
            message: "the group has no worker".into(),
        });
    };
    for (worker, other) in ranks {
        if let Some(field) = first.difference(&other) {
            return Err(worker.protocol(format!("`{field}` in Loaded differs from rank 0's")));
        }
    }
    Ok(first)
}

/// Checks that all token ids are in the vocabulary: others have no text and no embedding.
fn check_ids(reply: &v1::StepReply, vocab_size: u32) -> Result<(), String> {
    let prompt_ids = reply.prompt_logprobs.iter().map(|part| &part.top_token_ids);
    let lists = [&reply.token_ids, &reply.top_token_ids];
    let mut lists = lists.into_iter().chain(prompt_ids);
    match lists.find_map(|ids| ids.iter().find(|&&id| id >= vocab_size)) {
        Some(id) => Err(format!(
            "it answered token id {id}, but the vocabulary has {vocab_size} entries"
        )),
        None => Ok(()),
    }
}

/// Checks that a reply is the next one in the order of the requests.
fn check_order(
    worker: &Worker,
    reply: &v1::StepReply,
    due: Option<(Epoch, u64)>,
) -> Result<(), ShardError> {
    let (epoch, step) = (reply.epoch, reply.step);
    match due {
        Some(due) if due == (Epoch(epoch), step) => Ok(()),
        Some((due_epoch, due_step)) => Err(worker.protocol(format!(
            "it answered step {step} of epoch {epoch}, but step {due_step} of epoch {due_epoch} \
             is due"
        ))),
        None => Err(worker.protocol(format!("it answered step {step}, which was not sent"))),
    }
}
