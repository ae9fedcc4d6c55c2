//! Aborts, overload and drain.

use std::time::Duration;

use futures_util::StreamExt;
use penstock_engine::{Engine, EngineConfig, EngineMetrics};
use penstock_mock_shard::{Cost, Exit, Fault, MockConfig};
use penstock_request::EngineState;
use penstock_request::client::Client;
use penstock_request::types::{End, SubmitError};
use prometheus_client::registry::Registry;

use crate::support::{
    MockWorkers, always_preparing, checked, collect, engine, eventually, faulty, gauge, ready,
    request,
};

#[tokio::test]
async fn abort_frees_slot_and_blocks_at_once() {
    let workers = MockWorkers::one(slow(20));
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let engine = Engine::start(Box::new(workers.clone()), EngineConfig::default(), metrics);
    ready(&engine).await;
    let kept = engine.submit(request(vec![5; 100], 30)).await.unwrap();
    let mut dropped = engine.submit(request(vec![6; 100], 30)).await.unwrap();
    dropped.next().await.unwrap();
    assert_eq!(workers.view().sequences, 2);
    let before = workers.view().steps;
    drop(dropped);
    eventually("the slot is free", || workers.view().sequences == 1).await;
    // The drop happens during a step with two steps in flight, so the third carries the abort.
    let steps = workers.view().steps - before;
    assert!(steps <= 4, "the worker got the abort after {steps} steps");
    assert_eq!(gauge(&registry, "penstock_kv_blocks_dead"), 0);
    assert_eq!(collect(kept).await.0.len(), 30);
    eventually("nothing is leased", || {
        gauge(&registry, "penstock_kv_blocks{state=\"leased\"}") == 0
    })
    .await;
}

#[tokio::test]
async fn queued_requests_and_pending_submissions_can_be_aborted() {
    let mut config = slow(1);
    config.geometry.slots = 1;
    let workers = MockWorkers::one(config);
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let engine = Engine::start(Box::new(workers), EngineConfig::default(), metrics);
    ready(&engine).await;
    let running = engine.submit(request(vec![5], 100)).await.unwrap();
    let queued = engine.submit(request(vec![6], 100)).await.unwrap();
    drop(queued);
    let withdrawn = engine.submit(request(vec![7], 100));
    let timed_out = tokio::time::timeout(Duration::ZERO, withdrawn).await;
    drop(timed_out);
    eventually("the queue is empty", || {
        gauge(&registry, "tgi_queue_size") == 0
    })
    .await;
    assert_eq!(collect(running).await.1, End::Length);
}

#[tokio::test]
async fn aborted_submission_stops_its_preparation() {
    let config = MockConfig {
        faults: vec![Fault::HangPrepare],
        ..checked()
    };
    let workers = MockWorkers::new(vec![vec![config.clone(), config]]);
    let engine = engine(workers.clone(), always_preparing());
    ready(&engine).await;
    let submission = tokio::spawn({
        let engine = engine.clone();
        async move { engine.submit(request(vec![5], 1)).await.is_ok() }
    });
    eventually("the preparation runs", || workers.view().preparing == 1).await;
    submission.abort();
    eventually("the preparation has stopped", || {
        workers.view().preparing == 0
    })
    .await;
}

#[tokio::test]
async fn one_client_does_not_take_all_prepare_calls() {
    let workers = MockWorkers::one(faulty(Fault::HangPrepare));
    let engine = engine(workers.clone(), always_preparing());
    ready(&engine).await;
    let at = |address: &str| Client::at(address.parse().unwrap());
    let submit = |client: Option<Client>| {
        let engine = engine.clone();
        let submit = async move { engine.submit(request(vec![5], 1)).await.is_ok() };
        match client {
            Some(client) => tokio::spawn(client.scope(submit)),
            None => tokio::spawn(submit),
        }
    };
    let many: Vec<_> = (0..20).map(|_| submit(Some(at("10.0.0.1")))).collect();
    eventually("one client has half of the calls", || {
        workers.view().preparing == 8
    })
    .await;
    let others = [submit(Some(at("2001:db8::7"))), submit(None)];
    eventually("other clients have calls", || {
        workers.view().preparing == 10
    })
    .await;
    let mut clients = workers.clients();
    clients.sort();
    clients.dedup();
    assert_eq!(clients, ["", "10.0.0.1", "2001:db8::"]);
    many.iter().chain(&others).for_each(|task| task.abort());
    eventually("all calls were aborted", || workers.view().preparing == 0).await;
    // Calls aborted while they wait never start: exactly ten did.
    assert_eq!(workers.view().preparations, 10);
}

#[tokio::test]
async fn finished_stream_frees_its_slot_without_an_error() {
    let workers = MockWorkers::one(slow(1));
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let other = engine.submit(request(vec![8], 60)).await.unwrap();
    let mut stream = engine.submit(request(vec![5], 1000)).await.unwrap();
    stream.next().await.unwrap();
    stream.finish();
    eventually("the slot is free", || workers.view().sequences == 1).await;
    assert_eq!(collect(other).await.1, End::Length);
}

#[tokio::test]
async fn past_the_queue_bounds_requests_are_refused_with_retry_after() {
    let mut config = slow(2);
    config.geometry.slots = 1;
    let limits = EngineConfig {
        max_waiting: 2,
        ..EngineConfig::default()
    };
    let engine = engine(MockWorkers::one(config), limits);
    ready(&engine).await;
    let mut running = engine.submit(request(vec![5], 50)).await.unwrap();
    running.next().await.unwrap();
    let waiting = [
        engine.submit(request(vec![6], 2)).await.unwrap(),
        engine.submit(request(vec![7], 2)).await.unwrap(),
    ];
    let refused = engine.submit(request(vec![8], 2)).await.err();
    let Some(SubmitError::Overloaded { retry_after }) = refused else {
        panic!("{refused:?}")
    };
    assert!(retry_after >= Duration::from_secs(1) && retry_after <= Duration::from_secs(60));
    assert_eq!(
        collect(running).await.1,
        End::Length,
        "running requests are not affected"
    );
    for stream in waiting {
        assert_eq!(collect(stream).await.1, End::Length);
    }
}

#[tokio::test]
async fn too_long_request_error_names_length_and_limit() {
    let mut config = checked();
    config.geometry.sequence_tokens = 100;
    let engine = engine(MockWorkers::one(config), EngineConfig::default());
    ready(&engine).await;
    let refused = engine.submit(request(vec![5; 90], 11)).await.err();
    let Some(SubmitError::Invalid(message)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        message.contains("101") && message.contains("100"),
        "{message}"
    );
}

#[tokio::test]
async fn drain_finishes_accepted_requests_and_stops_the_workers() {
    let workers = MockWorkers::one(slow(1));
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let running = engine.submit(request(vec![5], 50)).await.unwrap();
    let draining = tokio::spawn({
        let engine = engine.clone();
        async move { engine.drain(crate::support::TIMEOUT).await }
    });
    crate::support::reach(&engine, |state| *state == EngineState::Draining).await;
    assert_eq!(
        engine.submit(request(vec![1], 1)).await.err(),
        Some(SubmitError::Draining)
    );
    let (ids, end) = collect(running).await;
    assert_eq!((ids.len(), end), (50, End::Length));
    draining.await.unwrap();
    assert!(matches!(engine.state(), EngineState::Stopped { .. }));
    assert_eq!(workers.exit(), Some(Exit::Asked));
}

#[tokio::test]
async fn drain_fails_requests_that_outlast_its_grace_period() {
    let engine = engine(MockWorkers::one(slow(1)), EngineConfig::default());
    ready(&engine).await;
    let running = engine.submit(request(vec![5], 10_000)).await.unwrap();
    engine.drain(Duration::from_millis(50)).await;
    assert!(matches!(collect(running).await.1, End::Failed(_)));
}

#[tokio::test]
async fn dropped_engine_stops_its_workers() {
    let workers = MockWorkers::one(checked());
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    drop(engine);
    eventually("the worker got Shutdown", || {
        workers.exit() == Some(Exit::Asked)
    })
    .await;
}

fn slow(milliseconds: u64) -> MockConfig {
    let cost = Cost {
        step: Duration::from_millis(milliseconds),
        token: Duration::ZERO,
    };
    MockConfig { cost, ..checked() }
}

#[tokio::test]
async fn limits_are_known_once_the_model_is_loaded() {
    let engine = engine(MockWorkers::one(checked()), EngineConfig::default());
    assert!(engine.limits().is_none());
    ready(&engine).await;
    let (limits, geometry) = (engine.limits().unwrap(), checked().geometry);
    assert_eq!(limits.max_sequence_tokens, geometry.sequence_tokens);
    assert_eq!(limits.max_slots, geometry.slots);
    assert_eq!(limits.max_step_tokens, geometry.step_tokens);
    assert_eq!(limits.vocab_size, geometry.vocab);
    let tokens = u64::from(geometry.blocks * geometry.block_tokens);
    assert_eq!(limits.kv_tokens, tokens);
}
