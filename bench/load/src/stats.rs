//! What one stream saw, and what all of them saw together.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The times of one request.
pub(crate) struct Stream {
    began: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: usize,
}

impl Stream {
    /// A request that was sent at `began`.
    pub(crate) const fn begun(began: Instant) -> Self {
        Self {
            began,
            first: None,
            last: None,
            tokens: 0,
        }
    }

    /// `count` tokens arrived at `now`.
    pub(crate) fn tokens(&mut self, count: usize, now: Instant) {
        if count > 0 {
            self.first.get_or_insert(now);
            self.last = Some(now);
            self.tokens += count;
        }
    }

    fn time_to_first(&self) -> Option<f64> {
        Some(millis(self.first?.duration_since(self.began)))
    }

    fn mean_gap(&self) -> Option<f64> {
        let span = self.last?.duration_since(self.first?);
        (self.tokens > 1).then(|| millis(span) / (self.tokens - 1) as f64)
    }
}

/// One JSON object: milliseconds, tokens and tokens per second.
pub(crate) fn summary(streams: &[Stream], elapsed: Duration) -> Value {
    let tokens: usize = streams.iter().map(|stream| stream.tokens).sum();
    let first = sorted(streams.iter().filter_map(Stream::time_to_first));
    let gaps = sorted(streams.iter().filter_map(Stream::mean_gap));
    json!({
        "requests": streams.len(),
        "tokens": tokens,
        "seconds": elapsed.as_secs_f64(),
        "tokens_per_second": tokens as f64 / elapsed.as_secs_f64(),
        "ttft_ms_p50": quantile(&first, 0.5),
        "ttft_ms_p99": quantile(&first, 0.99),
        "gap_ms_mean": gaps.iter().sum::<f64>() / gaps.len().max(1) as f64,
        "gap_ms_max": gaps.last(),
    })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((q * last as f64).round() as usize).copied()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
