//! Prometheus metrics of requests. Metrics with TGI's names have TGI's meaning.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use penstock_request::error::ErrorKind;

mod timer;

pub(crate) use timer::RequestTimer;
pub use timer::Timings;

/// Metrics of requests, from HTTP and from the Python package.
#[derive(Debug)]
pub struct TextMetrics {
    count: Counter,
    success: Counter,
    failure: Family<FailureLabels, Counter>,
    duration: Histogram,
    validation: Histogram,
    queue: Histogram,
    inference: Histogram,
    time_per_token: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    input_length: Histogram,
    max_new_tokens: Histogram,
    generated_tokens: Histogram,
    open: Gauge,
    /// Sums that histograms do not export; updated once per request.
    statistics: Mutex<Statistics>,
}

/// Totals of ended requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Unix time in milliseconds; 0 = never.
    pub last_success: u64,
    /// Times from arrival to the end; the next three are parts of it.
    pub success: Total,
    /// From arrival to acceptance by the engine.
    pub validation: Total,
    /// From acceptance to the first entry into a slot.
    pub queue: Total,
    /// From the first entry into a slot to the end.
    pub inference: Total,
    /// Includes requests whose clients disconnected.
    pub failure: Total,
}

/// A count of events and the sum of their durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Number of events.
    pub count: u64,
    /// Sum of their durations.
    pub time: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    err: Failure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Failure {
    Error(ErrorKind),
    /// The client disconnected.
    Dropped,
}

impl Statistics {
    fn succeeded(&mut self, timings: &Timings) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = now.map_or(0, |now| now.as_millis());
        self.last_success = u64::try_from(millis).unwrap_or(u64::MAX);
        self.success.add(timings.total);
        self.validation.add(timings.validation);
        self.queue.add(timings.queue);
        self.inference.add(timings.inference);
    }
}

impl Total {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time += time;
    }
}

impl TextMetrics {
    /// Returns the totals of ended requests.
    pub fn statistics(&self) -> Statistics {
        *self.totals()
    }

    /// Returns the number of requests that wait or run.
    pub fn open_requests(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or(0)
    }

    fn totals(&self) -> MutexGuard<'_, Statistics> {
        // A panic cannot leave the sums inconsistent.
        self.statistics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds these metrics to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let (failure, open) = (Family::default(), Gauge::default());
        registry.register(
            "tgi_request_failure",
            "Failed requests by cause",
            Family::clone(&failure),
        );
        registry.register(
            "penstock_requests_open",
            "Requests that have not ended",
            Gauge::clone(&open),
        );
        Self {
            count: counter(registry, "tgi_request_count", "Requests"),
            success: counter(registry, "tgi_request_success", "Successful requests"),
            failure,
            open,
            statistics: Mutex::default(),
            duration: seconds(registry, "tgi_request_duration", "From arrival to end"),
            validation: seconds(
                registry,
                "tgi_request_validation_duration",
                "From arrival to acceptance by the engine",
            ),
            queue: seconds(
                registry,
                "tgi_request_queue_duration",
                "From acceptance by the engine to the start of the first prefill",
            ),
            inference: seconds(
                registry,
                "tgi_request_inference_duration",
                "From the start of the first prefill to the end",
            ),
            time_per_token: seconds(
                registry,
                "tgi_request_mean_time_per_token_duration",
                "Mean time per token of a request, after the first token",
            ),
            first_token: seconds(
                registry,
                "penstock_time_to_first_token_seconds",
                "From arrival to the first token",
            ),
            inter_token: seconds(
                registry,
                "penstock_inter_token_latency_seconds",
                "Between a request's tokens",
            ),
            input_length: tokens(registry, "tgi_request_input_length", "Prompt tokens"),
            max_new_tokens: tokens(
                registry,
                "tgi_request_max_new_tokens",
                "Maximum generated tokens of a request",
            ),
            generated_tokens: tokens(registry, "tgi_request_generated_tokens", "Tokens generated"),
        }
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

/// 0.1 ms to about 2 minutes, with TGI's buckets.
fn seconds(registry: &mut Registry, name: &str, what: &str) -> Histogram {
    let histogram = Histogram::new(exponential_buckets(1e-4, 1.5, 35));
    registry.register(name, format!("Seconds: {what}"), histogram.clone());
    histogram
}

/// 1 to about a million.
fn tokens(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    let histogram = Histogram::new(exponential_buckets(1.0, 2.0, 21));
    registry.register(name, help, histogram.clone());
    histogram
}

impl EncodeLabelValue for Failure {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Dropped => "dropped",
            Self::Error(ErrorKind::Overloaded) => "overloaded",
            Self::Error(ErrorKind::Unavailable) => "unavailable",
            Self::Error(ErrorKind::Deadline) => "deadline",
            Self::Error(ErrorKind::Template) => "template",
            Self::Error(ErrorKind::Generation) => "generation",
            Self::Error(ErrorKind::Internal) => "internal",
            Self::Error(_) => "validation",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_drop_counts_as_a_failure_and_every_token_after_the_first_as_a_gap() {
        let mut registry = Registry::default();
        let metrics = Arc::new(TextMetrics::register(&mut registry));
        let mut done = RequestTimer::start(&metrics);
        done.accepted(7, 20);
        done.tokens(1);
        done.tokens(2);
        done.succeeded();
        drop(done);
        drop(RequestTimer::start(&metrics));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "tgi_request_count_total 2",
            "tgi_request_success_total 1",
            "tgi_request_failure_total{err=\"dropped\"} 1",
            "tgi_request_generated_tokens_sum 3.0",
            "penstock_inter_token_latency_seconds_count 2",
            "penstock_time_to_first_token_seconds_count 1",
            "penstock_requests_open 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} not in:\n{text}");
        }
    }
}
