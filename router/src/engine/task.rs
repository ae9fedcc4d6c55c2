//! The engine's task: commands in, steps out, tokens to the clients.

use std::{
    convert::Infallible,
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use penstock_scheduler::{
    FirstComeFirstServed,
    ids::{RequestId, SequenceId},
};
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};

use super::{
    EngineConfig, EngineMetrics, EngineState, ProgressSink, Workers,
    config::scheduler_config,
    core::{Core, MakePolicy},
    preparations::Preparations,
    records::Submission,
    state::Shared,
    types::SubmitError,
};
use crate::panic_words;
use crate::shard::{Loaded, Preparer, ShardError, ShardGroup};

/// How long a client is told to wait when the workers are down.
const DOWN_RETRY: Duration = Duration::from_secs(5);

/// What the handles ask of the task.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Box<Submission>),
    /// The client is gone.
    Abort(SequenceId),
    /// The answer is complete.
    Finish(SequenceId),
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
    /// Set while draining: when patience ends.
    drain: Option<Instant>,
    /// Set while the workers can step: since when.
    ready: Option<Instant>,
    preparing: Preparations,
    policy: MakePolicy,
    /// Losses so far; the log and the clients know each by its number.
    losses: u64,
}

/// Publishes the end of the engine, however it comes.
struct LastWord(Arc<Shared>);

impl Drop for LastWord {
    fn drop(&mut self) {
        if !matches!(self.0.state(), EngineState::Stopped { .. }) {
            let reason = "the engine failed, and could not be started again".into();
            self.0.publish(EngineState::Stopped { reason });
        }
    }
}

/// Why a life of the workers is over.
enum Over {
    /// The engine ends, for this reason.
    Stop(String),
    /// The workers must be started again, because of this.
    Lost(String),
}

impl From<ShardError> for Over {
    fn from(error: ShardError) -> Self {
        Self::Lost(error.to_string())
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
            preparing: Preparations::default(),
            policy: Arc::new(|| Box::new(FirstComeFirstServed)),
            losses: 0,
        }
    }

    /// The same with another order of requests.
    pub(super) fn with_policy(self, policy: MakePolicy) -> Self {
        Self { policy, ..self }
    }

    pub(super) async fn run(mut self, mut workers: Box<dyn Workers>) {
        let last_word = LastWord(Arc::clone(&self.shared));
        let mut core = None;
        let serving = AssertUnwindSafe(self.serve(&mut core, workers.as_mut()));
        let reason = match serving.catch_unwind().await {
            Ok(reason) => reason,
            Err(panic) => format!("the engine failed: {}", panic_words(&*panic)),
        };
        if let Some(core) = &mut core {
            let told = match self.drain {
                Some(_) => "the server has shut down",
                None => "the engine has stopped; the server's log says why",
            };
            // After a panic another one may follow: what is left in the records ends with them.
            let _ = catch_unwind(AssertUnwindSafe(|| core.fail_all(told)));
        }
        workers.stop().await;
        // Published before the queue closes: whoever finds it closed reads the reason.
        self.shared.publish(EngineState::Stopped { reason });
        drop(last_word);
    }

    /// Lives of the workers, one after the other; returns why there is no further one.
    async fn serve(&mut self, core: &mut Option<Core>, workers: &mut dyn Workers) -> String {
        let mut losses = 0;
        loop {
            let living = AssertUnwindSafe(self.live(core, workers));
            let over = match living.catch_unwind().await {
                Ok(over) => over,
                Err(panic) => self.failed(core, panic_words(&*panic)).await,
            };
            let lost = match over {
                Over::Stop(reason) => return reason,
                Over::Lost(reason) => reason,
            };
            if core.is_none() || self.drain.is_some() {
                // What never ran will not run at the second try: better to say so at once.
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
            let Some(wait) = self.config.restart.wait(losses) else {
                return format!("gave up after {losses} losses of the workers in a row: {lost}");
            };
            let loss = self.losses;
            tracing::warn!(
                loss,
                in_a_row = losses,
                ?wait,
                "restarting the workers: {lost}"
            );
            self.shared
                .publish(EngineState::Restarting { reason: lost });
            if let Err(Over::Stop(reason)) = self.meanwhile(core.as_mut(), sleep(wait)).await {
                return reason;
            }
        }
    }

    /// Takes a panic of the engine or of its scheduler as a loss: the workers start again too, since
    /// nobody knows what the last plan told them.
    async fn failed(&mut self, core: &mut Option<Core>, words: &str) -> Over {
        let reason = format!("the engine failed: {words}");
        self.preparing.end().await;
        self.metrics.failed();
        let told = self.lost("the engine failed");
        match core.as_mut().map(|core| core.rebuild(&told)) {
            Some(Err(error)) => Over::Stop(format!("{reason}; and then: {error}")),
            _ => Over::Lost(reason),
        }
    }

    /// Counts a loss; what clients are told of it. What happened is in the log alone, which may name
    /// files of this host.
    fn lost(&mut self, what: &str) -> String {
        self.losses += 1;
        format!("{what} (loss {} in the server's log)", self.losses)
    }

    /// One life of the workers, from start to end.
    async fn live(&mut self, core: &mut Option<Core>, workers: &mut dyn Workers) -> Over {
        let progress = ProgressSink::new(Arc::clone(&self.shared));
        let (mut group, loaded) = match self
            .meanwhile(core.as_mut(), workers.start(&progress))
            .await
        {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => return Over::Lost(error.to_string()),
            Err(over) => return over,
        };
        let Err(over) = self.work(core, &mut group, &loaded).await;
        self.preparing.end().await;
        match (&over, core) {
            (Over::Lost(_), Some(core)) => core.lose(&self.lost("the workers were lost")),
            (Over::Stop(_), _) if workers.end_with_engine() => group.shutdown().await,
            _ => {}
        }
        over
    }

    /// Adopts what the workers can do, begins an epoch and steps on until something ends it.
    async fn work(
        &mut self,
        core: &mut Option<Core>,
        group: &mut ShardGroup,
        loaded: &Loaded,
    ) -> Result<Infallible, Over> {
        let config = scheduler_config(&self.config, loaded);
        let unusable = |e| Over::Lost(format!("the workers' limits are unusable: {e}"));
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
        let limits = self.config.step_limits;
        self.meanwhile(Some(core), group.begin(epoch, limits))
            .await??;
        self.shared.set_loaded(loaded);
        self.ready = Some(Instant::now());
        self.shared.publish(EngineState::Ready);
        let preparer = group.preparer();
        for id in core.prepare_again(|sampling| self.config.preparing.needs(sampling)) {
            self.prepare(id, core, &preparer);
        }
        self.step_on(core, group).await
    }

    async fn step_on(
        &mut self,
        core: &mut Core,
        group: &mut ShardGroup,
    ) -> Result<Infallible, Over> {
        let preparer = group.preparer();
        loop {
            // Answers come first below, and there may always be one.
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command, core, &preparer);
            }
            while let Some((id, result)) = self.preparing.ended() {
                core.prepared(id, result);
            }
            if self.drain.is_some_and(|end| end <= Instant::now()) {
                return Err(drained());
            }
            let sent = send_steps(core, group)?;
            if core.has_arrived() {
                if sent {
                    // Lets the connection write the step before the clients' tasks are woken.
                    yield_now().await;
                }
                core.deliver();
            }
            core.count_sometimes();
            if self.drain.is_some() && core.is_idle() {
                return Err(drained());
            }
            tokio::select! {
                biased;
                answer = group.answer() => {
                    core.absorb(answer?);
                    for id in core.take_unprepared(|id| self.preparing.has(id)) {
                        self.prepare(id, core, &preparer);
                    }
                }
                (id, result) = self.preparing.next() => core.prepared(id, result),
                command = self.commands.recv() => {
                    self.obey(command.ok_or_else(abandoned)?, core, &preparer);
                }
                () = until(self.drain) => return Err(drained()),
            }
        }
    }

    fn obey(&mut self, command: Command, core: &mut Core, preparer: &Preparer) {
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
            Command::Finish(id) => {
                core.close(id);
            }
            Command::Drain { grace } => {
                self.drain = Some(Instant::now() + grace);
                self.shared.publish(EngineState::Draining);
            }
        }
    }

    fn admit(&mut self, submission: Submission, core: &mut Core, preparer: &Preparer) {
        let id = submission.id;
        if !self.config.preparing.needs(&submission.request.sampling) {
            core.admit(submission);
        } else if core.admit_preparing(submission) {
            self.prepare(id, core, preparer);
        }
    }

    fn prepare(&mut self, id: RequestId, core: &Core, preparer: &Preparer) {
        if let Some((sampling, stopping)) = core.parameters(id) {
            let client = core.client(id);
            let call = preparer.prepare(id, client, sampling, stopping);
            self.preparing.begin(id, client, call);
        }
    }

    /// Does `work` while the workers are down: requests are refused, and a drain ends the engine.
    async fn meanwhile<T>(
        &mut self,
        mut core: Option<&mut Core>,
        work: impl Future<Output = T>,
    ) -> Result<T, Over> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                command = self.commands.recv() => match command.ok_or_else(abandoned)? {
                    Command::Submit(submission) => submission.refuse(self.down()),
                    Command::Drain { .. } => {
                        self.shared.publish(EngineState::Draining);
                        return Err(drained());
                    }
                    Command::Abort(id) | Command::Finish(id) => {
                        if let Some(core) = &mut core {
                            core.close(id);
                            core.count();
                        }
                    }
                },
            }
        }
    }

    fn down(&self) -> SubmitError {
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

/// Plans and sends while the scheduler has something to run; whether it had.
fn send_steps(core: &mut Core, group: &mut ShardGroup) -> Result<bool, ShardError> {
    let mut sent = false;
    while let Some(plan) = core.plan() {
        group.send(&plan, |id| core.parameters(id))?;
        sent = true;
    }
    Ok(sent)
}

fn drained() -> Over {
    Over::Stop("the server has shut down".into())
}

fn abandoned() -> Over {
    Over::Stop("nobody uses the engine any more".into())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
