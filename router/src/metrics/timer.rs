//! How long one request takes, part by part.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::{Failure, FailureLabels, TextMetrics};
use crate::error::ErrorKind;

/// Gaps between tokens that a request counts at a time.
const GAPS: usize = 8;

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
    Choice,
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
    pub(crate) fn for_choice(&self) -> Self {
        Self {
            metrics: Arc::clone(&self.metrics),
            subject: Subject::Choice,
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
        if self.subject == Subject::Choice {
            return;
        }
        self.metrics.success.inc();
        self.metrics.statistics().succeeded(&timings);
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
            let total = self.timings().total;
            self.metrics.statistics().failure.add(total);
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
