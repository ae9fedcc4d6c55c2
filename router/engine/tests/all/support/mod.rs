//! Shared helpers of the engine's tests: mock workers, engines over them, requests.

#![allow(dead_code, unreachable_pub, reason = "each test uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, future::join_all};
use penstock_engine::shard::{Endpoint, LoadConfig, Loaded, ShardGroup, StepLimits};
use penstock_engine::{
    AttachedWorkers, Engine, EngineConfig, EngineMetrics, PreparePolicy, ProgressSink,
    RestartPolicy, TokenStream, Workers, WorkersEnd, WorkersError,
};
use penstock_mock_shard::{Check, Eos, Fault, Geometry, MockConfig, MockShard, View};
use penstock_request::EngineState;
use penstock_request::sampling_params::SamplingParams;
use penstock_request::types::{End, EngineRequest, Stopping};
use prometheus_client::{encoding::text::encode, registry::Registry};

/// Timeout of every wait in the tests.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts mock workers as a launcher would. `lives[n]` configures the workers of the n-th start;
/// the last entry also configures all further starts.
#[derive(Clone)]
pub struct MockWorkers {
    lives: Arc<Vec<Vec<MockConfig>>>,
    shards: Arc<Mutex<Vec<MockShard>>>,
    started: Arc<AtomicU64>,
    killed: Arc<AtomicBool>,
    name: PathBuf,
}

impl MockWorkers {
    pub fn new(lives: Vec<Vec<MockConfig>>) -> Self {
        let name = socket();
        Self {
            lives: Arc::new(lives),
            shards: Arc::default(),
            started: Arc::default(),
            killed: Arc::default(),
            name,
        }
    }

    pub fn one(config: MockConfig) -> Self {
        Self::new(vec![vec![config]])
    }

    pub fn starts(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }

    /// Returns rank 0's view of its state.
    pub fn view(&self) -> View {
        self.shards
            .lock()
            .unwrap()
            .first()
            .map(MockShard::view)
            .unwrap_or_default()
    }

    /// Returns the clients of the requests that rank 0 prepared.
    pub fn clients(&self) -> Vec<String> {
        let shards = self.shards.lock().unwrap();
        shards.first().map_or_else(Vec::new, MockShard::clients)
    }

    /// Kills the workers, as a person or the operating system may.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        self.fail();
    }

    /// The workers end by themselves.
    pub fn fail(&self) {
        self.shards.lock().unwrap().clear();
    }

    pub fn alive(&self) -> usize {
        self.shards.lock().unwrap().len()
    }

    /// Returns whether and how rank 0 was shut down.
    pub fn exit(&self) -> Option<penstock_mock_shard::Exit> {
        self.shards.lock().unwrap().first().map(MockShard::exit)
    }
}

#[async_trait]
impl Workers for MockWorkers {
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError> {
        let life = self.started.fetch_add(1, Ordering::SeqCst) as usize;
        let ranks = &self.lives[life.min(self.lives.len() - 1)];
        let mut endpoints = Vec::new();
        let mut shards = Vec::new();
        for (rank, config) in ranks.iter().enumerate() {
            let endpoint = Endpoint::Unix(self.name.with_extension(format!("{life}.{rank}")));
            shards.push(MockShard::spawn(&endpoint, config.clone()).unwrap());
            endpoints.push(endpoint);
        }
        *self.shards.lock().unwrap() = shards;
        let mut attached = AttachedWorkers::new(endpoints, &LoadConfig::default());
        attached.start(progress).await
    }

    async fn bury(&mut self, _hung: bool) -> WorkersEnd {
        match self.killed.swap(false, Ordering::SeqCst) {
            true => WorkersEnd::KilledFromOutside,
            false => WorkersEnd::Unknown,
        }
    }

    async fn stop(&mut self) {}
}

/// Returns a unique socket path.
pub fn socket() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("penstock-tests-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(format!("{number}"))
}

/// A worker that checks the protocol and has this fault.
pub fn faulty(fault: Fault) -> MockConfig {
    MockConfig {
        faults: vec![fault],
        ..checked()
    }
}

pub fn checked() -> MockConfig {
    MockConfig {
        check: Check::Full,
        ..MockConfig::default()
    }
}

pub fn engine(workers: MockWorkers, config: EngineConfig) -> Engine {
    Engine::start(
        Box::new(workers),
        config,
        EngineMetrics::register(&mut Registry::default()),
    )
}

/// The default settings with another policy of restarts.
pub fn restarting(restart: RestartPolicy) -> EngineConfig {
    EngineConfig {
        restart,
        ..EngineConfig::default()
    }
}

/// Restarts without a noticeable wait.
pub fn quick_restarts() -> EngineConfig {
    restarting(RestartPolicy {
        backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(1),
        ..RestartPolicy::default()
    })
}

/// The engine stops after this many losses in a row.
pub fn giving_up_after(losses: u32) -> EngineConfig {
    restarting(RestartPolicy {
        exit_after: Some(losses),
        ..quick_restarts().restart
    })
}

/// Every step has this deadline.
pub fn step_deadline(limit: Duration) -> EngineConfig {
    EngineConfig {
        step_limits: StepLimits {
            least: limit,
            first: limit,
        },
        ..EngineConfig::default()
    }
}

/// Prepares every request, with a grammar or without.
pub fn always_preparing() -> EngineConfig {
    EngineConfig {
        prepare_policy: PreparePolicy::Always,
        ..EngineConfig::default()
    }
}

/// The end token of a `started` engine's mock worker.
pub const END: u32 = 2;

/// Starts an engine over a mock worker that checks the protocol and ends some choices early.
pub async fn started(geometry: Geometry) -> (Engine, Registry) {
    let config = MockConfig {
        geometry,
        eos: Eos { id: END, every: 40 },
        ..checked()
    };
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let workers = MockWorkers::one(config);
    let engine = Engine::start(Box::new(workers), EngineConfig::default(), metrics);
    ready(&engine).await;
    (engine, registry)
}

pub async fn reach(engine: &Engine, wanted: impl Fn(&EngineState) -> bool) -> EngineState {
    let mut watch = engine.watch();
    let state = tokio::time::timeout(TIMEOUT, watch.wait_for(|state| wanted(state))).await;
    state
        .expect("the state is reached in time")
        .expect("the engine runs")
        .clone()
}

pub async fn ready(engine: &Engine) {
    reach(engine, |state| *state == EngineState::Ready).await;
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

pub fn request(prompt: Vec<u32>, max_new_tokens: u32) -> EngineRequest {
    EngineRequest {
        cache_salt: Box::default(),
        priority: 0,
        prompt,
        sampling: SamplingParams {
            temperature: 0.0,
            seed: 7,
            ..SamplingParams::default()
        },
        grammar: None,
        stopping: Stopping {
            max_new_tokens,
            min_new_tokens: 0,
            stop_token_ids: Vec::new(),
        },
        choices: 1,
        beam: None,
    }
}

/// Prompts of a few lengths that share prefixes.
pub fn prompt(number: u32) -> Vec<u32> {
    let shared = (number % 3) * 24;
    let own = 1 + (number * 7) % 60;
    (0..shared)
        .map(|i| 5 + i)
        .chain((0..own).map(|i| 100 + number * 50 + i))
        .collect()
}

/// Returns all tokens of a stream, and how it ended.
pub async fn collect(stream: TokenStream) -> (Vec<u32>, End) {
    let gather = async {
        let (mut ids, mut end) = (Vec::new(), None);
        let mut stream = stream;
        while let Some(event) = stream.next().await {
            assert!(end.is_none(), "an event after the end");
            ids.extend(event.tokens.iter().map(|token| token.id));
            end = event.end;
        }
        (ids, end.expect("a stream ends with an end"))
    };
    tokio::time::timeout(TIMEOUT, gather)
        .await
        .expect("the stream ends in time")
}

pub async fn answer(engine: &Engine, request: EngineRequest) -> (Vec<u32>, End) {
    collect(engine.submit(request).await.expect("accepted")).await
}

/// Returns the tokens and the end of every choice of a request.
pub async fn answers(engine: &Engine, request: EngineRequest) -> Vec<(Vec<u32>, End)> {
    let streams = engine.submit_all(request).await.expect("accepted");
    join_all(streams.into_iter().map(collect)).await
}

/// Returns the value of a metric, by its name and labels as exported.
pub fn gauge(registry: &Registry, name: &str) -> i64 {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")))
        .unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
