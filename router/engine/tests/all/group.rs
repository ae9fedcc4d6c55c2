//! Tensor-parallel groups of mock workers.

use std::time::Duration;

use penstock_engine::EngineConfig;
use penstock_mock_shard::Fault;
use penstock_request::EngineState;
use penstock_request::types::End;

use crate::support::{
    MockWorkers, answer, checked, engine, faulty, reach, ready, request, step_deadline,
};

#[tokio::test]
async fn two_ranks_generate_the_same_tokens_as_one() {
    let single = engine(MockWorkers::one(checked()), EngineConfig::default());
    let pair = engine(
        MockWorkers::new(vec![vec![checked(), checked()]]),
        EngineConfig::default(),
    );
    ready(&single).await;
    ready(&pair).await;
    for length in [1, 30] {
        let wanted = request(vec![4; length], 40);
        assert_eq!(
            answer(&pair, wanted.clone()).await,
            answer(&single, wanted).await
        );
    }
}

#[tokio::test]
async fn ranks_with_different_geometry_are_refused() {
    let mut other = checked();
    other.geometry.blocks = 77;
    let engine = engine(
        MockWorkers::new(vec![vec![checked(), other]]),
        EngineConfig::default(),
    );
    let state = reach(&engine, |state| {
        matches!(state, EngineState::Stopped { .. })
    })
    .await;
    let EngineState::Stopped { reason } = state else {
        panic!("{state:?}")
    };
    assert!(
        reason.contains("worker 1") && reason.contains("kv_groups"),
        "{reason}"
    );
}

#[tokio::test]
async fn death_of_one_rank_restarts_the_group() {
    let lives = vec![
        vec![checked(), faulty(Fault::Crash(6))],
        vec![checked(), checked()],
    ];
    let workers = MockWorkers::new(lives);
    let [single, pair] = [MockWorkers::one(checked()), workers.clone()]
        .map(|workers| engine(workers, EngineConfig::default()));
    ready(&single).await;
    ready(&pair).await;
    let wanted = request(vec![1], 500);
    assert_eq!(
        answer(&pair, wanted.clone()).await,
        answer(&single, wanted).await
    );
    assert_eq!(workers.starts(), 2);
}

#[tokio::test]
async fn hung_rank_is_detected_at_the_deadline() {
    let lives = vec![
        vec![checked(), faulty(Fault::Hang(2))],
        vec![checked(), checked()],
    ];
    // Longer than a busy machine delays a step of a working worker.
    let config = step_deadline(Duration::from_millis(1500));
    let engine = engine(MockWorkers::new(lives), config);
    ready(&engine).await;
    // Unlike in a real group, rank 0 continues meanwhile.
    answer(&engine, request(vec![1], 10)).await;
    let lost = |state: &EngineState| matches!(state, EngineState::Restarting { .. });
    let state = reach(&engine, lost).await;
    let EngineState::Restarting { reason } = state else {
        panic!("{state:?}")
    };
    assert!(
        reason.contains("worker 1 did not answer step 2"),
        "{reason}"
    );
    ready(&engine).await;
    assert_eq!(answer(&engine, request(vec![1], 20)).await.1, End::Length);
}
