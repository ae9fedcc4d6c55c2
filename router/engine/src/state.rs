//! The engine's published state.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use penstock_request::{EngineState, Limits};
use tokio::sync::watch;

use super::config::kv_tokens;
use crate::shard::{Loaded, Progress};

/// State shared by the engine's task and its handles.
pub(super) struct Shared {
    state: watch::Sender<EngineState>,
    limits: watch::Sender<Option<Limits>>,
}

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
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        let state = watch::Sender::new(EngineState::initial());
        Self {
            state,
            limits: watch::Sender::new(None),
        }
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
