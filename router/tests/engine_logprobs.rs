//! Log-probabilities on their way from the worker to a client's stream.

#![allow(clippy::unwrap_used)]

mod support;

use futures_util::StreamExt;
use penstock_mock_shard::{Geometry, MockConfig};
use penstock_router::engine::{
    EngineConfig, EngineRequest, TokenStream,
    types::{Told, WHOLE_VOCABULARY},
};
use support::{MockWorkers, checked, collect, engine, ready, request};

/// Steps of 8 tokens: a prompt of more takes several, each of which brings log-probabilities of its own.
fn small_steps(vocab: u32) -> MockConfig {
    MockConfig {
        geometry: Geometry {
            step_tokens: 8,
            vocab,
            ..Geometry::default()
        },
        ..checked()
    }
}

/// All log-probabilities that a stream brings, and how many tokens.
async fn gathered(mut stream: TokenStream) -> (usize, Told) {
    let (mut tokens, mut all) = (0, Told::default());
    while let Some(event) = stream.next().await {
        let told = event.told.map_or_else(Told::default, |told| *told);
        assert!(told.tops.is_empty() || told.tops.len() == event.tokens.len());
        tokens += event.tokens.len();
        all.tops.extend(told.tops);
        all.prompt.extend(told.prompt);
    }
    (tokens, all)
}

fn asking(tokens: u32) -> EngineRequest {
    let mut wanted = request((3..33).collect(), tokens);
    wanted.sampling.telling.top = 2;
    wanted.sampling.telling.prompt = Some(3);
    wanted
}

#[tokio::test]
async fn an_unread_stream_keeps_all_log_probabilities() {
    // The second has more tokens than one event holds.
    for tokens in [5, 150] {
        let engine = engine(
            MockWorkers::one(small_steps(32_000)),
            EngineConfig::default(),
        );
        ready(&engine).await;
        let read = gathered(engine.submit(asking(tokens)).await.unwrap()).await;
        assert_eq!(
            (read.0, read.1.tops.len()),
            (tokens as usize, tokens as usize)
        );
        assert_eq!(read.1.prompt.len(), 29, "of all tokens but the first");
        assert!(read.1.tops.iter().all(|top| top.len() == 2));
        let unread = engine.submit(asking(tokens)).await.unwrap();
        // One task fills all inboxes in the order of the steps: once the later stream has ended, all that
        // the earlier one gets is in its inbox.
        collect(engine.submit(request(vec![7], 200)).await.unwrap()).await;
        assert_eq!(gathered(unread).await, read);
    }
}

#[tokio::test]
async fn an_impossible_token_that_is_named_is_told() {
    let engine = engine(
        MockWorkers::one(small_steps(32_000)),
        EngineConfig::default(),
    );
    ready(&engine).await;
    for top in [0, 2] {
        let mut wanted = request(vec![5, 6], 5);
        wanted.stopping.stop_token_ids = vec![9];
        wanted.stopping.min_new_tokens = 3;
        wanted.sampling.telling.top = top;
        wanted.sampling.telling.token_ids = vec![400, 9, 401];
        let (_, told) = gathered(engine.submit(wanted).await.unwrap()).await;
        assert_eq!(told.tops.len(), 5);
        for (place, tops) in told.tops.iter().enumerate() {
            let named = &tops[top as usize..];
            let ids: Vec<_> = named.iter().map(|c| c.id).collect();
            assert_eq!(ids, [400, 9, 401], "place {place}");
            let impossible: Vec<_> = tops.iter().map(|c| !c.logprob.is_finite()).collect();
            let stop = top as usize + 1;
            assert!(
                impossible
                    .iter()
                    .enumerate()
                    .all(|(at, &is)| is == (at == stop && place < 3))
            );
        }
    }
}

#[tokio::test]
async fn of_a_prompt_impossible_tokens_are_told_with_the_whole_vocabulary_alone() {
    // The mock worker's least likely token is impossible.
    let engine = engine(MockWorkers::one(small_steps(6)), EngineConfig::default());
    ready(&engine).await;
    for (asked, told, possible) in [(3, 3, 3), (20, 5, 5), (WHOLE_VOCABULARY, 6, 5)] {
        let mut wanted = request(vec![1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2], 1);
        wanted.sampling.telling.prompt = Some(asked);
        let (_, all) = gathered(engine.submit(wanted).await.unwrap()).await;
        assert_eq!(all.prompt.len(), 11);
        for token in all.prompt {
            assert_eq!(token.top.len(), told, "{asked}");
            let finite = token.top.iter().filter(|c| c.logprob.is_finite());
            assert_eq!(finite.count(), possible, "{asked}");
        }
    }
}
