//! Several choices per prompt: each gets its own tokens, and the prompt is computed once.

#![allow(clippy::unwrap_used)]

use futures_util::{StreamExt, future::join_all};
use penstock_engine::{Engine, EngineConfig, EngineMetrics};
use penstock_mock_shard::{Fault, Geometry};
use penstock_request::types::{End, EngineRequest};
use prometheus_client::registry::Registry;

use crate::support::{
    MockWorkers, answer, answers, checked, collect, engine, eventually, faulty, gauge, prompt,
    ready, request, started,
};

const PROMPT: u32 = 201;

#[tokio::test]
async fn n_choices_equal_n_requests_with_derived_seeds() {
    for block_tokens in [1, 3, 16] {
        let (engine, _) = started(geometry(4096, block_tokens)).await;
        let wanted = sampled((0..PROMPT).map(|i| 5 + i).collect(), 12, 4);
        let together = answers(&engine, wanted.clone()).await;
        for (choice, together) in (0..).zip(&together) {
            let mut alone = wanted.clone();
            alone.choices = 1;
            alone.sampling.seed = wanted.sampling.choice_seed(choice);
            assert_eq!(*together, answer(&engine, alone).await, "choice {choice}");
        }
        let different = |choice: usize| together[choice].0 != together[0].0;
        assert!((1..4).all(different), "{together:?}");
    }
}

#[tokio::test]
async fn prompt_of_n_choices_is_computed_once() {
    for cache in [true, false] {
        let config = EngineConfig {
            prefix_cache: cache,
            ..EngineConfig::default()
        };
        let mut registry = Registry::default();
        let metrics = EngineMetrics::register(&mut registry);
        let workers = MockWorkers::one(checked());
        let engine = Engine::start(Box::new(workers), config, metrics);
        ready(&engine).await;
        answers(&engine, sampled(vec![7; PROMPT as usize], 5, 4)).await;
        // The prompt except its last token once; then for each choice the last token and four
        // decodes. Runs that were planned before their choice ended are not counted yet.
        let computed = gauge(&registry, "penstock_computed_tokens_total");
        assert_eq!(computed, i64::from(PROMPT) - 1 + 4 + 4 * 4);
    }
}

#[tokio::test]
async fn choices_are_right_when_memory_is_short() {
    let wanted = |number: u32| {
        let mut wanted = sampled(prompt(number), 6 + number, 1 + number % 5);
        wanted.sampling.seed = number.into();
        wanted.stopping.stop_token_ids = vec![2];
        wanted
    };
    let (roomy, _) = started(geometry(4096, 16)).await;
    let mut alone = Vec::new();
    for number in 0..24 {
        alone.push(answers(&roomy, wanted(number)).await);
    }
    for (blocks, block_tokens) in [(40, 16), (300, 2)] {
        let (crowd, registry) = started(geometry(blocks, block_tokens)).await;
        let together = join_all((0..24).map(|number| answers(&crowd, wanted(number)))).await;
        assert_eq!(together, alone, "{blocks} blocks of {block_tokens}");
        assert!(gauge(&registry, "penstock_preemptions_total") > 0);
        eventually("nothing is leased", || {
            gauge(&registry, "penstock_kv_blocks{state=\"leased\"}") == 0
        })
        .await;
    }
}

#[tokio::test]
async fn choices_end_one_by_one() {
    let (engine, registry) = started(geometry(4096, 16)).await;
    let wanted = sampled(vec![5; 40], 200, 3);
    let mut streams = engine.submit_all(wanted.clone()).await.unwrap();
    // One choice is dropped before it starts, one is finished after its first token.
    drop(streams.remove(1));
    let mut ended = streams.remove(1);
    ended.next().await.unwrap();
    ended.finish();
    let (ids, end) = collect(streams.remove(0)).await;
    assert_eq!((ids.len(), end), (200, End::Length));
    eventually("no sequence is left", || {
        gauge(&registry, "tgi_batch_current_size") == 0
    })
    .await;
    // All choices are dropped while the prompt is being computed.
    drop(engine.submit_all(wanted).await.unwrap());
    eventually("nothing is leased", || {
        gauge(&registry, "penstock_kv_blocks{state=\"leased\"}") == 0
    })
    .await;
    assert_eq!(gauge(&registry, "penstock_kv_blocks_dead"), 0);
}

#[tokio::test]
async fn a_choice_that_fails_ends_its_request() {
    for step in [0, 1, 4] {
        let workers = MockWorkers::one(faulty(Fault::ErrorSlot(step)));
        let engine = engine(workers, EngineConfig::default());
        ready(&engine).await;
        for (_, end) in answers(&engine, sampled(vec![5; 40], 30, 3)).await {
            assert!(
                matches!(&end, End::Failed(why) if why.contains("the worker failed on this request")),
                "{end:?}"
            );
        }
        assert_eq!(answer(&engine, request(vec![3], 4)).await.0.len(), 4);
    }
}

fn geometry(blocks: u32, block_tokens: u32) -> Geometry {
    Geometry {
        blocks,
        block_tokens,
        slots: 48,
        step_tokens: 96,
        ..Geometry::default()
    }
}

fn sampled(prompt: Vec<u32>, max_new_tokens: u32, choices: u32) -> EngineRequest {
    let mut wanted = request(prompt, max_new_tokens);
    wanted.sampling.temperature = 1.0;
    wanted.choices = choices;
    wanted
}
