//! Beam search in the engine: results do not depend on the batch, and a failure affects only its
//! request. tests/e2e compares the results with `transformers`.

#![allow(clippy::unwrap_used)]

use futures_util::{StreamExt, future::join_all};
use penstock_engine::EngineConfig;
use penstock_mock_shard::{Fault, Geometry};
use penstock_request::types::{BeamParameters, EarlyStopping, End, EngineRequest};
use prometheus_client::registry::Registry;
use tokio::time::timeout;

use crate::support::{
    END, MockWorkers, TIMEOUT, answer, answers, collect, engine, eventually, faulty, gauge, prompt,
    ready, request, started,
};

#[tokio::test]
async fn beam_search_is_unchanged_when_memory_is_short() {
    let wanted = |number: u32| match number % 3 {
        0 => request(prompt(number), 10 + number),
        _ => search(prompt(number), 6 + number, (1 + number % 5, 1 + number % 2)),
    };
    let (roomy, _) = started(geometry(4096, 16)).await;
    let mut alone = Vec::new();
    for number in 0..18 {
        alone.push(answers(&roomy, wanted(number)).await);
    }
    let ended = |(ids, end): &(Vec<u32>, End)| match end {
        End::StopToken => ids.last() == Some(&END),
        End::Length => !ids.is_empty(),
        End::Failed(_) | End::DeadlinePassed(_) => false,
    };
    assert!(alone.iter().flatten().all(ended), "{alone:?}");
    for (blocks, block_tokens) in [(30, 16), (250, 2)] {
        let (crowd, registry) = started(geometry(blocks, block_tokens)).await;
        let together = join_all((0..18).map(|number| answers(&crowd, wanted(number)))).await;
        assert_eq!(together, alone, "{blocks} blocks of {block_tokens}");
        assert!(gauge(&registry, "penstock_preemptions_total") > 0);
        nothing_is_leased(&registry).await;
    }
}

#[tokio::test]
async fn a_beam_search_without_top_logprobs_fails_alone() {
    let workers = MockWorkers::one(faulty(Fault::OmitLogprobs));
    let engine = engine(workers, EngineConfig::default());
    ready(&engine).await;
    let other = engine.submit(request(vec![3], 60)).await.unwrap();
    for (ids, end) in answers(&engine, search(vec![5; 40], 30, (3, 2))).await {
        let why = matches!(&end, End::Failed(why) if why.contains("no top logprobs"));
        assert!(ids.is_empty() && why, "{end:?}");
    }
    assert_eq!(collect(other).await.0.len(), 60);
    assert_eq!(answer(&engine, request(vec![3], 4)).await.0.len(), 4);
}

#[tokio::test]
async fn beam_search_fails_if_one_of_its_sequences_fails() {
    for step in [0, 1, 4] {
        let workers = MockWorkers::one(faulty(Fault::ErrorSlot(step)));
        let engine = engine(workers, EngineConfig::default());
        ready(&engine).await;
        for (_, end) in answers(&engine, search(vec![5; 40], 30, (3, 2))).await {
            assert!(matches!(end, End::Failed(_)), "{end:?}");
        }
        assert_eq!(answer(&engine, request(vec![3], 4)).await.0.len(), 4);
    }
}

#[tokio::test]
async fn a_failed_beam_search_ends_all_remaining_choices() {
    let workers = MockWorkers::one(faulty(Fault::ErrorSlot(12)));
    let engine = engine(workers, EngineConfig::default());
    ready(&engine).await;
    let wanted = search(vec![5; 40], 30, (3, 2));
    let mut streams = engine.submit_all(wanted).await.unwrap();
    drop(streams.remove(0));
    let ended = timeout(TIMEOUT, collect(streams.remove(0))).await;
    let (_, end) = ended.expect("the remaining choice ends");
    assert!(matches!(end, End::Failed(_)), "{end:?}");
}

#[tokio::test]
async fn a_beam_search_goes_on_for_the_remaining_choices() {
    let (engine, registry) = started(geometry(4096, 16)).await;
    let wanted = search(vec![5; 40], 40, (4, 2));
    let expected = answers(&engine, wanted.clone()).await;
    let mut streams = engine.submit_all(wanted.clone()).await.unwrap();
    drop(streams.remove(0));
    assert_eq!(collect(streams.remove(0)).await, expected[1]);
    // Dropped by its client, once immediately and once while it runs.
    drop(engine.submit_all(wanted).await.unwrap());
    let streams = engine.submit_all(search(vec![5; 9], 1000, (4, 1))).await;
    let mut other = engine.submit(request(vec![4], 6)).await.unwrap();
    while other.next().await.is_some() {}
    drop(streams);
    nothing_is_leased(&registry).await;
    assert_eq!(gauge(&registry, "penstock_kv_blocks_dead"), 0);
}

async fn nothing_is_leased(registry: &Registry) {
    eventually("nothing is leased", || {
        gauge(registry, "penstock_kv_blocks{state=\"leased\"}") == 0
    })
    .await;
}

fn geometry(blocks: u32, block_tokens: u32) -> Geometry {
    Geometry {
        blocks,
        block_tokens,
        slots: 24,
        step_tokens: 96,
        ..Geometry::default()
    }
}

/// A request for beam search with this width and number of choices.
fn search(prompt: Vec<u32>, max_new_tokens: u32, (width, answers): (u32, u32)) -> EngineRequest {
    let mut wanted = request(prompt, max_new_tokens);
    let beam = BeamParameters {
        width,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Heuristic,
    };
    wanted.stopping.stop_token_ids = vec![END];
    wanted.choices = answers.min(width);
    wanted.beam = Some(beam);
    wanted
}
