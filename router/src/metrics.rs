//! Prometheus metrics of the text and HTTP layers. Names that TGI has too mean the same here.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use smallvec::SmallVec;

use crate::error::ErrorKind;

/// Gaps between tokens that a request counts at a time.
const GAPS: usize = 8;

/// The registry, and the metrics that this crate's text and HTTP layers keep in it.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) text: Arc<TextMetrics>,
    pub(crate) http: HttpMetrics,
}

/// Of requests, whichever way they come in.
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
}

/// Of HTTP alone.
#[derive(Clone, Debug)]
pub(crate) struct HttpMetrics {
    responses: Family<ResponseLabels, Counter>,
    /// Open connections; kept by the accept loop.
    pub(crate) connections: Gauge,
    /// Bytes of request bodies that are held; kept by the budget of bodies.
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
    /// The client went away.
    Dropped,
}

/// Follows one request from its arrival to its end; a drop before the end counts as `dropped`.
///
/// The first fields are those that every token touches.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RequestTimer {
    /// When it began to run.
    entered: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: u64,
    /// Seconds between tokens that are not in the histogram yet: all threads share it, so that many
    /// at a time cost less.
    gaps: SmallVec<[f32; GAPS]>,
    metrics: Arc<TextMetrics>,
    subject: Subject,
    start: Instant,
    /// When the engine had accepted the request.
    accepted: Option<Instant>,
    ended: Option<Instant>,
}

/// Whose time a timer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// A request, by its first answer.
    Request,
    /// A further answer to a request: only its tokens count.
    Branch,
}

/// How long the parts of a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From arrival to the end, or to now.
    pub total: Duration,
    /// From arrival to acceptance by the engine: template, tokenizer, rules, preparation.
    pub validation: Duration,
    /// From acceptance until it ran: waiting for a place.
    pub queue: Duration,
    /// From then to the end.
    pub inference: Duration,
    /// Mean over the tokens after the first.
    pub per_token: Duration,
}

impl Metrics {
    /// Adds its metrics to `registry`, which may hold others' already.
    pub fn new(mut registry: Registry) -> Self {
        let text = Arc::new(TextMetrics::register(&mut registry));
        let http = HttpMetrics::register(&mut registry);
        Self {
            registry,
            text,
            http,
        }
    }

    /// All metrics in the Prometheus text format. Counters keep their plain names there, as TGI's
    /// have, without the `_total` that OpenMetrics adds.
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

impl TextMetrics {
    fn register(registry: &mut Registry) -> Self {
        let (failure, open) = (Family::default(), Gauge::default());
        registry.register(
            "tgi_request_failure",
            "Requests that failed, by cause",
            Family::clone(&failure),
        );
        registry.register(
            "penstock_requests_open",
            "Requests not yet ended",
            Gauge::clone(&open),
        );
        Self {
            count: counter(registry, "tgi_request_count", "Requests"),
            success: counter(
                registry,
                "tgi_request_success",
                "Requests answered to the end",
            ),
            failure,
            open,
            duration: seconds(registry, "tgi_request_duration", "From arrival to end"),
            validation: seconds(
                registry,
                "tgi_request_validation_duration",
                "From arrival to acceptance by the engine",
            ),
            queue: seconds(
                registry,
                "tgi_request_queue_duration",
                "From acceptance by the engine until it ran",
            ),
            inference: seconds(
                registry,
                "tgi_request_inference_duration",
                "From when it ran to its end",
            ),
            time_per_token: seconds(
                registry,
                "tgi_request_mean_time_per_token_duration",
                "Mean over a request's tokens after the first",
            ),
            first_token: seconds(
                registry,
                "penstock_time_to_first_token_seconds",
                "From arrival to the first token's hand-over",
            ),
            inter_token: seconds(
                registry,
                "penstock_inter_token_latency_seconds",
                "Between the hand-overs of a request's tokens",
            ),
            input_length: tokens(registry, "tgi_request_input_length", "Prompt tokens"),
            max_new_tokens: tokens(registry, "tgi_request_max_new_tokens", "Tokens allowed"),
            generated_tokens: tokens(registry, "tgi_request_generated_tokens", "Tokens generated"),
        }
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

/// 0.1 ms to about 2 minutes, in the steps that TGI has.
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

impl HttpMetrics {
    fn register(registry: &mut Registry) -> Self {
        let new = Self {
            responses: Family::default(),
            connections: Gauge::default(),
            body_bytes: Gauge::default(),
        };
        let help = "HTTP responses by route and status";
        registry.register("penstock_http_responses", help, new.responses.clone());
        let help = "Open HTTP connections";
        registry.register("penstock_http_connections", help, new.connections.clone());
        let help = "Bytes of request bodies whose prompts are not yet token ids";
        registry.register("penstock_http_body_bytes", help, new.body_bytes.clone());
        new
    }

    /// Counts a response. `route` is a route's pattern, never a client's path: labels are bounded.
    pub(crate) fn response(&self, route: &str, status: u16) {
        let labels = ResponseLabels {
            route: route.to_owned(),
            status,
        };
        self.responses.get_or_create(&labels).inc();
    }
}

impl RequestTimer {
    pub(crate) fn start(metrics: &Arc<TextMetrics>) -> Self {
        metrics.count.inc();
        metrics.open.inc();
        Self {
            metrics: Arc::clone(metrics),
            subject: Subject::Request,
            start: Instant::now(),
            accepted: None,
            entered: None,
            first_token: None,
            last_token: None,
            ended: None,
            tokens: 0,
            gaps: SmallVec::new(),
        }
    }

    /// A timer for a further answer to the same request, which no token of it has reached.
    pub(crate) fn branch(&self) -> Self {
        Self {
            metrics: Arc::clone(&self.metrics),
            subject: Subject::Branch,
            gaps: SmallVec::new(),
            ..*self
        }
    }

    /// The engine has accepted the request.
    pub(crate) fn accepted(&mut self, input: usize, max_new_tokens: u32) {
        let now = Instant::now();
        self.accepted = Some(now);
        self.metrics
            .validation
            .observe((now - self.start).as_secs_f64());
        self.metrics.input_length.observe(input as f64);
        self.metrics
            .max_new_tokens
            .observe(f64::from(max_new_tokens));
    }

    /// Whether it is known when the request began to run.
    pub(crate) fn has_entered(&self) -> bool {
        self.entered.is_some()
    }

    /// It began to run at `time`; once it was accepted, if nobody knows better.
    pub(crate) fn entered(&mut self, time: Option<Instant>) {
        let time = time.or(self.accepted);
        self.entered = Some(time.unwrap_or_else(Instant::now));
    }

    /// `count` tokens go to the client now.
    pub(crate) fn tokens(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let now = Instant::now();
        let mut gaps = count;
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.metrics
                .first_token
                .observe((now - self.start).as_secs_f64());
            gaps -= 1;
        }
        let since = now - self.last_token.unwrap_or(now);
        for _ in 0..gaps {
            self.gaps.push(since.as_secs_f32() / gaps as f32);
            if self.gaps.len() == GAPS {
                self.observe_gaps();
            }
        }
        self.last_token = Some(now);
        self.tokens += count as u64;
    }

    /// The answer is complete.
    pub(crate) fn succeeded(&mut self) {
        self.end();
        let timings = self.timings();
        self.metrics.generated_tokens.observe(self.tokens as f64);
        if self.subject == Subject::Branch {
            return;
        }
        self.metrics.success.inc();
        self.metrics.duration.observe(timings.total.as_secs_f64());
        self.metrics.queue.observe(timings.queue.as_secs_f64());
        self.metrics
            .inference
            .observe(timings.inference.as_secs_f64());
        self.metrics
            .time_per_token
            .observe(timings.per_token.as_secs_f64());
    }

    /// The request failed.
    pub(crate) fn failed(&mut self, kind: ErrorKind) {
        self.end();
        self.count_failure(Failure::Error(kind));
    }

    /// How long things took so far.
    pub(crate) fn timings(&self) -> Timings {
        let end = self.ended.unwrap_or_else(Instant::now);
        let accepted = self.accepted.unwrap_or(end);
        // The engine may let it run before its submitter hears that it is accepted.
        let entered = self.entered.unwrap_or(end).max(accepted);
        let per_token = match (self.first_token, self.last_token, self.tokens) {
            (Some(first), Some(last), tokens @ 2..) => (last - first).div_f64((tokens - 1) as f64),
            _ => Duration::ZERO,
        };
        Timings {
            total: end - self.start,
            validation: accepted - self.start,
            queue: entered - accepted,
            inference: end.saturating_duration_since(entered),
            per_token,
        }
    }

    fn observe_gaps(&mut self) {
        for gap in self.gaps.drain(..) {
            self.metrics.inter_token.observe(gap.into());
        }
    }

    fn end(&mut self) {
        if self.ended.is_none() {
            self.observe_gaps();
            self.ended = Some(Instant::now());
            if self.subject == Subject::Request {
                self.metrics.open.dec();
            }
        }
    }

    fn count_failure(&self, err: Failure) {
        if self.subject == Subject::Request {
            let labels = FailureLabels { err };
            self.metrics.failure.get_or_create(&labels).inc();
        }
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.end();
            self.count_failure(Failure::Dropped);
        }
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
