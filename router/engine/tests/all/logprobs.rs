//! Logprobs from the worker to a client's stream.

#![allow(clippy::unwrap_used)]

use futures_util::StreamExt;
use penstock_engine::{EngineConfig, TokenStream};
use penstock_mock_shard::{Geometry, MockConfig};
use penstock_request::sampling_params::WHOLE_VOCABULARY;
use penstock_request::types::{EngineRequest, Logprobs};

use crate::support::{MockWorkers, checked, collect, engine, ready, request};

/// Steps of 8 tokens: a longer prompt takes several, each with its own prompt logprobs.
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

/// Collects all logprobs of a stream, and the number of its tokens.
async fn gathered(mut stream: TokenStream) -> (usize, Logprobs) {
    let (mut tokens, mut all) = (0, Logprobs::default());
    while let Some(event) = stream.next().await {
        let logprobs = event
            .logprobs
            .map_or_else(Logprobs::default, |logprobs| *logprobs);
        assert!(
            logprobs.top_logprobs.is_empty() || logprobs.top_logprobs.len() == event.tokens.len()
        );
        tokens += event.tokens.len();
        all.top_logprobs.extend(logprobs.top_logprobs);
        all.prompt.extend(logprobs.prompt);
    }
    (tokens, all)
}

fn request_with_logprobs(tokens: u32) -> EngineRequest {
    let mut wanted = request((3..33).collect(), tokens);
    wanted.sampling.top_logprobs = 2;
    wanted.sampling.prompt_logprobs = Some(3);
    wanted
}

#[tokio::test]
async fn unread_stream_keeps_all_logprobs() {
    // 150 tokens are more than one event holds.
    for tokens in [5, 150] {
        let engine = engine(
            MockWorkers::one(small_steps(32_000)),
            EngineConfig::default(),
        );
        ready(&engine).await;
        let read = gathered(engine.submit(request_with_logprobs(tokens)).await.unwrap()).await;
        assert_eq!(
            (read.0, read.1.top_logprobs.len()),
            (tokens as usize, tokens as usize)
        );
        assert_eq!(read.1.prompt.len(), 29, "of all tokens but the first");
        assert!(read.1.top_logprobs.iter().all(|top| top.len() == 2));
        let unread = engine.submit(request_with_logprobs(tokens)).await.unwrap();
        // One task fills all inboxes in the order of the steps: once the later stream has ended,
        // the earlier one's inbox is complete.
        collect(engine.submit(request(vec![7], 200)).await.unwrap()).await;
        assert_eq!(gathered(unread).await, read);
    }
}

#[tokio::test]
async fn a_requested_logprob_token_id_is_reported_even_at_minus_infinity() {
    let engine = engine(
        MockWorkers::one(small_steps(32_000)),
        EngineConfig::default(),
    );
    ready(&engine).await;
    for top in [0, 2] {
        let mut wanted = request(vec![5, 6], 5);
        wanted.stopping.stop_token_ids = vec![9];
        wanted.stopping.min_new_tokens = 3;
        wanted.sampling.top_logprobs = top;
        wanted.sampling.logprob_token_ids = vec![400, 9, 401];
        let (_, logprobs) = gathered(engine.submit(wanted).await.unwrap()).await;
        assert_eq!(logprobs.top_logprobs.len(), 5);
        for (place, top_logprobs) in logprobs.top_logprobs.iter().enumerate() {
            let named = &top_logprobs[top as usize..];
            let ids: Vec<_> = named.iter().map(|c| c.id).collect();
            assert_eq!(ids, [400, 9, 401], "position {place}");
            let impossible: Vec<_> = top_logprobs
                .iter()
                .map(|c| !c.logprob.is_finite())
                .collect();
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
async fn impossible_prompt_tokens_are_reported_only_for_the_whole_vocabulary() {
    // The mock worker's least likely token has probability 0.
    let engine = engine(MockWorkers::one(small_steps(6)), EngineConfig::default());
    ready(&engine).await;
    for (requested, reported, possible) in [(3, 3, 3), (20, 5, 5), (WHOLE_VOCABULARY, 6, 5)] {
        let mut wanted = request(vec![1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2], 1);
        wanted.sampling.prompt_logprobs = Some(requested);
        let (_, all) = gathered(engine.submit(wanted).await.unwrap()).await;
        assert_eq!(all.prompt.len(), 11);
        for token in all.prompt {
            assert_eq!(token.top.len(), reported, "{requested}");
            let finite = token.top.iter().filter(|c| c.logprob.is_finite());
            assert_eq!(finite.count(), possible, "{requested}");
        }
    }
}
