//! The engine's published state.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use penstock_request::{EngineState, Limits};
use tokio::{sync::watch, time::Instant};

use super::config::{kv_tokens, micros};
use crate::shard::{Loaded, Progress};

/// State shared by the engine's task and its handles.
pub(super) struct Shared {
    state: watch::Sender<EngineState>,
    limits: watch::Sender<Option<Limits>>,
    began: Instant,
    /// When the oldest step in flight is overdue, in microseconds since `began`; `NEVER` = no step.
    overdue_at: AtomicU64,
}

const NEVER: u64 = u64::MAX;

/// Publishes the workers' load progress in the engine's state.
#[derive(Clone)]
pub struct ProgressSink {
    shared: Arc<Shared>,
    ranks: Arc<Mutex<BTreeMap<u32, Progress>>>,
}

fn limits(loaded: &Loaded) -> Limits {
    Limits {
        max_sequence_tokens: loaded.max_sequence_tokens,
        max_slots: loaded.max_slots,
        max_step_tokens: loaded.max_step_tokens,
        vocab_size: loaded.vocab_size,
        kv_tokens: kv_tokens(loaded),
        device_name: loaded.device_name.clone(),
        model_backend: loaded.model_backend.clone(),
        limitations: loaded.limitations.clone(),
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        let state = watch::Sender::new(EngineState::initial());
        Self {
            state,
            limits: watch::Sender::new(None),
            began: Instant::now(),
            overdue_at: AtomicU64::new(NEVER),
        }
    }

    /// Records when the oldest step in flight is overdue; `None` = no step is in flight.
    pub(super) fn set_overdue_at(&self, at: Option<Instant>) {
        let since = |at: Instant| micros(at.saturating_duration_since(self.began));
        self.overdue_at
            .store(at.map_or(NEVER, since), Ordering::Relaxed);
    }

    /// Returns for how long a step has been overdue; `None` if none is.
    pub(super) fn overdue(&self) -> Option<Duration> {
        let at = self.overdue_at.load(Ordering::Relaxed);
        let late = micros(self.began.elapsed()).checked_sub(at)?;
        Some(Duration::from_micros(late))
    }

    pub(super) fn publish(&self, state: EngineState) {
        self.state.send_replace(state);
    }

    pub(super) fn state(&self) -> EngineState {
        self.state.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<EngineState> {
        self.state.subscribe()
    }

    pub(super) fn set_loaded(&self, loaded: &Loaded) {
        self.limits.send_replace(Some(limits(loaded)));
    }

    pub(super) fn limits(&self) -> Option<Limits> {
        self.limits.borrow().clone()
    }
}

impl ProgressSink {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            ranks: Arc::default(),
        }
    }

    /// Records one worker's progress. Publishes the sum over the ranks in the phase just reported.
    /// While workers restart, the state stays `Restarting`.
    pub fn report(&self, news: Progress) {
        let phase = news.phase.clone();
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.insert(news.rank, news);
        let same = || ranks.values().filter(|progress| progress.phase == phase);
        let done = same().map(|progress| progress.done).sum();
        let total = same().map(|progress| progress.total).sum();
        self.shared.state.send_if_modified(|state| match state {
            EngineState::Loading { .. } => {
                *state = EngineState::Loading {
                    phase: phase.clone(),
                    done,
                    total,
                };
                true
            }
            _ => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_overdue_after_its_time_and_until_it_is_answered() {
        let shared = Shared::new();
        assert_eq!(shared.overdue(), None);
        shared.set_overdue_at(Some(Instant::now() + Duration::from_secs(3600)));
        assert_eq!(shared.overdue(), None);
        shared.set_overdue_at(Some(shared.began));
        assert!(shared.overdue().is_some());
        shared.set_overdue_at(None);
        assert_eq!(shared.overdue(), None);
    }

    #[test]
    fn progress_adds_up_the_ranks_of_a_phase_until_the_workers_are_ready() {
        let shared = Arc::new(Shared::new());
        let sink = ProgressSink::new(Arc::clone(&shared));
        let report = |rank, phase: &str, done| {
            let phase = phase.to_owned();
            sink.report(Progress {
                rank,
                phase,
                done,
                total: 10,
            });
            match shared.state() {
                EngineState::Loading { phase, done, total } => (phase, done, total),
                state => (format!("{state:?}"), 0, 0),
            }
        };
        assert_eq!(report(0, "weights", 4), ("weights".into(), 4, 10));
        assert_eq!(report(1, "weights", 5), ("weights".into(), 9, 20));
        assert_eq!(report(0, "weights", 6), ("weights".into(), 11, 20));
        assert_eq!(report(1, "memory", 1), ("memory".into(), 1, 10));
        shared.publish(EngineState::Ready);
        assert_eq!(report(0, "memory", 1), ("Ready".into(), 0, 0));
    }
}
