//! Requests with deadlines.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use penstock_engine::{Engine, EngineConfig, TokenStream};
use penstock_mock_shard::{Cost, MockConfig};
use penstock_request::deadline::Deadline;
use penstock_request::types::{End, EngineRequest, SubmitError};

use crate::support::{MockWorkers, checked, collect, engine, ready, request};

const LONG: Duration = Duration::from_secs(3600);

/// A worker with one slot whose steps take this many milliseconds.
fn one_slot(milliseconds: u64) -> MockConfig {
    let cost = Cost {
        step: Duration::from_millis(milliseconds),
        token: Duration::ZERO,
    };
    let mut config = MockConfig { cost, ..checked() };
    config.geometry.slots = 1;
    config
}

async fn submit(
    engine: &Engine,
    request: EngineRequest,
    deadline: Deadline,
) -> Result<TokenStream, SubmitError> {
    Deadline::scope(Some(deadline), engine.submit(request)).await
}

fn passed(end: &End) -> bool {
    matches!(end, End::DeadlinePassed(why) if why.contains("deadline of 0.1 s has passed"))
}

#[tokio::test]
async fn a_running_request_ends_at_its_deadline_and_frees_its_slot() {
    let engine = engine(MockWorkers::one(one_slot(1)), EngineConfig::default());
    ready(&engine).await;
    let soon = Deadline::after(Duration::from_millis(100));
    let late = submit(&engine, request(vec![5], 10_000), soon).await;
    let (ids, end) = collect(late.unwrap()).await;
    assert!(!ids.is_empty());
    assert!(passed(&end), "{end:?}");
    // It takes the only slot.
    let in_time = submit(&engine, request(vec![6], 20), Deadline::after(LONG)).await;
    let (ids, end) = collect(in_time.unwrap()).await;
    assert_eq!((ids.len(), end), (20, End::Length));
}

#[tokio::test]
async fn a_queued_request_ends_at_its_deadline() {
    let engine = engine(MockWorkers::one(one_slot(1)), EngineConfig::default());
    ready(&engine).await;
    let mut running = engine.submit(request(vec![5], 10_000)).await.unwrap();
    running.next().await.unwrap();
    let soon = Deadline::after(Duration::from_millis(100));
    let queued = submit(&engine, request(vec![6], 2), soon).await.unwrap();
    let (ids, end) = collect(queued).await;
    assert!(ids.is_empty());
    assert!(passed(&end), "{end:?}");
    assert!(running.next().await.unwrap().end.is_none());
}

#[tokio::test]
async fn a_request_that_cannot_meet_its_deadline_is_refused_before_it_runs() {
    let workers = MockWorkers::one(one_slot(10));
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let timeout = Duration::from_millis(300);
    let past = Deadline {
        at: Instant::now(),
        timeout,
    };
    let refused = submit(&engine, request(vec![5], 1), past).await.err();
    assert_eq!(refused, Some(SubmitError::DeadlinePassed { timeout }));
    assert_eq!(workers.view().steps, 0);

    // 40 requests of 5 steps of 10 ms, one at a time. The first ones show how long each takes.
    let mut queued = Vec::new();
    for _ in 0..40 {
        queued.push(engine.submit(request(vec![5], 5)).await.unwrap());
    }
    for stream in queued.drain(..3) {
        collect(stream).await;
    }
    let deadline = Deadline::after(timeout);
    let refused = submit(&engine, request(vec![6], 1), deadline).await.err();
    let Some(SubmitError::TooLate {
        wait, retry_after, ..
    }) = refused
    else {
        panic!("{refused:?}")
    };
    assert!(wait > timeout, "{wait:?}");
    assert!(retry_after >= Duration::from_secs(1));
    let patient = submit(&engine, request(vec![7], 1), Deadline::after(LONG)).await;
    assert_eq!(collect(patient.unwrap()).await.1, End::Length);
}

/// Deadlines of requests that have ended do nothing, and hold nothing up.
#[tokio::test]
async fn the_deadline_of_a_finished_request_is_forgotten() {
    let engine = engine(MockWorkers::one(one_slot(1)), EngineConfig::default());
    ready(&engine).await;
    for _ in 0..3 {
        let soon = Deadline::after(Duration::from_millis(100));
        let stream = submit(&engine, request(vec![5], 1), soon).await.unwrap();
        assert_eq!(collect(stream).await.1, End::Length);
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    let stream = engine.submit(request(vec![5], 3)).await.unwrap();
    assert_eq!(collect(stream).await.0.len(), 3);
}
