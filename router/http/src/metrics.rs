//! Prometheus metrics of the server: the registry, requests, responses, connections.

use std::fmt::Write as _;
use std::sync::Arc;

use penstock_text::TextMetrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The registry, and the metrics of the text and HTTP layers.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    text: Arc<TextMetrics>,
    pub(crate) http: HttpMetrics,
    pub(crate) store: StoreMetrics,
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
struct ResponseLabels {
    route: String,
    status: u16,
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

    /// Returns the metrics of requests, which a `Generator` counts in.
    pub fn text(&self) -> Arc<TextMetrics> {
        Arc::clone(&self.text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_keep_plain_names() {
        let metrics = Metrics::new(Registry::default());
        metrics.http.response("/generate", 200);
        metrics.http.refused.inc();
        let text = metrics.expose();
        for line in [
            "tgi_request_count 0",
            "penstock_http_connections_refused 1",
            "penstock_http_responses{route=\"/generate\",status=\"200\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} not in:\n{text}");
        }
        assert!(!text.contains("_total"), "{text}");
        assert!(!text.contains("EOF"), "{text}");
    }
}
