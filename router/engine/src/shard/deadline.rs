//! The deadline of a step.

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
            least: Duration::from_secs(20),
            first: Duration::from_secs(180),
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

    /// Returns how long the next step may take. Many times a step that compiled kernels could be an
    /// hour, so the deadline of first steps is the maximum, unless steps regularly take that long.
    pub(super) fn limit(&self) -> Duration {
        let Self {
            limits, slowest, ..
        } = self;
        let bound = if self.steps < FIRST_STEPS {
            limits.first
        } else {
            limits.least
        };
        let most = limits.first.max(*slowest * MIN_SLOWEST_STEP_FACTOR);
        bound.max((*slowest * SLOWEST_STEP_FACTOR).min(most))
    }

    /// Ready when the step that began at `since` has exceeded its deadline. The timer moves only
    /// when it fires or when the deadline moves closer, so a step normally costs no timer update.
    pub(super) fn poll(&mut self, since: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(since) = since else {
            return Poll::Pending;
        };
        let due = since + self.limit();
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
        let limits = StepLimits::default();
        let mut deadline = Deadline::new(limits);
        deadline.observe(Duration::from_secs(170));
        assert_eq!(deadline.limit(), 2 * Duration::from_secs(170));
        for _ in 0..100 {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.limit(), limits.first);
        // Consistently slow steps get enough time.
        let mut slow = Deadline::new(limits);
        for _ in 0..20 {
            slow.observe(Duration::from_secs(60));
        }
        assert_eq!(slow.limit(), limits.first);
    }

    #[test]
    fn follows_the_slowest_recent_step() {
        let limits = StepLimits {
            least: Duration::from_secs(1),
            first: Duration::from_secs(90),
        };
        let mut deadline = Deadline::new(limits);
        assert_eq!(deadline.limit(), limits.first);
        for _ in 0..FIRST_STEPS {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.limit(), limits.least);
        deadline.observe(Duration::from_secs(1));
        assert_eq!(deadline.limit(), Duration::from_secs(20));
        for _ in 0..1000 {
            deadline.observe(Duration::from_millis(20));
        }
        assert_eq!(deadline.limit(), limits.least);
    }
}
