//! The deadline of a step, from the expected time of the step and the slowest recent steps.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// Steps after a group begins that may compile kernels and fill caches.
const FIRST_STEPS: u64 = 8;
/// A step may take this many times as long as the slowest recent one, within bounds.
const SLOWEST_STEP_FACTOR: u32 = 20;
/// The bounds never go below this many times the slowest recent step.
const MIN_SLOWEST_STEP_FACTOR: u32 = 2;
/// Decay of the slowest step's time from one step to the next.
const MEMORY: f64 = 0.99;
/// A step is overdue after this many times its expected time, or that of the slowest recent one,
const OVERDUE_FACTOR: u32 = 5;
/// but not before this: a busy host may delay a worker's process.
const OVERDUE_LEAST: Duration = Duration::from_secs(2);

/// Bounds of the step deadline; set by the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Minimum deadline of every step.
    pub least: Duration,
    /// Minimum deadline of a group's first steps, which compile kernels.
    pub first: Duration,
}

/// Tracks recent step times and holds the one timer.
pub(super) struct Deadline {
    limits: StepLimits,
    slowest: Duration,
    steps: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self {
            least: Duration::from_secs(10),
            first: Duration::from_secs(120),
        }
    }
}

impl StepLimits {
    /// Returns limits that are this many times as long: a worker that was given up while it
    /// compiled would otherwise be given up again.
    #[must_use]
    pub fn relaxed(self, factor: u32) -> Self {
        Self {
            least: self.least * factor,
            first: self.first * factor,
        }
    }
}

impl Deadline {
    pub(super) fn new(limits: StepLimits) -> Self {
        Self {
            limits,
            slowest: Duration::ZERO,
            steps: 0,
            timer: None,
        }
    }

    /// Records how long a step took on the workers.
    pub(super) fn observe(&mut self, took: Duration) {
        self.slowest = self.slowest.mul_f64(MEMORY).max(took);
        self.steps += 1;
    }

    /// Returns how long a step that is `expected` to take this time (zero: unknown) may take. Many
    /// times a step that compiled kernels could be an hour, so the deadline of first steps is the
    /// maximum, unless steps regularly take that long.
    pub(super) fn limit(&self, expected: Duration) -> Duration {
        let (limits, slow) = (self.limits, self.slowest.max(expected));
        let bound = if self.steps < FIRST_STEPS {
            limits.first
        } else {
            limits.least
        };
        let most = limits.first.max(slow * MIN_SLOWEST_STEP_FACTOR);
        bound.max((slow * SLOWEST_STEP_FACTOR).min(most))
    }

    /// Returns after how long such a step is overdue: something is wrong, but the worker may recover.
    pub(super) fn overdue(&self, expected: Duration) -> Duration {
        let least = if self.steps < FIRST_STEPS {
            self.limits.least.max(OVERDUE_LEAST)
        } else {
            OVERDUE_LEAST
        };
        let slow = self.slowest.max(expected);
        least.max(slow * OVERDUE_FACTOR).min(self.limit(expected))
    }

    /// Ready at `due`, the deadline of the oldest step. The timer moves only when it fires or when
    /// the deadline moves closer, so a step normally costs no timer update.
    pub(super) fn poll(&mut self, due: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(due) = due else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_start_does_not_make_a_hang_last_for_an_hour() {
        let limits = StepLimits {
            least: Duration::from_secs(20),
            first: Duration::from_secs(180),
        };
        let mut deadline = Deadline::new(limits);
        deadline.observe(Duration::from_secs(170));
        assert_eq!(deadline.limit(Duration::ZERO), 2 * Duration::from_secs(170));
        for _ in 0..100 {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.limit(Duration::ZERO), limits.first);
        // Consistently slow steps get enough time.
        let mut slow = Deadline::new(limits);
        for _ in 0..20 {
            slow.observe(Duration::from_secs(60));
        }
        assert_eq!(slow.limit(Duration::ZERO), limits.first);
    }

    #[test]
    fn follows_the_slowest_recent_step() {
        let limits = StepLimits {
            least: Duration::from_secs(1),
            first: Duration::from_secs(90),
        };
        let mut deadline = Deadline::new(limits);
        assert_eq!(deadline.limit(Duration::ZERO), limits.first);
        for _ in 0..FIRST_STEPS {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.limit(Duration::ZERO), limits.least);
        deadline.observe(Duration::from_secs(1));
        assert_eq!(deadline.limit(Duration::ZERO), Duration::from_secs(20));
        for _ in 0..1000 {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.limit(Duration::ZERO), limits.least);
    }

    #[test]
    fn a_step_is_overdue_long_before_its_worker_is_given_up() {
        let mut deadline = Deadline::new(StepLimits::default());
        let (none, long) = (Duration::ZERO, Duration::from_secs(4));
        assert_eq!(deadline.overdue(none), Duration::from_secs(10));
        for _ in 0..FIRST_STEPS {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.overdue(none), OVERDUE_LEAST);
        assert_eq!(deadline.limit(none), Duration::from_secs(10));
        // A step that the cost model expects to be long gets more time before it has run.
        assert_eq!(deadline.overdue(long), 5 * long);
        assert_eq!(deadline.limit(long), 20 * long);
    }
}
