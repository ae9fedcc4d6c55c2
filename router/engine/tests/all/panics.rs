//! Panics of the engine, its scheduler and its callbacks. Each is reported; none hangs a client.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, future::join_all};
use penstock_engine::shard::{Loaded, ShardGroup};
use penstock_engine::{Engine, EngineConfig, EngineMetrics, ProgressSink, Workers, WorkersError};
use penstock_mock_shard::{Fault, MockConfig};
use penstock_request::EngineState;
use penstock_request::types::{BeamParameters, EarlyStopping, End, SubmitError};
use penstock_scheduler::{Policy, SequenceFacts};
use prometheus_client::registry::Registry;

use crate::support::{
    MockWorkers, answer, checked, collect, engine, gauge, giving_up_after, reach, ready, request,
};

/// Makes the scheduler panic at the n-th look at a prompt of this many tokens.
#[derive(Clone)]
struct Poison {
    tokens: u32,
    look: usize,
    looks: Arc<AtomicUsize>,
}

impl Poison {
    fn at(tokens: u32, look: usize) -> Self {
        let looks = Arc::default();
        Self {
            tokens,
            look,
            looks,
        }
    }
}

impl Policy for Poison {
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64 {
        if facts.tokens == self.tokens && self.looks.fetch_add(1, Ordering::SeqCst) + 1 >= self.look
        {
            panic!("on purpose");
        }
        0
    }
}

fn poisoned(workers: MockWorkers, poison: &[Poison]) -> (Engine, Registry) {
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let poison = poison.to_vec();
    let policy = move || Box::new(Several(poison.clone())) as Box<dyn Policy>;
    let engine = Engine::start_with(Box::new(workers), giving_up_after(5), metrics, policy);
    (engine, registry)
}

struct Several(Vec<Poison>);

impl Policy for Several {
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64 {
        self.0.iter_mut().map(|poison| poison.rank(facts)).sum()
    }
}

fn engine_of(workers: MockWorkers) -> Engine {
    engine(workers, EngineConfig::default())
}

/// Plain requests, choices and beams, with some tokens delivered, go on in the new scheduler.
#[tokio::test]
async fn streams_of_all_kinds_go_on_after_a_panic() {
    let kinds = |number: u32| {
        let mut wanted = request(vec![30 + number; 9], 120);
        match number % 3 {
            0 => wanted.choices = 3,
            1 => {
                wanted.choices = 2;
                wanted.beam = Some(BeamParameters {
                    width: 3,
                    length_penalty: 1.0,
                    early_stopping: EarlyStopping::Heuristic,
                });
            }
            _ => {}
        }
        wanted
    };
    let slow = || MockConfig {
        cost: penstock_mock_shard::Cost {
            step: Duration::from_millis(1),
            ..Default::default()
        },
        ..checked()
    };
    let quiet = engine_of(MockWorkers::one(checked()));
    ready(&quiet).await;
    let workers = MockWorkers::one(slow());
    let (engine, registry) = poisoned(workers.clone(), &[Poison::at(7, 1)]);
    ready(&engine).await;
    let runs = (0..6).map(|number| crate::support::answers(&engine, kinds(number)));
    let panics = async {
        for life in 1..=3 {
            let stepped = || workers.starts() == life && workers.view().steps > 20;
            crate::support::eventually("some steps are run", stepped).await;
            assert!(engine.submit(request(vec![5; 7], 4)).await.is_err());
        }
    };
    let (got, ()) = tokio::join!(join_all(runs), panics);
    for (number, got) in (0..6).zip(got) {
        assert_eq!(
            got,
            crate::support::answers(&quiet, kinds(number)).await,
            "{number}"
        );
    }
    assert_eq!(gauge(&registry, "penstock_engine_failures_total"), 3);
    assert_eq!(gauge(&registry, "penstock_kv_blocks_dead"), 0);
}

fn one_slot(faults: Vec<Fault>) -> Vec<MockConfig> {
    let mut config = checked();
    config.geometry.slots = 1;
    vec![MockConfig { faults, ..config }]
}

#[tokio::test]
async fn scheduler_panic_is_handled_like_a_worker_loss() {
    let lives = vec![one_slot(vec![Fault::Hang(3)]), one_slot(vec![])];
    let workers = MockWorkers::new(lives);
    let (engine, registry) = poisoned(workers.clone(), &[Poison::at(7, 1)]);
    ready(&engine).await;
    let running = engine.submit(request(vec![1, 2], 200)).await.unwrap();
    let waiting = engine.submit(request(vec![3], 4)).await.unwrap();
    crate::support::eventually("a step hangs", || workers.view().steps == 4).await;
    let refused = engine.submit(request(vec![5; 7], 4)).await.err();
    let Some(SubmitError::Internal(message)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        message,
        "the engine failed on this request; the server's log says why"
    );
    let state = reach(&engine, |state| *state != EngineState::Ready).await;
    let reason = "the engine failed: on purpose".into();
    assert_eq!(state, EngineState::Restarting { reason });
    let quiet = engine_of(MockWorkers::one(checked()));
    ready(&quiet).await;
    let expected = answer(&quiet, request(vec![1, 2], 200)).await;
    assert_eq!(collect(running).await, expected);
    let (ids, end) = collect(waiting).await;
    assert_eq!((ids.len(), end), (4, End::Length));
    assert_eq!(answer(&engine, request(vec![9], 20)).await.1, End::Length);
    assert_eq!(workers.starts(), 2);
    assert_eq!(gauge(&registry, "penstock_engine_failures_total"), 1);
    assert_eq!(gauge(&registry, "penstock_worker_losses_total"), 1);
    assert_eq!(gauge(&registry, "penstock_kv_blocks_dead"), 0);
}

#[tokio::test]
async fn counts_continue_after_an_engine_failure() {
    let workers = MockWorkers::one(checked());
    let (engine, registry) = poisoned(workers, &[Poison::at(7, 1)]);
    let hits = || gauge(&registry, "penstock_prefix_hit_tokens_total");
    for expected in [32, 64] {
        ready(&engine).await;
        for _ in 0..2 {
            let prompt = request(vec![5; 40], 2);
            assert_eq!(answer(&engine, prompt).await.1, End::Length);
        }
        crate::support::eventually("hits are counted", || hits() == expected).await;
        // The engine fails on this request and gets a new scheduler.
        assert!(engine.submit(request(vec![6; 7], 1)).await.is_err());
    }
}

#[tokio::test]
async fn request_that_panics_the_scheduler_again_fails_alone() {
    let lives = vec![one_slot(vec![Fault::Hang(3)]), one_slot(vec![])];
    let poison = [Poison::at(7, 1), Poison::at(5, 2)];
    let workers = MockWorkers::new(lives);
    let (engine, _) = poisoned(workers.clone(), &poison);
    ready(&engine).await;
    let running = engine.submit(request(vec![1, 2], 200)).await.unwrap();
    let guilty = engine.submit(request(vec![3; 5], 4)).await.unwrap();
    let waiting = engine.submit(request(vec![3], 4)).await.unwrap();
    crate::support::eventually("a step hangs", || workers.view().steps == 4).await;
    assert!(engine.submit(request(vec![5; 7], 4)).await.is_err());
    assert_eq!(collect(running).await.1, End::Length);
    let message = "the engine failed on this request";
    assert_eq!(collect(guilty).await.1, End::Failed(message.into()));
    assert_eq!(collect(waiting).await.1, End::Length);
}

#[tokio::test]
async fn repeated_panics_stop_the_engine_with_a_reason() {
    let workers = MockWorkers::one(checked());
    let (engine, _) = poisoned(workers.clone(), &[Poison::at(7, 1)]);
    for _ in 0..5 {
        ready(&engine).await;
        assert!(engine.submit(request(vec![5; 7], 4)).await.is_err());
        reach(&engine, |state| *state != EngineState::Ready).await;
    }
    let over = |state: &EngineState| matches!(state, EngineState::Stopped { .. });
    let EngineState::Stopped { reason } = reach(&engine, over).await else {
        unreachable!()
    };
    let expected =
        "gave up, as the workers were lost 5 times in a row: the engine failed: on purpose";
    assert_eq!(reason, expected);
    engine.drain(Duration::ZERO).await;
}

/// Workers that panic when they are started or stopped.
struct Careless {
    inner: MockWorkers,
    /// Successful starts before one panics.
    starts: usize,
    stop: bool,
}

#[async_trait]
impl Workers for Careless {
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError> {
        assert_ne!(self.starts, 0, "no start on purpose");
        self.starts -= 1;
        self.inner.start(progress).await
    }

    async fn stop(&mut self) {
        assert!(!self.stop, "no stop on purpose");
    }
}

fn careless(inner: &MockWorkers, starts: usize, stop: bool) -> Engine {
    let workers = Careless {
        inner: inner.clone(),
        starts,
        stop,
    };
    let metrics = EngineMetrics::register(&mut Registry::default());
    Engine::start(Box::new(workers), EngineConfig::default(), metrics)
}

#[tokio::test]
async fn panic_during_worker_start_stops_the_engine_with_a_reason() {
    let engine = careless(&MockWorkers::one(checked()), 0, false);
    let over = |state: &EngineState| matches!(state, EngineState::Stopped { .. });
    let EngineState::Stopped { reason } = reach(&engine, over).await else {
        unreachable!()
    };
    assert!(reason.contains("no start on purpose"), "{reason}");
}

#[tokio::test]
async fn drain_ends_after_an_engine_panic() {
    let workers = MockWorkers::one(checked());
    let engine = careless(&workers, 1, true);
    ready(&engine).await;
    let drained = tokio::time::timeout(crate::support::TIMEOUT, engine.drain(Duration::ZERO));
    drained.await.expect("drain returns after a panic");
    let refused = engine.submit(request(vec![1], 4)).await.err();
    assert!(matches!(refused, Some(SubmitError::Unavailable { .. })));
}

/// A stream's task that panics when it is woken.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

#[tokio::test]
async fn panicking_reader_does_not_affect_other_streams() {
    let engine = engine(MockWorkers::one(checked()), EngineConfig::default());
    ready(&engine).await;
    // One message per step carries the events of both streams, the broken one's first.
    let mut broken = engine.submit(request(vec![1], 200)).await.unwrap();
    let waker = Waker::from(Arc::new(Broken));
    let polled = broken.poll_next_unpin(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Pending));
    let whole = engine.submit(request(vec![2], 50)).await.unwrap();
    let (ids, end) = collect(whole).await;
    assert_eq!((ids.len(), end), (50, End::Length));
    assert!(broken.next().now_or_never().is_some());
}
