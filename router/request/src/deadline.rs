//! When a request's client no longer wants its answer.

use std::future::Future;
use std::time::{Duration, Instant};

/// Maximum timeout of a request, in seconds: a day.
pub const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

/// The deadline of a request. The engine refuses a request that cannot meet it, and ends one that
/// has not met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When it passes.
    pub at: Instant,
    /// The time that the client gave; used in messages.
    pub timeout: Duration,
}

tokio::task_local! {
    static DEADLINE: Option<Deadline>;
}

impl Deadline {
    /// Returns the deadline of a request that begins now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self {
            at: Instant::now() + timeout,
            timeout,
        }
    }

    /// Returns the timeout of `seconds`, if it is above 0 and at most a day.
    #[must_use]
    pub fn timeout(seconds: f64) -> Option<Duration> {
        let allowed = seconds > 0.0 && seconds <= MAX_TIMEOUT_SECONDS;
        allowed.then(|| Duration::from_secs_f64(seconds))
    }

    /// Returns the earlier of two deadlines.
    #[must_use]
    pub fn earlier(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.at < self.at => other,
            _ => self,
        }
    }

    /// Runs `work` on behalf of a request with this deadline.
    pub async fn scope<T>(deadline: Option<Self>, work: impl Future<Output = T>) -> T {
        DEADLINE.scope(deadline, work).await
    }

    /// Returns the deadline of the current task's request, if it has one.
    #[must_use]
    pub fn current() -> Option<Self> {
        DEADLINE.try_with(|deadline| *deadline).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_above_0_and_at_most_a_day() {
        for seconds in [f64::NAN, f64::INFINITY, -1.0, 0.0, 86_400.5] {
            assert_eq!(Deadline::timeout(seconds), None, "{seconds}");
        }
        let half = Duration::from_millis(500);
        assert_eq!(Deadline::timeout(0.5), Some(half));
        assert!(Deadline::timeout(86_400.0).is_some());
    }

    #[tokio::test]
    async fn the_earlier_deadline_counts_within_its_scope() {
        let [soon, late] = [1, 2].map(|seconds| Deadline::after(Duration::from_secs(seconds)));
        assert_eq!(soon.earlier(Some(late)), soon);
        assert_eq!(late.earlier(Some(soon)), soon);
        assert_eq!(late.earlier(None), late);
        assert_eq!(Deadline::current(), None);
        let inside = Deadline::scope(Some(soon), async { Deadline::current() });
        assert_eq!(inside.await, Some(soon));
    }
}
