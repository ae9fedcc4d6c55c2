//! Times the phases of a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_request::error::ErrorKind;
use penstock_request::tenant::{Caller, Tenant};
use smallvec::SmallVec;

use super::{Failure, FailureLabels, TextMetrics};

/// Gaps between tokens that a request adds to the histogram at a time.
const GAPS: usize = 8;

/// Times one request from its arrival to its end. A drop before the end counts as `dropped`.
///
/// The first fields are those that every token touches.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RequestTimer {
    /// When the request first entered a slot.
    entered: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: u64,
    /// Seconds between tokens, not yet in the histogram. All threads share the histogram, so adding
    /// several at a time is cheaper.
    gaps: SmallVec<[f32; GAPS]>,
    metrics: Arc<TextMetrics>,
    subject: Subject,
    start: Instant,
    /// When the engine accepted the request.
    accepted: Option<Instant>,
    ended: Option<Instant>,
    /// The tenant that pays for the tokens.
    tenant: Option<Arc<Tenant>>,
}

/// What a timer measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// A request, through its first choice.
    Request,
    /// A further choice of a request: only its tokens count.
    Choice,
}

/// Durations of a request's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From arrival to the end, or until now.
    pub total: Duration,
    /// From arrival to acceptance by the engine: template, tokenizer, validation, preparation.
    pub validation: Duration,
    /// From acceptance to the first entry into a slot.
    pub queue: Duration,
    /// From the first entry into a slot to the end.
    pub inference: Duration,
    /// Mean over the tokens after the first.
    pub per_token: Duration,
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
            tenant: Caller::current().tenant,
        }
    }

    /// Creates the timer of a further choice of the same request, before its first token.
    pub(crate) fn for_choice(&self) -> Self {
        Self {
            metrics: Arc::clone(&self.metrics),
            subject: Subject::Choice,
            gaps: SmallVec::new(),
            tenant: self.tenant.clone(),
            ..*self
        }
    }

    /// Records that the engine accepted the request.
    pub(crate) fn accepted(&mut self, input: usize, max_new_tokens: u32) {
        let now = Instant::now();
        self.accepted = Some(now);
        if let Some(tenant) = &self.tenant {
            tenant.charge(input as u64, now);
        }
        self.metrics
            .validation
            .observe((now - self.start).as_secs_f64());
        self.metrics.input_length.observe(input as f64);
        self.metrics
            .max_new_tokens
            .observe(f64::from(max_new_tokens));
    }

    /// Whether the first entry into a slot is recorded.
    pub(crate) fn has_entered(&self) -> bool {
        self.entered.is_some()
    }

    /// Records the first entry into a slot. Without a `time`, the request counts as running since
    /// its acceptance.
    pub(crate) fn entered(&mut self, time: Option<Instant>) {
        let time = time.or(self.accepted);
        self.entered = Some(time.unwrap_or_else(Instant::now));
    }

    /// Records that `count` tokens go to the client now.
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

    /// Records that the output is complete.
    pub(crate) fn succeeded(&mut self) {
        self.end();
        let timings = self.timings();
        self.metrics.generated_tokens.observe(self.tokens as f64);
        if self.subject == Subject::Choice {
            return;
        }
        self.metrics.success.inc();
        self.metrics.totals().succeeded(&timings);
        self.metrics.duration.observe(timings.total.as_secs_f64());
        self.metrics.queue.observe(timings.queue.as_secs_f64());
        self.metrics
            .inference
            .observe(timings.inference.as_secs_f64());
        self.metrics
            .time_per_token
            .observe(timings.per_token.as_secs_f64());
    }

    /// Records that the request failed.
    pub(crate) fn failed(&mut self, kind: ErrorKind) {
        self.end();
        self.count_failure(Failure::Error(kind));
    }

    /// Returns the timings so far.
    pub(crate) fn timings(&self) -> Timings {
        let end = self.ended.unwrap_or_else(Instant::now);
        let accepted = self.accepted.unwrap_or(end);
        // The request may enter a slot before its submitter sees the acceptance.
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
            let now = Instant::now();
            if let Some(tenant) = &self.tenant {
                tenant.charge(self.tokens, now);
            }
            self.ended = Some(now);
            if self.subject == Subject::Request {
                self.metrics.open.dec();
            }
        }
    }

    fn count_failure(&self, err: Failure) {
        if self.subject == Subject::Request {
            let labels = FailureLabels { err };
            self.metrics.failure.get_or_create(&labels).inc();
            let total = self.timings().total;
            self.metrics.totals().failure.add(total);
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
