//! Workers with two KV groups: full attention, and a sliding window with blocks of its own.

use futures_util::future::join_all;
use penstock_engine::EngineConfig;
use penstock_mock_shard::{Geometry, MockConfig, SlidingGroup};
use penstock_request::types::EngineRequest;

use crate::support::{MockWorkers, answers, checked, engine, gauge, ready, request, started};

/// The second group has room for a few windows only.
fn two_groups() -> Geometry {
    Geometry {
        blocks: 64,
        block_tokens: 4,
        slots: 5,
        step_tokens: 32,
        sliding: Some(SlidingGroup {
            blocks: 20,
            window: 10,
        }),
        ..Geometry::default()
    }
}

/// Prompts longer than the window, with common beginnings, and some with several choices.
fn wanted(number: u32) -> EngineRequest {
    let length = 8 + 23 * (number % 4);
    let mut prompt: Vec<u32> = (0..length).map(|at| 3 + at % 7).collect();
    prompt.push(100 + number % 3);
    let mut wanted = request(prompt, 5 + 11 * (number % 5));
    wanted.choices = 1 + number % 2;
    wanted.sampling.temperature = 1.0;
    wanted
}

#[tokio::test]
async fn two_groups_generate_the_same_tokens_as_one() {
    let config = |geometry| MockConfig {
        geometry,
        ..checked()
    };
    let one = MockWorkers::one(config(Geometry::default()));
    let two = MockWorkers::one(config(two_groups()));
    let (one, two) = (
        engine(one, EngineConfig::default()),
        engine(two, EngineConfig::default()),
    );
    ready(&one).await;
    ready(&two).await;
    let expected = join_all((0..40).map(|number| answers(&one, wanted(number)))).await;
    let found = join_all((0..40).map(|number| answers(&two, wanted(number)))).await;
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_prompt_longer_than_the_sliding_pool_is_served_and_found_again() {
    let (engine, registry) = started(two_groups()).await;
    ready(&engine).await;
    // 20 blocks of 4 tokens in the sliding group.
    let prompt: Vec<u32> = (0..150).map(|at| 3 + at % 11).collect();
    let first = answers(&engine, request(prompt.clone(), 20)).await;
    assert_eq!(gauge(&registry, "penstock_prefix_hit_tokens_total"), 0);
    let second = answers(&engine, request(prompt, 20)).await;
    assert_eq!(first, second);
    // All full blocks before the last token: the window's last blocks are still cached.
    assert_eq!(gauge(&registry, "penstock_prefix_hit_tokens_total"), 148);
}
