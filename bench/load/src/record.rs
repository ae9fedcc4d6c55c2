//! What was seen of one request, and what all of them saw together.

use serde::Serialize;
use serde_json::{Value, json};

/// One request. Times are seconds since the start of the run.
#[derive(Default, Serialize)]
pub(crate) struct Record {
    /// Number of its job.
    pub(crate) job: usize,
    /// Its place in the job.
    pub(crate) turn: usize,
    /// When it was sent.
    pub(crate) sent: f64,
    /// When each event that brought a token arrived.
    pub(crate) arrivals: Vec<f64>,
    /// Tokens of the prompt, by the server's count; 0 = it did not tell.
    pub(crate) prompt_tokens: usize,
    /// Tokens of the answer, by the server's count, or by events if it did not tell.
    pub(crate) tokens: usize,
    /// Why it failed, if it did.
    pub(crate) error: Option<String>,
}

impl Record {
    fn time_to_first(&self) -> Option<f64> {
        Some(1e3 * (self.arrivals.first()? - self.sent))
    }

    fn mean_gap(&self) -> Option<f64> {
        let span = self.arrivals.last()? - self.arrivals.first()?;
        (self.tokens > 1).then(|| 1e3 * span / (self.tokens - 1) as f64)
    }
}

/// One JSON object: milliseconds, tokens and tokens per second.
pub(crate) fn summary(records: &[Record], seconds: f64) -> Value {
    let tokens: usize = records.iter().map(|record| record.tokens).sum();
    let first = sorted(records.iter().filter_map(Record::time_to_first));
    let gaps = sorted(records.iter().filter_map(Record::mean_gap));
    json!({
        "requests": records.len(),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens as f64 / seconds,
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
