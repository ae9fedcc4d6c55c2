//! The engine's invariants between two events; `EngineConfig::verify` turns their verification on.

use super::{core::Core, preparations::Preparations};

impl Core {
    /// Verifies that scheduler, records and preparations agree, and the scheduler's own invariants.
    /// Panics with the first one that is broken.
    pub(super) fn check(&self, preparing: &Preparations) {
        let broken = self.scheduler.check().err().map(|why| why.to_string());
        assert_eq!(broken, None, "the scheduler is inconsistent");
        if !self.has_arrived() {
            let (scheduled, recorded) = (self.scheduler.requests(), self.records.ids());
            assert_eq!(scheduled, recorded, "requests of scheduler and records");
        }
        let in_flight = self.scheduler.snapshot().in_flight;
        assert_eq!(self.facts.len(), in_flight, "facts of steps in flight");
        for id in preparing.requests() {
            assert!(
                self.request(id).is_some(),
                "request {} is prepared in vain",
                id.0
            );
        }
        self.records.check();
    }
}
