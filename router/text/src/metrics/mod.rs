//! Prometheus metrics of the text and HTTP layers. Metrics with TGI's names have TGI's meaning.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::error::ErrorKind;

mod timer;

pub(crate) use timer::RequestTimer;
pub use timer::Timings;

/// The registry, and the metrics of this crate's text and HTTP layers.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) text: Arc<TextMetrics>,
    pub(crate) http: HttpMetrics,
    pub(crate) store: StoreMetrics,
}

/// Metrics of requests, from HTTP and from the Python package.
#[derive(Debug)]
pub(crate) struct TextMetrics {
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
pub(crate) struct Statistics {
    /// Unix time in milliseconds; 0 = never.
    pub(crate) last_success: u64,
    /// Times from arrival to the end; the next three are parts of it.
    pub(crate) success: Total,
    pub(crate) validation: Total,
    pub(crate) queue: Total,
    pub(crate) inference: Total,
    /// Includes requests whose clients disconnected.
    pub(crate) failure: Total,
}

/// A count of events and the sum of their durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) count: u64,
    pub(crate) time: Duration,
}

/// Metrics of stored responses; set by the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreMetrics {
    pub(crate) entries: Gauge,
    pub(crate) bytes: Gauge,
    pub(crate) evicted: Counter,
    /// Responses that were too large to store.
    pub(crate) too_large: Counter,
}

/// Metrics of the HTTP layer.
#[derive(Clone, Debug)]
pub(crate) struct HttpMetrics {
    responses: Family<ResponseLabels, Counter>,
    /// Open connections; set by the accept loop.
    pub(crate) connections: Gauge,
    /// Refused connections; set by the accept loop.
    pub(crate) refused: Counter,
    /// Bytes of request bodies in memory; set by the budget.
    pub(crate) body_bytes: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    err: Failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Failure {
    Error(ErrorKind),
    /// The client disconnected.
    Dropped,
}

impl Metrics {
    /// Adds these metrics to `registry`, which may already hold others.
    pub fn new(mut registry: Registry) -> Self {
        let text = Arc::new(TextMetrics::register(&mut registry));
        let http = HttpMetrics::register(&mut registry);
        let store = StoreMetrics::register(&mut registry);
        Self {
            registry,
            text,
            http,
            store,
        }
    }

    /// Returns the totals of ended requests.
    pub(crate) fn statistics(&self) -> Statistics {
        *self.text.statistics()
    }

    /// Returns the number of requests that wait or run.
    pub(crate) fn open_requests(&self) -> u64 {
        u64::try_from(self.text.open.get()).unwrap_or(0)
    }

    /// Returns all metrics in the Prometheus text format. Counters keep their plain names, as TGI's
    /// do, without the `_total` that OpenMetrics adds.
    pub fn expose(&self) -> String {
        let mut open_metrics = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut open_metrics, &self.registry);
        without_total(&open_metrics)
    }
}

fn without_total(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut counter = "";
    for line in open_metrics
        .lines()
        .filter(|line| *line != "# EOF" && !line.starts_with("# UNIT"))
    {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            counter = typed.strip_suffix(" counter").unwrap_or("");
        }
        let plain = line
            .strip_prefix(counter)
            .and_then(|rest| rest.strip_prefix("_total"));
        let written = match plain.filter(|_| !counter.is_empty()) {
            Some(rest) => writeln!(out, "{counter}{rest}"),
            None => writeln!(out, "{line}"),
        };
        // Writing to a string cannot fail.
        let _ = written;
    }
    out
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
    fn statistics(&self) -> MutexGuard<'_, Statistics> {
        // A panic cannot leave the sums inconsistent.
        self.statistics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn register(registry: &mut Registry) -> Self {
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

impl StoreMetrics {
    fn register(registry: &mut Registry) -> Self {
        let new = Self::default();
        let help = "Stored responses";
        registry.register("penstock_stored_responses", help, new.entries.clone());
        let help = "Bytes of stored responses and their conversations";
        registry.register("penstock_stored_response_bytes", help, new.bytes.clone());
        let help = "Stored responses evicted to make room";
        registry.register("penstock_responses_evicted", help, new.evicted.clone());
        let help = "Responses too large to store";
        registry.register("penstock_responses_too_large", help, new.too_large.clone());
        new
    }
}

impl HttpMetrics {
    fn register(registry: &mut Registry) -> Self {
        let new = Self {
            responses: Family::default(),
            connections: Gauge::default(),
            refused: Counter::default(),
            body_bytes: Gauge::default(),
        };
        let help = "HTTP responses by route and status";
        registry.register("penstock_http_responses", help, new.responses.clone());
        let help = "Open HTTP connections";
        registry.register("penstock_http_connections", help, new.connections.clone());
        let help = "HTTP connections closed on arrival because no open connection was idle";
        let refused = "penstock_http_connections_refused";
        registry.register(refused, help, new.refused.clone());
        let help = "Bytes of request bodies whose prompts are not yet token ids";
        registry.register("penstock_http_body_bytes", help, new.body_bytes.clone());
        new
    }

    /// Counts a response. `route` is a route's pattern, never a client's path, so that labels are
    /// bounded.
    pub(crate) fn response(&self, route: &str, status: u16) {
        let labels = ResponseLabels {
            route: route.to_owned(),
            status,
        };
        self.responses.get_or_create(&labels).inc();
    }
}

impl EncodeLabelValue for Failure {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Dropped => "dropped",
            Self::Error(ErrorKind::Overloaded) => "overloaded",
            Self::Error(ErrorKind::Unavailable) => "unavailable",
            Self::Error(ErrorKind::Template) => "template",
            Self::Error(ErrorKind::Generation) => "generation",
            Self::Error(ErrorKind::Internal) => "internal",
            Self::Error(_) => "validation",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_keep_plain_names_and_a_drop_counts() {
        let metrics = Metrics::new(Registry::default());
        let mut done = RequestTimer::start(&metrics.text);
        done.accepted(7, 20);
        done.tokens(1);
        done.tokens(2);
        done.succeeded();
        drop(done);
        drop(RequestTimer::start(&metrics.text));
        metrics.http.response("/generate", 200);
        let text = metrics.expose();
        for line in [
            "tgi_request_count 2",
            "tgi_request_success 1",
            "tgi_request_failure{err=\"dropped\"} 1",
            "tgi_request_generated_tokens_sum 3.0",
            "penstock_inter_token_latency_seconds_count 2",
            "penstock_time_to_first_token_seconds_count 1",
            "penstock_requests_open 0",
            "penstock_http_responses{route=\"/generate\",status=\"200\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} not in:\n{text}");
        }
        assert!(!text.contains("_total"), "{text}");
        assert!(!text.contains("EOF"), "{text}");
    }
}
