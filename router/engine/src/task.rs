//! The engine's task: receives commands, sends steps, delivers tokens to the clients.
//!
//! `serve` also restarts lost workers. A *session* lasts from a start of the workers to their loss and
//! has one or more epochs. At its end `losses` returns the requests to the queue; their records, and
//! with them the clients' streams, stay.

use std::{
    convert::Infallible,
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use penstock_request::{EngineState, panic_message, types::SubmitError};
use penstock_scheduler::{
    FairShare,
    ids::{RequestId, SequenceId},
};
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};

use super::{
    EngineConfig, EngineMetrics, ProgressSink, Workers, WorkersEnd,
    config::scheduler_config,
    core::{Core, MakePolicy},
    losses::Loss,
    preparations::Preparations,
    records::Submission,
    state::Shared,
    suspects::Evidence,
};
use crate::shard::{Loaded, PrepareError, Preparer, ShardError, ShardGroup};

/// Retry-after hint for clients while the workers are down.
const DOWN_RETRY: Duration = Duration::from_secs(5);

/// Maximum doublings of the step deadlines after hangs in a row.
const MAX_DOUBLINGS: u32 = 4;

/// Commands that handles and streams send to the task.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Box<Submission>),
    /// The client disconnected, or the choice is complete: a stop string was found.
    Abort(SequenceId),
    Drain {
        grace: Duration,
    },
}

/// The one task that owns the scheduler.
pub(super) struct Task {
    commands: mpsc::UnboundedReceiver<Command>,
    shared: Arc<Shared>,
    config: EngineConfig,
    metrics: EngineMetrics,
    /// Deadline of a drain in progress.
    drain: Option<Instant>,
    /// When the workers last became ready; `None` while they cannot step.
    ready: Option<Instant>,
    /// When the workers were lost; `None` before the first loss and while they can step.
    lost_at: Option<Instant>,
    preparing: Preparations,
    /// The request whose preparation showed that the workers are lost.
    lost_preparation: Option<RequestId>,
    policy: MakePolicy,
    /// Whether the workers have answered a step since their last start.
    worked: bool,
    /// Losses in a row because a step took too long.
    hangs: u32,
    /// Losses so far; for the log.
    losses: u64,
}

/// Publishes the end of the engine even if its task panics.
struct PublishStopOnDrop(Arc<Shared>);

impl Drop for PublishStopOnDrop {
    fn drop(&mut self) {
        if !matches!(self.0.state(), EngineState::Stopped { .. }) {
            let reason = "the engine failed and cannot restart".into();
            self.0.publish(EngineState::Stopped { reason });
        }
    }
}

/// Why a session of the workers ended.
enum SessionEnd {
    /// The engine stops, for this reason.
    Stop(String),
    /// The workers must restart, for this reason.
    Lost(String),
    /// As `Lost`: a step took too long.
    Hung(String),
    /// A step failed; the workers are usable after another begin.
    StepFailed(String),
}

impl From<ShardError> for SessionEnd {
    fn from(error: ShardError) -> Self {
        let reason = error.to_string();
        match error {
            ShardError::Deadline { .. } => Self::Hung(reason),
            ShardError::Step { .. } => Self::StepFailed(reason),
            _ => Self::Lost(reason),
        }
    }
}

impl Task {
    pub(super) fn new(
        commands: mpsc::UnboundedReceiver<Command>,
        shared: Arc<Shared>,
        config: EngineConfig,
        metrics: EngineMetrics,
    ) -> Self {
        Self {
            commands,
            shared,
            config,
            metrics,
            drain: None,
            ready: None,
            lost_at: None,
            preparing: Preparations::default(),
            lost_preparation: None,
            policy: Arc::new(|| Box::new(FairShare)),
            worked: false,
            hangs: 0,
            losses: 0,
        }
    }

    /// Replaces the scheduling policy.
    pub(super) fn with_policy(self, policy: MakePolicy) -> Self {
        Self { policy, ..self }
    }

    pub(super) async fn run(mut self, mut workers: Box<dyn Workers>) {
        let publish_stop = PublishStopOnDrop(Arc::clone(&self.shared));
        let mut core = None;
        let serving = AssertUnwindSafe(self.serve(&mut core, workers.as_mut()));
        let reason = match serving.catch_unwind().await {
            Ok(reason) => reason,
            Err(panic) => format!("the engine failed: {}", panic_message(&*panic)),
        };
        if let Some(core) = &mut core {
            let message = match self.drain {
                Some(_) => "the server has shut down; the request may be sent again",
                None => "the engine has stopped; the server's log says why",
            };
            // Another panic may follow. Dropping the records ends their streams anyway.
            let _ = catch_unwind(AssertUnwindSafe(|| core.fail_all(message)));
        }
        workers.stop().await;
        // Publish before the queue closes, so that a sender that finds it closed can read the
        // reason.
        self.shared.publish(EngineState::Stopped { reason });
        drop(publish_stop);
    }

    /// Runs sessions of the workers until none may follow; returns the reason.
    async fn serve(&mut self, core: &mut Option<Core>, workers: &mut dyn Workers) -> String {
        // In a row: each soon after a start, and each without an answered step.
        let (mut losses, mut fruitless) = (0, 0);
        let mut wait = Duration::ZERO;
        loop {
            let session = AssertUnwindSafe(self.run_worker_session(core, workers, wait));
            let session_end = match session.catch_unwind().await {
                Ok(session_end) => session_end,
                Err(panic) => self.on_panic(core, panic_message(&*panic)).await,
            };
            let lost = match session_end {
                SessionEnd::Stop(reason) => return reason,
                SessionEnd::Lost(reason)
                | SessionEnd::Hung(reason)
                | SessionEnd::StepFailed(reason) => reason,
            };
            if core.is_none() || self.drain.is_some() {
                // If the first load failed, a retry will fail too; report it now.
                return lost;
            }
            let lasted = self
                .ready
                .take()
                .map_or(Duration::ZERO, |since| since.elapsed());
            losses = if lasted < self.config.restart.soon {
                losses + 1
            } else {
                1
            };
            if self.config.restart.gives_up(losses) {
                let times = if losses == 1 {
                    "once"
                } else {
                    &format!("{losses} times in a row")
                };
                return format!("gave up, as the workers were lost {times}: {lost}");
            }
            let worked = std::mem::take(&mut self.worked);
            fruitless = if worked { 1 } else { fruitless + 1 };
            wait = self.config.restart.wait(fruitless);
            let loss = self.losses;
            tracing::warn!(
                loss,
                in_a_row = losses,
                ?wait,
                "restarting the workers: {lost}"
            );
            self.shared
                .publish(EngineState::Restarting { reason: lost });
            self.shared.set_overdue_at(None);
        }
    }

    /// Handles a panic of the engine or its scheduler as a loss. The workers restart too, since it
    /// is unknown which plan they received last.
    async fn on_panic(&mut self, core: &mut Option<Core>, panic: &str) -> SessionEnd {
        let reason = format!("the engine failed: {panic}");
        self.preparing.end().await;
        self.metrics.failed();
        self.metrics.lost();
        self.losses += 1;
        self.lost_at.get_or_insert_with(Instant::now);
        let down = self.ready.is_none();
        match core.as_mut().map(|core| core.rebuild(down)) {
            Some(Err(error)) => SessionEnd::Stop(format!("{reason}; and then: {error}")),
            _ => SessionEnd::Lost(reason),
        }
    }

    /// Runs one session of the workers, from their start, which comes after this wait, to their end.
    async fn run_worker_session(
        &mut self,
        core: &mut Option<Core>,
        workers: &mut dyn Workers,
        wait: Duration,
    ) -> SessionEnd {
        let progress = ProgressSink::new(Arc::clone(&self.shared));
        let start = async {
            sleep(wait).await;
            workers.start(&progress).await
        };
        let (mut group, loaded) = match self.while_down(core.as_mut(), start).await {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => return SessionEnd::Lost(error.to_string()),
            Err(session_end) => return session_end,
        };
        let mut began_again = false;
        loop {
            let Err(session_end) = self.run_epoch(core, &mut group, &loaded).await;
            self.lost_at.get_or_insert_with(Instant::now);
            let mut preparing = self.preparing.requests();
            preparing.extend(self.lost_preparation.take());
            self.preparing.end().await;
            let Some(core) = core else { return session_end };
            let worked = core.answered > 0;
            self.worked |= worked;
            let (evidence, goes_on) = match &session_end {
                SessionEnd::Stop(_) => {
                    if workers.end_with_engine() {
                        group.shutdown().await;
                    }
                    return session_end;
                }
                SessionEnd::StepFailed(reason) if worked => {
                    tracing::warn!("the running requests begin again: {reason}");
                    self.metrics.step_failed();
                    self.shared.set_overdue_at(None);
                    (Evidence::FailedStep, true)
                }
                _ => (self.end_lost(workers, &session_end).await, false),
            };
            core.on_workers_lost(&Loss {
                preparing,
                slow: &|request| self.config.prepare_policy.needs(request),
                evidence: match began_again && !worked {
                    true => Evidence::Nothing,
                    false => evidence,
                },
            });
            if !goes_on {
                return session_end;
            }
            began_again = true;
        }
    }

    /// Ends lost workers; returns what their loss says about the requests that were in flight.
    async fn end_lost(&mut self, workers: &mut dyn Workers, session_end: &SessionEnd) -> Evidence {
        self.losses += 1;
        self.metrics.lost();
        let hung = matches!(session_end, SessionEnd::Hung(_));
        self.hangs = if hung { self.hangs + 1 } else { 0 };
        match workers.bury(hung).await {
            WorkersEnd::KilledFromOutside => Evidence::Weak,
            WorkersEnd::Unknown => Evidence::Strong,
        }
    }

    /// Adopts the workers' limits, begins an epoch and runs steps until something ends it.
    async fn run_epoch(
        &mut self,
        core: &mut Option<Core>,
        group: &mut ShardGroup,
        loaded: &Loaded,
    ) -> Result<Infallible, SessionEnd> {
        let config = scheduler_config(&self.config, loaded);
        let unusable = |e| SessionEnd::Lost(format!("the workers' limits are unusable: {e}"));
        let core = match core {
            Some(core) => {
                core.adopt(config).map_err(unusable)?;
                core
            }
            None => {
                let (policy, metrics) = (Arc::clone(&self.policy), self.metrics.clone());
                core.insert(Core::new(config, policy, metrics).map_err(unusable)?)
            }
        };
        let epoch = core.epoch();
        // Workers that were given up while they compiled get more time.
        let limits = self
            .config
            .step_limits
            .relaxed(1 << self.hangs.min(MAX_DOUBLINGS));
        self.while_down(Some(core), group.begin(epoch, limits))
            .await??;
        self.shared.set_loaded(loaded);
        self.ready = Some(Instant::now());
        self.lost_at = None;
        self.shared.publish(EngineState::Ready);
        core.resume();
        self.run_steps(core, group).await
    }

    async fn run_steps(
        &mut self,
        core: &mut Core,
        group: &mut ShardGroup,
    ) -> Result<Infallible, SessionEnd> {
        let preparer = group.preparer();
        loop {
            // `select!` is biased towards step answers; drain commands here so they cannot starve.
            while let Ok(command) = self.commands.try_recv() {
                self.handle_command(command, core, &preparer);
            }
            while let Some((id, result)) = self.preparing.ended() {
                self.prepared(id, result, core)?;
            }
            if self.drain.is_some_and(|end| end <= Instant::now()) {
                return Err(drained());
            }
            for id in core.fail_late() {
                self.preparing.cancel(id);
            }
            for id in core.release(|request| self.config.prepare_policy.needs(request)) {
                self.prepare(id, core, &preparer);
            }
            let sent = send_steps(core, group)?;
            self.shared.set_overdue_at(group.overdue_at());
            if core.has_arrived() {
                if sent {
                    // Let the connection write the step before the clients' tasks wake.
                    yield_now().await;
                }
                core.deliver();
                if core.suspects.is_holding() {
                    // A suspect may have ended: others wait for that.
                    continue;
                }
            }
            core.publish_metrics_if_due();
            if self.drain.is_some() && core.is_idle() {
                return Err(drained());
            }
            self.verify(core);
            tokio::select! {
                biased;
                answer = group.answer() => {
                    core.absorb(answer?);
                    for id in core.take_unprepared(|id| self.preparing.has(id)) {
                        self.prepare(id, core, &preparer);
                    }
                }
                (id, result) = self.preparing.next() => self.prepared(id, result, core)?,
                command = self.commands.recv() => {
                    self.handle_command(command.ok_or_else(no_handles_left)?, core, &preparer);
                }
                // The next round fails them.
                () = until(core.next_deadline()) => {}
                () = until(self.drain) => return Err(drained()),
            }
        }
    }

    fn prepared(
        &mut self,
        id: RequestId,
        result: Result<(), PrepareError>,
        core: &mut Core,
    ) -> Result<(), SessionEnd> {
        let lost = match &result {
            Err(PrepareError::Lost(reason)) => Err(SessionEnd::Lost(reason.clone())),
            _ => Ok(()),
        };
        if lost.is_err() {
            self.lost_preparation = Some(id);
        }
        core.prepared(id, result);
        lost
    }

    fn handle_command(&mut self, command: Command, core: &mut Core, preparer: &Preparer) {
        match command {
            Command::Submit(submission) if self.drain.is_some() => {
                submission.refuse(SubmitError::Draining);
            }
            Command::Submit(submission) => self.admit(*submission, core, preparer),
            Command::Abort(id) => {
                if core.close(id) {
                    self.preparing.cancel(id.request);
                }
            }
            Command::Drain { grace } => {
                self.drain = Some(Instant::now() + grace);
                self.shared.publish(EngineState::Draining);
            }
        }
    }

    fn admit(&mut self, submission: Submission, core: &mut Core, preparer: &Preparer) {
        let id = submission.id;
        if !self.config.prepare_policy.needs(&submission.request) {
            core.admit(submission);
        } else if core.admit_preparing(submission) {
            self.prepare(id, core, preparer);
        }
    }

    fn prepare(&mut self, id: RequestId, core: &Core, preparer: &Preparer) {
        if let Some(request) = core.request(id) {
            let client = core.client(id);
            let call = preparer.prepare(id, client, request);
            self.preparing.begin(id, client, call);
        }
    }

    /// Runs `work` while the workers are down. Requests wait in the queue, up to the deadline for
    /// restarts, or are refused if no workers were ever up. A drain ends the engine.
    async fn while_down<T>(
        &mut self,
        mut core: Option<&mut Core>,
        work: impl Future<Output = T>,
    ) -> Result<T, SessionEnd> {
        let mut work = pin!(work);
        let mut deadline = self.wait_deadline();
        loop {
            if let Some(core) = &core {
                self.verify(core);
            }
            let late = core.as_ref().and_then(|core| core.next_deadline());
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = until(late) => {
                    if let Some(core) = &mut core {
                        core.fail_late();
                    }
                }
                () = until(deadline) => {
                    deadline = None;
                    if let Some(core) = &mut core {
                        core.refuse_unanswered(&self.down_error());
                    }
                }
                command = self.commands.recv() => match command.ok_or_else(no_handles_left)? {
                    Command::Submit(submission) => match &mut core {
                        Some(core) if deadline.is_some() => core.admit_waiting(*submission),
                        _ => submission.refuse(self.down_error()),
                    },
                    Command::Drain { .. } => {
                        self.shared.publish(EngineState::Draining);
                        return Err(drained());
                    }
                    Command::Abort(id) => {
                        if let Some(core) = &mut core {
                            core.close(id);
                            core.publish_metrics();
                        }
                    }
                },
            }
        }
    }

    fn verify(&self, core: &Core) {
        if self.config.verify {
            core.check(&self.preparing);
        }
    }

    /// Until when new requests wait for the restarting workers; `None` if that time has passed.
    fn wait_deadline(&self) -> Option<Instant> {
        let deadline = self.lost_at? + self.config.max_restart_wait;
        Some(deadline).filter(|&deadline| deadline > Instant::now())
    }

    fn down_error(&self) -> SubmitError {
        let reason = match self.shared.state() {
            EngineState::Loading { .. } => "the model is still loading".into(),
            EngineState::Restarting { .. } => {
                "the workers are restarting; the server's log says why".into()
            }
            _ => "the workers are starting".into(),
        };
        SubmitError::Unavailable {
            reason,
            retry_after: DOWN_RETRY,
        }
    }
}

/// Plans and sends steps while the scheduler has work; returns whether it sent any.
fn send_steps(core: &mut Core, group: &mut ShardGroup) -> Result<bool, ShardError> {
    let mut sent = false;
    while let Some(plan) = core.plan() {
        group.send(&plan, core.expected_time(), |id| core.request(id))?;
        sent = true;
    }
    Ok(sent)
}

fn drained() -> SessionEnd {
    SessionEnd::Stop("the server has shut down".into())
}

fn no_handles_left() -> SessionEnd {
    SessionEnd::Stop("all handles of the engine were dropped".into())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
