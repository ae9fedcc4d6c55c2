//! What is known of step times, for the pace of prefills.

use crate::config::SchedulerConfig;
use crate::cost::{StepCost, StepLoad};
use crate::counters::Streams;
use crate::flight::Flight;
use crate::ids::Micros;

/// Owns what is known of step times.
#[derive(Debug)]
pub(crate) struct Pacing {
    cost: StepCost,
    /// What the last plan predicts for the next one.
    streams: Streams,
    last_outcome: Micros,
}

impl Pacing {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        Self {
            cost: StepCost::new(&config.step_sizes, config.decode_reads),
            streams: Streams::default(),
            last_outcome: Micros(0),
        }
    }

    /// Learns from a step's outcome. `duration`: microseconds; 0 = unknown: the time since the step
    /// could begin, which is when it was planned or, if later, when the step before it ended.
    pub(crate) fn observe(&mut self, flight: &Flight, duration: u64, now: Micros) {
        let begun = flight.planned.max(self.last_outcome);
        let took = match duration {
            0 => now.0.saturating_sub(begun.0),
            known => known,
        };
        self.cost.observe(flight.load, took, now);
        self.last_outcome = now;
    }

    /// Forgets the step times of old workers.
    pub(crate) fn relearn(&mut self, config: &SchedulerConfig) {
        self.cost = StepCost::new(&config.step_sizes, config.decode_reads);
    }

    /// Sets the streams that the next plan will decode.
    pub(crate) fn expect(&mut self, streams: Streams) {
        self.streams = streams;
    }

    /// Returns the model of step times.
    pub(crate) fn cost(&self) -> &StepCost {
        &self.cost
    }

    /// Returns the streams that the next plan will decode.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Returns the microseconds that a step takes, if enough steps were observed.
    pub(crate) fn predict(&self, load: StepLoad) -> Option<f64> {
        self.cost.predict(load)
    }
}
