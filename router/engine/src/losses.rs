//! Recovery of requests after a loss of the workers or a failure of the engine.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use penstock_request::types::{EngineRequest, SubmitError};
use penstock_scheduler::{
    Scheduler,
    config::{ConfigError, SchedulerConfig},
    ids::{Epoch, RequestId},
    request::AddError,
};
use tokio::time::Instant;

use super::{
    core::{Core, unavailable},
    records::{Record, see_log},
    suspects::{Evidence, InFlight},
};

/// The message for the clients of a request on which the engine panics.
const FAILS: &str = "the engine failed on this request";
/// Maximum age of the published scheduler metrics while steps run.
const METRICS_INTERVAL: Duration = Duration::from_millis(100);

/// A loss of the workers, or a step that failed as a whole.
pub(super) struct Loss<'a> {
    /// The requests that the workers were preparing.
    pub(super) preparing: Vec<RequestId>,
    /// Requests that others should not wait for: those that are prepared first.
    pub(super) slow: &'a dyn Fn(&EngineRequest) -> bool,
    pub(super) evidence: Evidence,
}

/// The result of filling a new scheduler.
enum Refilled {
    Whole(Box<Scheduler>),
    /// Adding this request panicked.
    Failed(RequestId),
}

impl Core {
    /// Handles a loss of the workers. Requests return to the queue with their known tokens; steps
    /// in flight are computed again. The request that is found to be the cause fails.
    pub(super) fn on_workers_lost(&mut self, loss: &Loss<'_>) {
        self.deliver();
        let in_flight = self.in_flight(&loss.preparing, &loss.slow);
        if let Some(id) = self.suspects.on_loss(&in_flight, loss.evidence) {
            tracing::error!(
                request = id.0,
                "the workers fail on this request: it is ended"
            );
            let message = "the workers fail on this request";
            self.fail(id, SubmitError::Internal(see_log(message, id)));
        }
        self.facts.clear();
        self.answered = 0;
        self.epoch = self.scheduler.workers_lost(self.now());
        self.publish_metrics();
    }

    /// Returns the requests that the workers were running or `preparing`.
    fn in_flight(
        &self,
        preparing: &[RequestId],
        slow: &dyn Fn(&EngineRequest) -> bool,
    ) -> Vec<InFlight> {
        let mut runs: BTreeMap<_, _> = self.scheduler.in_flight().into_iter().collect();
        for &id in preparing {
            runs.entry(id).or_insert(1);
        }
        let in_flight = runs.into_iter().filter_map(|(id, runs)| {
            let slow = slow(self.records.request(id)?);
            Some(InFlight { id, runs, slow })
        });
        in_flight.collect()
    }

    /// Handles a panic of the engine: like a loss of the workers, but the scheduler may be half
    /// changed, so it is discarded. A new one is filled from the records, which hold the tokens that
    /// the clients have; later ones are computed again. If the workers were down, no request that
    /// ran before is suspect.
    pub(super) fn rebuild(&mut self, workers_down: bool) -> Result<(), ConfigError> {
        self.arrived = None;
        // The batch may hold a client's last event.
        self.event_batch.flush();
        self.facts.clear();
        self.answered = 0;
        let started = self.records.select(Record::has_started).into_iter();
        let in_flight: Vec<_> = started
            .map(|id| InFlight {
                id,
                runs: self.config.depth.into(),
                slow: false,
            })
            .collect();
        if !workers_down && let Some(id) = self.suspects.on_loss(&in_flight, Evidence::Strong) {
            self.forget(id, FAILS);
        }
        self.scheduler = loop {
            match self.refill()? {
                Refilled::Whole(scheduler) => break *scheduler,
                Refilled::Failed(id) => self.forget(id, FAILS),
            }
        };
        self.epoch = Epoch(0);
        self.earlier = self.published;
        self.publish_metrics();
        Ok(())
    }

    /// Fails all requests, in order of arrival.
    pub(super) fn fail_all(&mut self, reason: &str) {
        self.deliver();
        let mut all = self.records.take_all();
        all.sort_unstable_by_key(|(id, _)| *id);
        for (_, record) in all {
            record.fail(unavailable(reason.to_owned()));
        }
        self.scheduler.drain();
        self.publish_metrics();
    }

    /// Creates a scheduler with all remaining requests, in order. A request that makes it panic is
    /// taken for the cause of the first panic.
    fn refill(&mut self) -> Result<Refilled, ConfigError> {
        // All were accepted. Those that ran without tokens are fresh again, beyond the limits.
        let unlimited = SchedulerConfig {
            max_waiting: usize::MAX,
            max_waiting_tokens: u64::MAX,
            ..self.config.clone()
        };
        let mut scheduler = Box::new(Scheduler::new(unlimited, (self.policy)())?);
        let mut refused = Vec::new();
        for id in self.records.ids() {
            let Some(record) = self.records.get_mut(id) else {
                continue;
            };
            let (request, arrived) = (record.to_scheduler(id, self.salt), record.arrived);
            let Some(sequences) = record.begun_sequences() else {
                return Ok(Refilled::Failed(id));
            };
            let add = AssertUnwindSafe(|| match sequences[..] {
                [] => scheduler.add(request, arrived),
                _ => scheduler.resume(request, &sequences, arrived),
            });
            match catch_unwind(add) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => refused.push((id, error)),
                Err(_) => return Ok(Refilled::Failed(id)),
            }
        }
        for (id, error) in refused {
            self.drop_refused(id, error);
        }
        scheduler.replace(self.config.clone(), self.now())?;
        Ok(Refilled::Whole(scheduler))
    }

    fn drop_refused(&mut self, id: RequestId, error: AddError) {
        if let Some(record) = self.records.remove(id) {
            record.fail(SubmitError::Internal(format!("{error:?}")));
        }
    }

    fn forget(&mut self, id: RequestId, why: &str) {
        if let Some(record) = self.records.remove(id) {
            record.fail(SubmitError::Internal(why.to_owned()));
        }
    }

    /// Refuses the queued requests whose submitters still wait for a reply.
    pub(super) fn refuse_unanswered(&mut self, error: &SubmitError) {
        for (id, record) in self.records.take_unanswered() {
            record.fail(error.clone());
            self.scheduler.abort(id);
        }
        self.publish_metrics();
    }

    /// Publishes the scheduler's metrics.
    pub(super) fn publish_metrics(&mut self) {
        self.published_at = Instant::now();
        self.published = self.scheduler.snapshot().continuing(&self.earlier);
        self.metrics.observe(&self.published);
    }

    /// Publishes the metrics if they are due. They cost time proportional to the running sequences,
    /// so not every step or refusal publishes them.
    pub(super) fn publish_metrics_if_due(&mut self) {
        if self.is_idle() || self.published_at.elapsed() >= METRICS_INTERVAL {
            self.publish_metrics();
        }
    }
}
