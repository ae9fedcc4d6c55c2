//! A choice dropped before its first token ends at that token; the other choices are unaffected.

use futures_util::future::join_all;
use penstock_mock_shard::Geometry;
use penstock_request::types::EngineRequest;

use crate::support::{answers, collect, gauge, request, started};

const PROMPT: u32 = 400;
const TOKENS: u32 = 60;
const CHOICES: usize = 3;

fn wanted() -> EngineRequest {
    let mut wanted = request((5..5 + PROMPT).collect(), TOKENS);
    wanted.sampling.temperature = 1.0;
    wanted.choices = CHOICES as u32;
    wanted
}

/// Small steps: computing the prompt takes many, so that a client can disconnect meanwhile.
fn small_steps() -> Geometry {
    Geometry {
        step_tokens: 8,
        ..Geometry::default()
    }
}

#[tokio::test]
async fn choice_dropped_before_its_first_token_stops_running() {
    let whole = answers(&started(small_steps()).await.0, wanted()).await;
    for (dropped, finished) in (0..CHOICES).flat_map(|n| [(n, false), (n, true)]) {
        let (engine, registry) = started(small_steps()).await;
        let mut streams = engine.submit_all(wanted()).await.unwrap();
        let choice = streams.remove(dropped);
        match finished {
            true => choice.finish(),
            false => drop(choice),
        }
        let kept = join_all(streams.into_iter().map(collect)).await;
        let mut others = whole.clone();
        others.remove(dropped);
        assert_eq!(kept, others, "without choice {dropped}");
        // The prompt except its last token, that token for each choice, and the other choices'
        // tokens; plus the runs in flight when the dropped choice's first token came.
        let least = i64::from(PROMPT) - 1 + CHOICES as i64 + 2 * i64::from(TOKENS - 1);
        let computed = gauge(&registry, "penstock_computed_tokens_total");
        assert!(
            computed <= least + 4,
            "{computed} tokens for choices that need {least}"
        );
    }
}
