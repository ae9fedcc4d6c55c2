//! What becomes of the requests when the workers are lost, or the engine itself has failed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use penstock_scheduler::{
    Scheduler, Snapshot,
    config::ConfigError,
    ids::{Epoch, RequestId},
    request::AddError,
};

use super::{
    core::{Core, unavailable},
    types::SubmitError,
};

/// How old the scheduler's figures may be while steps run.
const METRICS_INTERVAL: Duration = Duration::from_millis(100);

/// What came of filling a new scheduler.
enum Refilled {
    Whole(Box<Scheduler>),
    /// It failed over this request.
    Failed(RequestId),
}

impl Core {
    /// Takes the loss of the workers: requests that had begun fail, the others stay queued for
    /// the workers' next life. `reason` is for the clients.
    pub(super) fn on_workers_lost(&mut self, reason: &str) {
        self.deliver();
        for id in self.fail_started(reason) {
            self.scheduler.abort(id);
        }
        self.facts.clear();
        self.epoch = self.scheduler.worker_lost(self.now());
        self.metrics.lost();
        self.publish_metrics();
    }

    /// Takes a panic of the engine: the same as a loss of the workers, but the scheduler may be half
    /// changed, so it is asked nothing more. A new one is filled from the records.
    pub(super) fn rebuild(&mut self, reason: &str) -> Result<(), ConfigError> {
        // Their requests have begun: they are told that they failed.
        self.arrived = None;
        // What is in there already may be the last that a client is told.
        self.event_batch.flush();
        self.fail_started(reason);
        self.facts.clear();
        self.scheduler = loop {
            match self.refill()? {
                Refilled::Whole(scheduler) => break *scheduler,
                Refilled::Failed(id) => self.forget(id, "the engine failed over this request"),
            }
        };
        self.epoch = Epoch(0);
        self.earlier = self.published;
        self.metrics.lost();
        self.publish_metrics();
        Ok(())
    }

    /// Ends all requests.
    pub(super) fn fail_all(&mut self, reason: &str) {
        self.deliver();
        for (_, record) in self.records.take_all() {
            record.fail(unavailable(reason.to_owned()));
        }
        self.scheduler.drain();
        self.publish_metrics();
    }

    /// A new scheduler with all requests that are left, in their order. Whoever makes that panic is
    /// the one whom the panic was about.
    fn refill(&mut self) -> Result<Refilled, ConfigError> {
        let mut scheduler = Box::new(Scheduler::new(self.config.clone(), (self.policy)())?);
        let mut refused = Vec::new();
        for id in self.records.ids() {
            let Some(record) = self.records.get_mut(id) else {
                continue;
            };
            let (request, arrived) = (record.to_scheduler(id, self.salt), record.arrived);
            let add = AssertUnwindSafe(|| scheduler.add(request, arrived));
            match catch_unwind(add) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => refused.push((id, error)),
                Err(_) => return Ok(Refilled::Failed(id)),
            }
        }
        for (id, error) in refused {
            self.drop_refused(id, error);
        }
        Ok(Refilled::Whole(scheduler))
    }

    fn drop_refused(&mut self, id: RequestId, error: AddError) {
        if let Some(record) = self.records.remove(id) {
            record.fail(match error {
                AddError::QueueFull | AddError::TokensFull => {
                    unavailable("the queue is full after a restart".into())
                }
                other => SubmitError::Internal(format!("{other:?}")),
            });
        }
    }

    fn forget(&mut self, id: RequestId, why: &str) {
        if let Some(record) = self.records.remove(id) {
            record.fail(SubmitError::Internal(why.to_owned()));
        }
    }

    /// Fails the requests that a loss hits; their ids.
    fn fail_started(&mut self, reason: &str) -> Vec<RequestId> {
        let started = self.records.take_started().into_iter();
        let error = || unavailable(format!("{reason}; the request may be sent again"));
        started
            .map(|(id, record)| {
                record.fail(error());
                id
            })
            .collect()
    }

    /// Publishes the scheduler's figures.
    pub(super) fn publish_metrics(&mut self) {
        self.published_at = Instant::now();
        let (now, earlier) = (self.scheduler.snapshot(), self.earlier);
        self.published = Snapshot {
            prefix_hit_tokens: now.prefix_hit_tokens + earlier.prefix_hit_tokens,
            preemptions: now.preemptions + earlier.preemptions,
            recomputed_tokens: now.recomputed_tokens + earlier.recomputed_tokens,
            ..now
        };
        self.metrics.observe(&self.published);
    }

    /// The same, now and then. The figures cost time proportional to the running sequences, and
    /// nobody reads them as often as there are steps or refusals.
    pub(super) fn publish_metrics_if_due(&mut self) {
        if self.is_idle() || self.published_at.elapsed() >= METRICS_INTERVAL {
            self.publish_metrics();
        }
    }
}
