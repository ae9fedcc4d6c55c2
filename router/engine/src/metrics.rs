//! The engine's Prometheus metrics. Updated once per step, never per token.

use std::sync::Arc;

use penstock_scheduler::{Snapshot, plan::StepPlan};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::shard::StepAnswer;

/// The engine's metrics; clones share their values.
#[derive(Clone, Debug)]
pub struct EngineMetrics(Arc<Metrics>);

#[derive(Debug)]
struct Metrics {
    queue_size: Gauge,
    batch_current_size: Gauge,
    batch_next_size: Histogram,
    inference_duration: Family<Method, Histogram>,
    forward_duration: Family<Method, Histogram>,
    kv_blocks: Family<Blocks, Gauge>,
    dead_blocks: Gauge,
    waiting_tokens: Gauge,
    steps: Counter,
    computed_tokens: Counter,
    prefix_hit_tokens: Counter,
    preemptions: Counter,
    recomputed_tokens: Counter,
    worker_losses: Counter,
    step_failures: Counter,
    engine_failures: Counter,
    step_host: Histogram,
    step_device: Histogram,
}

/// TGI's label for what a step did. A step may do both here; one with prompt tokens counts as
/// `prefill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    method: MethodName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "the encoder takes label values from the names"
)]
enum MethodName {
    prefill,
    decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Blocks {
    state: BlockState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "the encoder takes label values from the names"
)]
enum BlockState {
    free,
    leased,
    cached,
}

/// Facts about a step that its answer's metrics need.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepFacts {
    sequences: usize,
    tokens: u64,
    method: MethodName,
}

impl StepFacts {
    pub(super) fn new(plan: &StepPlan) -> Self {
        let prompt = plan.runs.iter().any(|run| run.tokens > 1);
        let method = if prompt {
            MethodName::prefill
        } else {
            MethodName::decode
        };
        Self {
            sequences: plan.runs.len(),
            tokens: plan.runs.iter().map(|run| u64::from(run.tokens)).sum(),
            method,
        }
    }
}

impl EngineMetrics {
    /// Creates and registers the metrics, with TGI's names where the meaning is TGI's.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Metrics::new();
        metrics.register_requests(registry);
        metrics.register_memory(registry);
        metrics.register_steps(registry);
        Self(Arc::new(metrics))
    }

    pub(super) fn sent(&self, facts: StepFacts) {
        self.0.batch_next_size.observe(facts.sequences as f64);
    }

    pub(super) fn answered(&self, facts: StepFacts, answer: &StepAnswer) {
        let metrics = &self.0;
        let label = Method {
            method: facts.method,
        };
        let seconds = |micros: u64| micros as f64 / 1e6;
        let device = seconds(answer.timing.device.into());
        let took = seconds(answer.outcome.duration);
        metrics.steps.inc();
        metrics.computed_tokens.inc_by(facts.tokens);
        metrics
            .inference_duration
            .get_or_create(&label)
            .observe(took);
        metrics
            .forward_duration
            .get_or_create(&label)
            .observe(device);
        metrics
            .step_host
            .observe(seconds(answer.timing.host.into()));
        metrics.step_device.observe(device);
    }

    pub(super) fn lost(&self) {
        self.0.worker_losses.inc();
    }

    pub(super) fn step_failed(&self) {
        self.0.step_failures.inc();
    }

    pub(super) fn failed(&self) {
        self.0.engine_failures.inc();
    }

    pub(super) fn observe(&self, now: &Snapshot) {
        let metrics = &self.0;
        metrics
            .queue_size
            .set(signed((now.waiting + now.preparing) as u64));
        metrics.batch_current_size.set(signed(now.running as u64));
        metrics.waiting_tokens.set(signed(now.waiting_tokens));
        metrics.dead_blocks.set(signed(now.blocks_dead));
        let states = [
            (BlockState::free, now.blocks_free),
            (BlockState::leased, now.blocks_leased),
            (BlockState::cached, now.blocks_cached),
        ];
        for (state, blocks) in states {
            metrics
                .kv_blocks
                .get_or_create(&Blocks { state })
                .set(signed(blocks));
        }
        raise(&metrics.prefix_hit_tokens, now.prefix_hit_tokens);
        raise(&metrics.preemptions, now.preemptions);
        raise(&metrics.recomputed_tokens, now.recomputed_tokens);
    }
}

impl Metrics {
    fn new() -> Self {
        Self {
            queue_size: Gauge::default(),
            batch_current_size: Gauge::default(),
            batch_next_size: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            inference_duration: Family::new_with_constructor(seconds),
            forward_duration: Family::new_with_constructor(seconds),
            kv_blocks: Family::default(),
            dead_blocks: Gauge::default(),
            waiting_tokens: Gauge::default(),
            steps: Counter::default(),
            computed_tokens: Counter::default(),
            prefix_hit_tokens: Counter::default(),
            preemptions: Counter::default(),
            recomputed_tokens: Counter::default(),
            worker_losses: Counter::default(),
            step_failures: Counter::default(),
            engine_failures: Counter::default(),
            step_host: seconds(),
            step_device: seconds(),
        }
    }

    fn register_requests(&self, registry: &mut Registry) {
        registry.register(
            "tgi_queue_size",
            "Waiting requests",
            self.queue_size.clone(),
        );
        registry.register(
            "tgi_batch_current_size",
            "Sequences that hold a slot",
            self.batch_current_size.clone(),
        );
        registry.register(
            "tgi_batch_next_size",
            "Sequences in each step sent",
            self.batch_next_size.clone(),
        );
        registry.register(
            "penstock_waiting_tokens",
            "Known tokens of waiting sequences, including forks and preempted ones",
            self.waiting_tokens.clone(),
        );
        registry.register(
            "penstock_preemptions",
            "Sequences that lost their slot to an earlier one",
            self.preemptions.clone(),
        );
    }

    fn register_memory(&self, registry: &mut Registry) {
        registry.register(
            "penstock_kv_blocks",
            "KV blocks by state",
            self.kv_blocks.clone(),
        );
        registry.register(
            "penstock_kv_blocks_dead",
            "KV blocks owned by ended requests; a value other than 0 is a leak",
            self.dead_blocks.clone(),
        );
        registry.register(
            "penstock_prefix_hit_tokens",
            "Prompt tokens found in the prefix cache",
            self.prefix_hit_tokens.clone(),
        );
        registry.register(
            "penstock_recomputed_tokens",
            "Tokens computed again after a preemption or a loss of the workers",
            self.recomputed_tokens.clone(),
        );
    }

    fn register_steps(&self, registry: &mut Registry) {
        registry.register(
            "tgi_batch_inference_duration",
            "Seconds per step, from its turn on the workers to its answer",
            self.inference_duration.clone(),
        );
        registry.register(
            "tgi_batch_forward_duration",
            "Seconds per step on the device",
            self.forward_duration.clone(),
        );
        registry.register("penstock_steps", "Steps answered", self.steps.clone());
        registry.register(
            "penstock_computed_tokens",
            "Tokens computed in steps, both prompt and generated",
            self.computed_tokens.clone(),
        );
        registry.register(
            "penstock_step_host_seconds",
            "Seconds per step that the worker spends on the host preparing and launching it",
            self.step_host.clone(),
        );
        registry.register(
            "penstock_step_device_seconds",
            "Seconds per step from launch to tokens on the host",
            self.step_device.clone(),
        );
        registry.register(
            "penstock_worker_losses",
            "Losses of the workers",
            self.worker_losses.clone(),
        );
        registry.register(
            "penstock_step_failures",
            "Steps that failed as a whole, after which the workers went on",
            self.step_failures.clone(),
        );
        registry.register(
            "penstock_engine_failures",
            "Panics of the engine or the scheduler; each also counts as a loss of the workers",
            self.engine_failures.clone(),
        );
    }
}

/// TGI's buckets for durations: 35, from 0.1 ms, each 1.5 times the one before.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 1.5, 35))
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Raises a counter to a total that is kept elsewhere.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
