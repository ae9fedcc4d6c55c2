//! What the engine costs per token and how much it stretches a step, over a mock worker:
//! `cargo bench -p penstock-engine --bench engine`. One thread runs the engine, its connection and
//! the streams' consumers; the worker has a thread of its own, which is not counted.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    fs,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all};
use penstock_engine::shard::{Endpoint, LoadConfig};
use penstock_engine::{AttachedWorkers, Engine, EngineConfig, EngineMetrics};
use penstock_mock_shard::{Cost, MockConfig, MockShard};
use penstock_request::EngineState;
use penstock_request::sampling_params::SamplingParams;
use penstock_request::types::{EngineRequest, Stopping};
use prometheus_client::registry::Registry;

const PROMPT: usize = 20;
const ANSWER: u32 = 256;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    println!("step ms  streams  CPU us/token  tokens/s  ms/step");
    for step_ms in [0, 20] {
        for streams in [1, 32, 256] {
            runtime.block_on(measure(Duration::from_millis(step_ms), streams));
        }
    }
}

async fn measure(step: Duration, streams: u32) {
    let path = std::env::temp_dir().join(format!("penstock-bench-{}", std::process::id()));
    let endpoint = Endpoint::Unix(path);
    let cost = Cost {
        step,
        token: Duration::ZERO,
    };
    let shard = MockShard::spawn(
        &endpoint,
        MockConfig {
            cost,
            ..MockConfig::default()
        },
    )
    .unwrap();
    let workers = AttachedWorkers::new(vec![endpoint], &LoadConfig::default());
    let metrics = EngineMetrics::register(&mut Registry::default());
    let engine = Engine::start(Box::new(workers), EngineConfig::default(), metrics);
    engine
        .watch()
        .wait_for(|state| *state == EngineState::Ready)
        .await
        .unwrap();
    let repeats = if step.is_zero() { 1 + 256 / streams } else { 1 };
    let (cpu, wall, steps) = (cpu_seconds(), Instant::now(), shard.view().steps);
    for _ in 0..repeats {
        let consumers = (0..streams).map(|number| tokio::spawn(consume(engine.clone(), number)));
        join_all(consumers).await;
    }
    let tokens = f64::from(repeats * streams * ANSWER);
    let (cpu, wall) = (cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
    println!(
        "{:7}  {streams:7}  {:12.2}  {:8.0}  {:7.3}",
        step.as_millis(),
        cpu * 1e6 / tokens,
        tokens / wall,
        wall * 1e3 / (shard.view().steps - steps) as f64,
    );
}

async fn consume(engine: Engine, number: u32) {
    let request = EngineRequest {
        cache_salt: Box::default(),
        priority: 0,
        prompt: vec![number + 1; PROMPT],
        sampling: SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        },
        grammar: None,
        stopping: Stopping {
            max_new_tokens: ANSWER,
            min_new_tokens: 0,
            stop_token_ids: Vec::new(),
        },
        choices: 1,
        beam: None,
    };
    let stream = engine.submit(request).await.unwrap();
    let tokens = stream
        .fold(0, async |sum, event| sum + event.tokens.len())
        .await;
    assert_eq!(tokens, ANSWER as usize);
}

/// Time on the CPU of this thread, user and kernel; from Linux's scheduler statistics.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
