//! Requests that end the workers, or make a step fail as a whole: each is found, the others go on.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use penstock_engine::EngineConfig;
use penstock_mock_shard::{Cost, Fault, MockConfig};
use penstock_request::types::End;

use crate::support::{
    MockWorkers, answer, checked, engine, faulty, quick_restarts, ready, request,
};

/// One of sixteen streams ends the workers, or makes a step fail; the others go on.
async fn found_among_others(fault: Fault, poisoned: u32) -> (u64, usize) {
    let quiet = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&quiet).await;
    let workers = MockWorkers::one(MockConfig {
        faults: vec![fault],
        cost: Cost {
            step: Duration::from_micros(300),
            ..Default::default()
        },
        ..checked()
    });
    let engine = engine(workers.clone(), quick_restarts());
    ready(&engine).await;
    let mut failed = 0;
    let runs = (0..16).map(|number| {
        let first = if number == poisoned { POISON } else { number };
        let wanted = request(vec![first, 77], 200);
        let (engine, quiet) = (&engine, &quiet);
        async move {
            let got = answer(engine, wanted.clone()).await;
            match got.1 {
                End::Failed(message) => {
                    assert_eq!(number, poisoned, "{message}");
                    assert!(message.starts_with("the workers fail on this request"));
                    1
                }
                _ => {
                    assert_eq!(got, answer(quiet, wanted).await);
                    0
                }
            }
        }
    });
    for run in futures_util::future::join_all(runs).await {
        failed += run;
    }
    (workers.starts(), failed)
}

/// The first token of a poisoned prompt. No answer of the mock worker contains it by chance.
const POISON: u32 = 31_999;

#[tokio::test]
async fn a_request_that_ends_the_workers_is_found_and_the_others_go_on() {
    for poisoned in [0, 7, 15] {
        let (starts, failed) = found_among_others(Fault::DieOn(POISON), poisoned).await;
        assert_eq!(failed, 1);
        // Four halvings, and the loss that made all of them suspects.
        assert!((3..=8).contains(&starts), "{starts} starts");
    }
}

#[tokio::test]
async fn a_request_that_makes_a_step_fail_is_found_without_a_restart() {
    let (starts, failed) = found_among_others(Fault::RaiseOn(POISON), 15).await;
    assert_eq!(failed, 1);
    // All begin at the same time: the first failed step comes before any answer.
    assert!(starts <= 2, "{starts} starts");
}

#[tokio::test]
async fn a_request_alone_that_ends_the_workers_fails_at_its_second_loss() {
    let workers = MockWorkers::one(faulty(Fault::DieOn(POISON)));
    let engine = engine(workers.clone(), quick_restarts());
    ready(&engine).await;
    let (ids, end) = answer(&engine, request(vec![POISON], 9)).await;
    assert!(ids.is_empty() && matches!(end, End::Failed(_)), "{end:?}");
    assert_eq!(answer(&engine, request(vec![3], 4)).await.1, End::Length);
    assert_eq!(workers.starts(), 3);
}
