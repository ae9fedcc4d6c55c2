//! Worker faults: requests go on with the same tokens on restarted workers, and later requests work.

use std::time::Duration;

use penstock_engine::shard::{Endpoint, LoadConfig};
use penstock_engine::{AttachedWorkers, Engine, EngineConfig, EngineMetrics, RestartPolicy};
use penstock_mock_shard::{Fault, MockConfig, MockShard};
use penstock_request::EngineState;
use penstock_request::types::{End, EngineRequest, SubmitError};
use prometheus_client::registry::Registry;

use crate::support::{
    MockWorkers, TIMEOUT, always_preparing, answer, checked, collect, engine, faulty,
    giving_up_after, quick_restarts, reach, ready, request, restarting, step_deadline,
};

#[tokio::test]
async fn a_stream_goes_on_with_the_same_tokens_after_a_worker_crash() {
    let expected = undisturbed(long()).await;
    let workers = MockWorkers::new(vec![vec![faulty(Fault::Crash(5))], vec![checked()]]);
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let stream = engine.submit(long()).await.unwrap();
    let state = reach(&engine, |state| *state != EngineState::Ready).await;
    let EngineState::Restarting { reason } = state else {
        panic!("{state:?}")
    };
    assert!(reason.contains("worker 0 was lost"), "{reason}");
    assert_eq!(collect(stream).await, expected);
    assert_eq!(answer(&engine, request(vec![1], 20)).await.1, End::Length);
    assert_eq!(workers.starts(), 2);
}

#[tokio::test]
async fn new_requests_wait_for_restarting_workers() {
    let workers = MockWorkers::new(vec![one_slot(vec![Fault::Hang(3)]), one_slot(vec![])]);
    let engine = engine(workers.clone(), slow_restarts(TIMEOUT));
    ready(&engine).await;
    let running = engine.submit(long()).await.unwrap();
    lose_twice(&engine, &workers).await;
    let queued = engine.submit(request(vec![3], 4)).await.unwrap();
    assert_eq!(collect(queued).await.1, End::Length);
    assert_eq!(collect(running).await.1, End::Length);
}

#[tokio::test]
async fn new_requests_are_refused_once_a_restart_takes_too_long() {
    let workers = MockWorkers::one(checked());
    let engine = engine(workers.clone(), slow_restarts(Duration::from_millis(20)));
    ready(&engine).await;
    lose_twice(&engine, &workers).await;
    let waited = engine.submit(request(vec![3], 4)).await.err();
    let refused = engine.submit(request(vec![3], 4)).await.err();
    for error in [waited, refused] {
        let Some(SubmitError::Unavailable { reason, .. }) = error else {
            panic!("{error:?}")
        };
        assert!(reason.contains("the workers are restarting"), "{reason}");
    }
}

#[tokio::test]
async fn idle_worker_that_dies_is_replaced_before_the_next_request() {
    let workers = MockWorkers::one(checked());
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    workers.kill();
    crate::support::eventually("the workers restart", || workers.starts() == 2).await;
    ready(&engine).await;
    assert_eq!(answer(&engine, request(vec![1], 3)).await.1, End::Length);
}

#[tokio::test]
async fn worker_that_outlives_a_router_serves_the_next_one() {
    let endpoint = Endpoint::Unix(crate::support::socket());
    let _worker = MockShard::spawn(&endpoint, checked()).unwrap();
    for _ in 0..3 {
        let attached = AttachedWorkers::new(vec![endpoint.clone()], &LoadConfig::default());
        let metrics = EngineMetrics::register(&mut Registry::default());
        let engine = Engine::start(Box::new(attached), EngineConfig::default(), metrics);
        ready(&engine).await;
        assert_eq!(answer(&engine, request(vec![1], 3)).await.1, End::Length);
        engine.drain(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_stream_goes_on_after_a_step_that_hangs() {
    let expected = undisturbed(long()).await;
    let workers = MockWorkers::new(vec![vec![faulty(Fault::Hang(3))], vec![checked()]]);
    // Longer than a busy machine delays a step of a working worker.
    let engine = engine(workers, step_deadline(Duration::from_millis(1500)));
    ready(&engine).await;
    let stream = engine.submit(long()).await.unwrap();
    let state = reach(&engine, |state| *state != EngineState::Ready).await;
    let EngineState::Restarting { reason } = state else {
        panic!("{state:?}")
    };
    assert!(reason.contains("did not answer step 3 within"), "{reason}");
    assert_eq!(collect(stream).await, expected);
    assert_eq!(answer(&engine, request(vec![1], 20)).await.1, End::Length);
}

#[tokio::test]
async fn late_answers_of_a_worker_that_stopped_for_a_while_change_nothing() {
    let expected = undisturbed(long()).await;
    let endpoint = Endpoint::Unix(crate::support::socket());
    let _worker = MockShard::spawn(&endpoint, faulty(Fault::Stall(20))).unwrap();
    let attached = AttachedWorkers::new(vec![endpoint], &LoadConfig::default());
    let metrics = EngineMetrics::register(&mut Registry::default());
    let config = step_deadline(Duration::from_millis(300));
    let engine = Engine::start(Box::new(attached), config, metrics);
    ready(&engine).await;
    // The same worker is in a newer epoch when the old step is answered.
    let stream = engine.submit(long()).await.unwrap();
    reach(&engine, |state| *state != EngineState::Ready).await;
    assert_eq!(collect(stream).await, expected);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(answer(&engine, long()).await, expected);
}

#[tokio::test]
async fn sequence_error_ends_only_its_request() {
    let engine = engine(
        MockWorkers::one(faulty(Fault::ErrorSlot(4))),
        EngineConfig::default(),
    );
    ready(&engine).await;
    let both = tokio::join!(
        answer(&engine, long()),
        answer(&engine, request(vec![9], 50))
    );
    let ends = [both.0.1, both.1.1];
    // The worker's message goes only to the log.
    let failed = |end: &&End| match end {
        End::Failed(message) => message
            .starts_with("the worker failed on this request; the server's log says why (request "),
        _ => false,
    };
    assert_eq!(ends.iter().filter(failed).count(), 1, "{ends:?}");
    assert_eq!(
        ends.iter().filter(|end| **end == End::Length).count(),
        1,
        "{ends:?}"
    );
}

#[tokio::test]
async fn a_request_that_prepare_rejects_is_rejected_at_submission() {
    let refusing = faulty(Fault::RefusePrepare("the grammar does not compile".into()));
    let engine = crate::support::engine(MockWorkers::one(refusing), always_preparing());
    ready(&engine).await;
    let refused = engine.submit(request(vec![1], 3)).await.err();
    assert_eq!(
        refused,
        Some(SubmitError::Invalid("the grammar does not compile".into()))
    );

    let engine = crate::support::engine(MockWorkers::one(checked()), always_preparing());
    ready(&engine).await;
    assert_eq!(answer(&engine, request(vec![1], 3)).await.1, End::Length);
}

#[tokio::test]
async fn load_failure_stops_the_engine_with_the_workers_reason() {
    let workers = MockWorkers::one(faulty(Fault::LoadError("no such folder: /x".into())));
    let engine = engine(workers.clone(), EngineConfig::default());
    let state = reach(&engine, |state| {
        matches!(state, EngineState::Stopped { .. })
    })
    .await;
    assert_eq!(
        state,
        EngineState::Stopped {
            reason: "no such folder: /x".into()
        }
    );
    let refused = engine.submit(request(vec![1], 3)).await.err();
    let Some(SubmitError::Unavailable { reason, .. }) = refused else {
        panic!("{refused:?}")
    };
    // Only the operator sees the path.
    assert_eq!(reason, "the engine has stopped; the server's log says why");
    assert_eq!(workers.starts(), 1, "a failed first load is not retried");
}

#[tokio::test]
async fn engine_stops_with_a_reason_after_the_losses_that_the_operator_allows() {
    let workers = MockWorkers::one(checked());
    let engine = engine(workers.clone(), giving_up_after(3));
    for _ in 0..3 {
        ready(&engine).await;
        workers.kill();
        reach(&engine, |state| *state != EngineState::Ready).await;
    }
    let state = reach(&engine, |state| {
        matches!(state, EngineState::Stopped { .. })
    })
    .await;
    let EngineState::Stopped { reason } = state else {
        panic!("{state:?}")
    };
    assert!(reason.contains("lost 3 times in a row"), "{reason}");
    assert_eq!(workers.starts(), 3);
}

#[tokio::test]
async fn the_engine_never_gives_up_by_default() {
    let workers = MockWorkers::one(checked());
    let engine = engine(workers.clone(), quick_restarts());
    for life in 1..=12 {
        crate::support::eventually("the workers are started", || workers.starts() == life).await;
        ready(&engine).await;
        workers.kill();
    }
    ready(&engine).await;
    assert_eq!(answer(&engine, request(vec![1], 3)).await.1, End::Length);
}

#[tokio::test]
async fn waiting_requests_fail_with_a_reason_when_the_engine_stops() {
    let workers = MockWorkers::new(vec![one_slot(vec![Fault::Hang(3)])]);
    let engine = engine(workers.clone(), giving_up_after(1));
    ready(&engine).await;
    let _running = engine.submit(long()).await.unwrap();
    let waiting = engine.submit(request(vec![3], 4)).await.unwrap();
    workers.kill();
    let (ids, End::Failed(reason)) = collect(waiting).await else {
        panic!("the request did not fail")
    };
    assert!(ids.is_empty(), "{ids:?}");
    assert!(reason.contains("the engine has stopped"), "{reason}");
}

#[tokio::test]
async fn running_and_waiting_requests_survive_a_worker_loss() {
    let expected = undisturbed(long()).await;
    let lives = vec![one_slot(vec![Fault::Hang(3)]), one_slot(vec![])];
    let workers = MockWorkers::new(lives);
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let running = engine.submit(long()).await.unwrap();
    let waiting = engine.submit(request(vec![3], 4)).await.unwrap();
    workers.kill();
    assert_eq!(collect(running).await, expected);
    let (ids, end) = collect(waiting).await;
    assert_eq!((ids.len(), end), (4, End::Length));
}

#[tokio::test]
async fn requests_that_restarted_workers_cannot_hold_fail_alone() {
    let mut smaller = one_slot(vec![]);
    smaller[0].geometry.sequence_tokens = 64;
    let lives = vec![one_slot(vec![Fault::Hang(3)]), smaller];
    let workers = MockWorkers::new(lives);
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let running = engine.submit(long()).await.unwrap();
    let too_long = engine.submit(request(vec![3; 60], 5)).await.unwrap();
    let fits = engine.submit(request(vec![4; 60], 4)).await.unwrap();
    workers.kill();
    let reason = "the restarted workers hold fewer tokens than this request needs";
    for misfit in [running, too_long] {
        assert_eq!(collect(misfit).await.1, End::Failed(reason.into()));
    }
    assert_eq!(collect(fits).await.1, End::Length);
    let refused = engine.submit(request(vec![5; 60], 5)).await.err();
    let Some(SubmitError::Invalid(reason)) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("the limit is 64"), "{reason}");
}

#[tokio::test]
async fn requests_are_prepared_again_by_the_new_workers() {
    let expected = undisturbed(long()).await;
    let lives = vec![
        one_slot(vec![Fault::Hang(3)]),
        one_slot(vec![Fault::HangPrepare]),
        one_slot(vec![]),
    ];
    let workers = MockWorkers::new(lives);
    let engine = engine(workers.clone(), always_preparing());
    ready(&engine).await;
    let running = engine.submit(long()).await.unwrap();
    let waiting = engine.submit(request(vec![3], 4)).await.unwrap();
    let leaving = engine.submit(request(vec![4], 4)).await.unwrap();
    workers.kill();
    // After a kill from outside no request waits for another.
    let preparing = || workers.starts() == 2 && workers.view().preparing == 3;
    crate::support::eventually("the new worker prepares all", preparing).await;
    drop(leaving);
    workers.kill();
    assert_eq!(collect(running).await, expected);
    let (ids, end) = collect(waiting).await;
    assert_eq!((ids.len(), end), (4, End::Length));
    assert_eq!((workers.starts(), workers.view().preparations), (3, 2));
}

#[tokio::test]
async fn requests_being_prepared_at_a_loss_keep_their_queue_position() {
    // The second workers prepare both requests; a hanging step then delays the first.
    let lives = vec![
        one_slot(vec![Fault::HangPrepare]),
        one_slot(vec![Fault::Hang(3)]),
        one_slot(vec![]),
    ];
    let workers = MockWorkers::new(lives);
    let engine = engine(workers.clone(), always_preparing());
    ready(&engine).await;
    let submit = |prompt, tokens| {
        let engine = engine.clone();
        let request = request(prompt, tokens);
        tokio::spawn(async move { engine.submit(request).await })
    };
    let first = submit(vec![1, 2], 200);
    let preparing = |number| workers.view().preparing == number;
    crate::support::eventually("one is being prepared", || preparing(1)).await;
    let second = submit(vec![3], 4);
    crate::support::eventually("two are being prepared", || preparing(2)).await;
    workers.kill();
    let first = first.await.unwrap().expect("prepared by the new workers");
    let second = second.await.unwrap().expect("prepared by the new workers");
    crate::support::eventually("a step hangs", || workers.view().steps == 4).await;
    workers.kill();
    // The first request was running; the second waited for the slot.
    assert_eq!(collect(first).await.1, End::Length);
    let (ids, end) = collect(second).await;
    assert_eq!((ids.len(), end, workers.starts()), (4, End::Length, 3));
}

#[tokio::test]
async fn a_request_whose_preparation_ends_the_workers_twice_fails() {
    let lives = vec![
        vec![faulty(Fault::HangPrepare)],
        vec![faulty(Fault::HangPrepare)],
        vec![checked()],
    ];
    let workers = MockWorkers::new(lives);
    let engine = engine(
        workers.clone(),
        EngineConfig {
            restart: quick_restarts().restart,
            ..always_preparing()
        },
    );
    ready(&engine).await;
    let submission = engine.submit(request(vec![1], 4));
    let end = async {
        for life in 1..=2 {
            let preparing = || workers.starts() == life && workers.view().preparing == 1;
            crate::support::eventually("it is being prepared", preparing).await;
            workers.fail();
        }
    };
    let (answer, ()) = tokio::join!(submission, end);
    let error = answer.err();
    let failed = |why: &String| why.starts_with("the workers fail on this request");
    assert!(
        matches!(&error, Some(SubmitError::Internal(why)) if failed(why)),
        "{error:?}"
    );
    ready(&engine).await;
    assert_eq!(answer_of(&engine, 2).await.1, End::Length);
}

async fn answer_of(engine: &Engine, first: u32) -> (Vec<u32>, End) {
    answer(engine, request(vec![first], 4)).await
}

#[tokio::test]
async fn a_dropped_preparation_is_repeated_and_the_request_goes_on() {
    let (prompt, tokens) = (vec![1, 2, 3], 30);
    let whole = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&whole).await;
    let expected = answer(&whole, request(prompt.clone(), tokens)).await;
    // Preparation may be repeated any number of times if tokens come in between.
    let faults = [0, 8, 14, 20, 26].map(Fault::DropPrepared).to_vec();
    let workers = MockWorkers::one(MockConfig {
        faults,
        ..checked()
    });
    let engine = engine(workers.clone(), always_preparing());
    ready(&engine).await;
    assert_eq!(answer(&engine, request(prompt, tokens)).await, expected);
    assert_eq!((workers.starts(), workers.view().preparations), (1, 6));
}

#[tokio::test]
async fn choices_whose_grammar_was_dropped_are_prepared_again_and_go_on() {
    let several = || EngineRequest {
        choices: 4,
        ..request(vec![1, 2, 3], 30)
    };
    let whole = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&whole).await;
    let expected = crate::support::answers(&whole, several()).await;
    let faults = [0, 9, 20].map(Fault::DropPrepared).to_vec();
    let workers = MockWorkers::one(MockConfig {
        faults,
        ..checked()
    });
    let engine = engine(workers, always_preparing());
    ready(&engine).await;
    assert_eq!(crate::support::answers(&engine, several()).await, expected);
}

#[tokio::test]
async fn a_request_whose_preparation_keeps_being_dropped_fails_alone() {
    let faults = (0..12).map(Fault::DropPrepared).collect();
    let workers = MockWorkers::new(vec![one_slot(faults)]);
    let engine = engine(workers.clone(), always_preparing());
    ready(&engine).await;
    let (ids, end) = answer(&engine, long()).await;
    let End::Failed(message) = end else {
        panic!("ended with {end:?}")
    };
    assert!(
        ids.is_empty() && message.contains("lack the memory"),
        "{message}"
    );
    while workers.view().steps < 12 {
        answer(&engine, request(vec![4], 1)).await;
    }
    assert_eq!(answer(&engine, request(vec![5], 4)).await.1, End::Length);
}

#[tokio::test]
async fn token_beyond_the_vocabulary_is_a_protocol_error() {
    let expected = undisturbed(long()).await;
    let workers = MockWorkers::new(vec![vec![faulty(Fault::AlienToken(3))], vec![checked()]]);
    let engine = engine(workers.clone(), EngineConfig::default());
    ready(&engine).await;
    let stream = engine.submit(long()).await.unwrap();
    let state = reach(&engine, |state| *state != EngineState::Ready).await;
    let EngineState::Restarting { reason } = state else {
        panic!("{state:?}")
    };
    let rule = "worker 0 broke the protocol: it answered token id 32000, but the vocabulary has";
    assert!(reason.starts_with(rule), "{reason}");
    assert_eq!(collect(stream).await, expected);
}

/// Returns the answer of workers that nothing disturbs.
async fn undisturbed(request: EngineRequest) -> (Vec<u32>, End) {
    let engine = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&engine).await;
    answer(&engine, request).await
}

/// Restarts after the second loss in a row take half a second.
fn slow_restarts(max_restart_wait: Duration) -> EngineConfig {
    EngineConfig {
        max_restart_wait,
        ..restarting(RestartPolicy {
            backoff: Duration::from_millis(500),
            ..RestartPolicy::default()
        })
    }
}

/// Kills the workers twice and returns while they restart.
async fn lose_twice(engine: &Engine, workers: &MockWorkers) {
    for life in 1..=2 {
        crate::support::eventually("the workers are started", || workers.starts() == life).await;
        ready(engine).await;
        workers.kill();
        reach(engine, |state| *state != EngineState::Ready).await;
    }
}

/// A worker with room for one sequence.
fn one_slot(faults: Vec<Fault>) -> Vec<MockConfig> {
    let mut config = checked();
    config.geometry.slots = 1;
    vec![MockConfig { faults, ..config }]
}

fn long() -> EngineRequest {
    request(vec![1, 2], 200)
}
