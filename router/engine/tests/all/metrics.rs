//! Step metrics across losses: later steps are counted correctly.

#![allow(clippy::panic, clippy::unwrap_used)]

use penstock_engine::{Engine, EngineConfig, EngineMetrics};
use penstock_mock_shard::{Fault, Geometry, MockConfig};
use penstock_scheduler::{Policy, SequenceFacts};
use prometheus_client::registry::Registry;

use crate::support::{MockWorkers, answer, checked, eventually, gauge, reach, ready, request};

/// Prompts of 7 tokens make the scheduler panic.
struct Poison;

impl Policy for Poison {
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64 {
        assert_ne!(facts.tokens, 7, "on purpose");
        0
    }
}

fn started(workers: MockWorkers) -> (Engine, Registry) {
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let policy = || Box::new(Poison) as Box<dyn Policy>;
    let engine = Engine::start_with(Box::new(workers), EngineConfig::default(), metrics, policy);
    (engine, registry)
}

/// A worker with at most 8 tokens per step.
fn small_steps(faults: Vec<Fault>) -> Vec<MockConfig> {
    let geometry = Geometry {
        step_tokens: 8,
        ..Geometry::default()
    };
    vec![MockConfig {
        geometry,
        faults,
        ..checked()
    }]
}

/// Steps, computed tokens, steps with prompt tokens and steps without.
fn counted(registry: &Registry) -> [i64; 4] {
    [
        "penstock_steps_total",
        "penstock_computed_tokens_total",
        "tgi_batch_inference_duration_count{method=\"prefill\"}",
        "tgi_batch_inference_duration_count{method=\"decode\"}",
    ]
    .map(|name| gauge(registry, name))
}

#[tokio::test]
async fn steps_after_a_worker_loss_are_counted_by_kind() {
    for panics in [false, true] {
        let lives = vec![small_steps(vec![Fault::Hang(7)]), small_steps(vec![])];
        let workers = MockWorkers::new(lives);
        let (engine, registry) = started(workers.clone());
        ready(&engine).await;
        // Five steps: one for the prompt of one token, and four decodes.
        answer(&engine, request(vec![9], 5)).await;
        assert_eq!(gauge(&registry, "penstock_steps_total"), 5);
        // Two steps of a long prompt are answered; the third hangs, with at least one behind it.
        let lost = engine.submit(request(vec![5; 80], 5)).await.unwrap();
        eventually("a step hangs", || {
            gauge(&registry, "penstock_steps_total") == 7 && workers.view().steps >= 8
        })
        .await;
        assert_eq!(counted(&registry), [7, 5 + 16, 2, 5]);
        match panics {
            true => assert!(engine.submit(request(vec![5; 7], 1)).await.is_err()),
            false => workers.kill(),
        }
        // Its client leaves, so the restarted workers do not see it.
        drop(lost);
        eventually("the workers restart", || workers.starts() == 2).await;
        ready(&engine).await;
        answer(&engine, request(vec![9], 5)).await;
        assert_eq!(counted(&registry), [12, 10 + 16, 2, 10], "panics: {panics}");
    }
}

#[tokio::test]
async fn counters_continue_after_a_scheduler_panic() {
    let workers = MockWorkers::one(checked());
    let (engine, registry) = started(workers.clone());
    let hits = || gauge(&registry, "penstock_prefix_hit_tokens_total");
    for life in 1..=3 {
        ready(&engine).await;
        for _ in 0..2 {
            answer(&engine, request((3..103).collect(), 4)).await;
        }
        // The second request after each start hits all whole blocks of 16 tokens.
        eventually("the hits are counted", || hits() == life * 96).await;
        assert!(engine.submit(request(vec![5; 7], 1)).await.is_err());
        reach(&engine, |state| {
            *state != penstock_request::EngineState::Ready
        })
        .await;
    }
    ready(&engine).await;
    assert_eq!(hits(), 3 * 96);
}

/// The mock's steps take microseconds; in a wrong unit, their sum would exceed the wall time.
#[tokio::test]
async fn durations_are_exported_in_seconds() {
    let (engine, registry) = started(MockWorkers::one(checked()));
    ready(&engine).await;
    let began = std::time::Instant::now();
    answer(&engine, request(vec![9], 50)).await;
    let seconds = figure(
        &registry,
        "tgi_batch_inference_duration_sum{method=\"decode\"}",
    );
    assert!(
        seconds > 0.0 && seconds <= began.elapsed().as_secs_f64(),
        "{seconds}"
    );
}

/// Returns the value of a metric that is not an integer.
fn figure(registry: &Registry, name: &str) -> f64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
