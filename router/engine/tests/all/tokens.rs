//! The engine over a mock worker: each request gets its own tokens, independent of the batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::future::join_all;
use penstock_engine::EngineConfig;
use penstock_mock_shard::{Eos, Geometry, MockConfig};
use penstock_request::client::Client;
use penstock_request::tenant::{Caller, Tenant};
use penstock_request::types::End;

use crate::support::{
    MockWorkers, answer, checked, engine, eventually, gauge, prompt, ready, request, started,
};

#[tokio::test]
async fn one_request_gets_its_tokens() {
    let engine = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&engine).await;
    let (ids, end) = answer(&engine, request(vec![1, 2, 3], 10)).await;
    assert_eq!((ids.len(), end), (10, End::Length));
}

#[tokio::test]
async fn a_different_cache_salt_gets_no_prefix_cache_hits() {
    let (engine, registry) = started(Geometry::default()).await;
    let long: Vec<u32> = (3..103).collect();
    let mut hits = Vec::new();
    for salt in ["", "a", "a", "ab", "", "a\0"] {
        let mut request = request(long.clone(), 4);
        request.cache_salt = salt.into();
        let before = gauge(&registry, "penstock_prefix_hit_tokens_total");
        answer(&engine, request).await;
        hits.push(gauge(&registry, "penstock_prefix_hit_tokens_total") > before);
    }
    assert_eq!(hits, [false, false, true, false, true, false]);
}

#[tokio::test]
async fn tenants_do_not_share_cached_prompts() {
    let (engine, registry) = started(Geometry::default()).await;
    let long: Vec<u32> = (3..103).collect();
    let mut hits = Vec::new();
    let tenant = |name: &str| Caller {
        tenant: Some(Arc::new(Tenant::new(name))),
        ..Caller::default()
    };
    let flow = Caller {
        flow: Some("a".into()),
        ..Caller::default()
    };
    let anyone = Caller::default();
    for caller in [tenant("a"), tenant("a"), tenant("b"), anyone, flow] {
        let before = gauge(&registry, "penstock_prefix_hit_tokens_total");
        caller
            .scope(answer(&engine, request(long.clone(), 4)))
            .await;
        hits.push(gauge(&registry, "penstock_prefix_hit_tokens_total") > before);
    }
    assert_eq!(hits, [false, true, false, false, true]);
}

/// A client with one request, beside one whose requests have filled the slots and wait.
#[tokio::test]
async fn requests_of_another_client_do_not_wait_for_a_backlog() {
    let geometry = Geometry {
        slots: 4,
        ..Geometry::default()
    };
    let (engine, _) = started(geometry).await;
    let at = |last| Client::at([10, 0, 0, last].into());
    let ended = Arc::new(AtomicUsize::new(0));
    let many: Vec<_> = (0..200)
        .map(|number| {
            let (engine, ended) = (engine.clone(), Arc::clone(&ended));
            let work = async move {
                answer(&engine, request(prompt(number), 20)).await;
                ended.fetch_add(1, Ordering::SeqCst);
            };
            tokio::spawn(at(1).scope(work))
        })
        .collect();
    eventually("some have ended", || ended.load(Ordering::SeqCst) > 8).await;
    let before = ended.load(Ordering::SeqCst);
    at(2).scope(answer(&engine, request(prompt(900), 20))).await;
    let passed = ended.load(Ordering::SeqCst) - before;
    // In turn, it would wait for about 190 others. While it runs, three slots serve them.
    assert!(passed <= 40, "{passed} ended first");
    for task in many {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn stream_reports_its_cached_prompt_tokens() {
    let engine = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&engine).await;
    let long: Vec<u32> = (3..103).collect();
    let mut longer = long.clone();
    longer.extend(200..300);
    // Whole blocks of 16 tokens, and never the prompt's last token.
    for (prompt, cached) in [
        (long.clone(), 0),
        (long.clone(), 96),
        (longer, 96),
        (long[..96].to_vec(), 80),
        (vec![5; 50], 0),
    ] {
        let mut stream = engine.submit(request(prompt, 4)).await.unwrap();
        while stream.next().await.is_some() {}
        assert_eq!(stream.entered().unwrap().cached_tokens, cached);
    }
}

#[tokio::test]
async fn concurrent_requests_get_the_same_tokens_as_alone() {
    for tokens_per_run in [1, 4] {
        let roomy = MockConfig {
            geometry: geometry(4096, tokens_per_run),
            ..config()
        };
        let one = engine(MockWorkers::one(roomy), EngineConfig::default());
        ready(&one).await;
        let mut alone = Vec::new();
        for number in 0..64 {
            alone.push(answer(&one, wanted(number)).await);
        }
        assert!(
            alone.iter().any(|(_, end)| *end == End::StopToken),
            "some end at a stop token"
        );
        assert!(alone.iter().any(|(_, end)| *end == End::Length));
        // 40 blocks of 16 tokens for 64 requests of up to 148: preemption is certain.
        for blocks in [4096, 40] {
            let tight = MockConfig {
                geometry: geometry(blocks, tokens_per_run),
                ..config()
            };
            let crowd = engine(MockWorkers::one(tight), EngineConfig::default());
            ready(&crowd).await;
            let together = join_all((0..64).map(|number| answer(&crowd, wanted(number)))).await;
            assert_eq!(
                together, alone,
                "{blocks} blocks, {tokens_per_run} tokens per run"
            );
        }
    }
}

/// A run that was planned before the outcome that ended its sequence may have no room for its last
/// known token; it yields nothing.
#[tokio::test]
async fn answers_ending_at_a_block_boundary_are_complete_with_several_tokens_per_run() {
    for tokens_per_run in 1..=4 {
        let config = MockConfig {
            geometry: geometry(4096, tokens_per_run),
            ..checked()
        };
        let engine = engine(MockWorkers::one(config), EngineConfig::default());
        ready(&engine).await;
        let wanted = |number: u32| request(vec![5 + number; 1 + number as usize], 32 - number);
        let answers = join_all((0..24).map(|number| answer(&engine, wanted(number)))).await;
        for (number, (ids, end)) in (0..).zip(answers) {
            assert_eq!(
                (ids.len(), end),
                (32 - number, End::Length),
                "{tokens_per_run}"
            );
        }
    }
}

fn config() -> MockConfig {
    MockConfig {
        eos: Eos { id: 2, every: 40 },
        ..checked()
    }
}

fn geometry(blocks: u32, tokens_per_run: u32) -> Geometry {
    Geometry {
        blocks,
        tokens_per_run,
        slots: 48,
        step_tokens: 96,
        ..Geometry::default()
    }
}

fn wanted(number: u32) -> penstock_request::types::EngineRequest {
    let mut request = request(prompt(number), 5 + number % 36);
    request.stopping.stop_token_ids = vec![2];
    request.stopping.min_new_tokens = number % 4;
    if number % 2 == 1 {
        request.sampling.temperature = 0.7;
        request.sampling.seed = u64::from(number);
    }
    request
}
