//! Random load: requests of all kinds come and go, clients disconnect at any point, workers are
//! killed. Each remaining client gets the same tokens as on a quiet engine, and nothing leaks.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use futures_util::{StreamExt, future::join_all};
use penstock_engine::{
    Engine, EngineConfig, EngineMetrics, PreparePolicy, RestartPolicy, TokenStream,
};
use penstock_mock_shard::{Cost, Eos, Geometry, MockConfig};
use penstock_request::types::{BeamParameters, EarlyStopping, End, EngineRequest};
use prometheus_client::registry::Registry;
use tokio::time::{sleep, timeout};

use crate::support::{
    END, MockWorkers, TIMEOUT, answers, checked, collect, eventually, gauge, prompt, ready,
    request, restarting, started,
};

const REQUESTS: u32 = 40;
const STORMS: u64 = 12;

/// A linear congruential generator, so that a failure can be reproduced by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A client's behaviour.
#[derive(Clone, Copy, Debug)]
enum Client {
    Stays,
    /// Withdraws its request before or after it is accepted.
    Withdraws(Duration),
    /// Drops its choices one after the other, each after this many events.
    Leaves(u64),
}

type Answers = Vec<(Vec<u32>, End)>;

fn wanted(number: u32) -> EngineRequest {
    let mut wanted = request(prompt(number), 1 + (number * 5) % 37);
    wanted.stopping.stop_token_ids = vec![END];
    match number % 5 {
        0 => wanted.choices = 1 + number % 4,
        1 => {
            let beam = BeamParameters {
                width: 1 + number % 4,
                length_penalty: 1.0,
                early_stopping: EarlyStopping::Heuristic,
            };
            wanted.choices = 1 + number % beam.width;
            wanted.beam = Some(beam);
        }
        _ => {}
    }
    wanted
}

fn geometry() -> Geometry {
    Geometry {
        blocks: 40,
        block_tokens: 8,
        slots: 6,
        step_tokens: 64,
        ..Geometry::default()
    }
}

async fn client(engine: Engine, number: u32, does: Client, expected: &Answers) {
    let streams = match does {
        Client::Withdraws(after) => {
            let submission = engine.submit_all(wanted(number));
            // Dropped at any stage.
            drop(timeout(after, submission).await);
            return;
        }
        _ => engine.submit_all(wanted(number)).await,
    };
    let streams = streams.expect("accepted, also while the workers are down");
    if let Client::Leaves(after) = does {
        return leave(streams, after).await;
    }
    let got = join_all(streams.into_iter().map(collect)).await;
    for (got, expected) in got.iter().zip(expected) {
        assert_eq!(got, expected, "{number}");
    }
}

async fn leave(streams: Vec<TokenStream>, after: u64) {
    for mut stream in streams {
        for _ in 0..after {
            let event = timeout(TIMEOUT, stream.next()).await;
            if event.expect("an event or the end").is_none() {
                break;
            }
        }
    }
}

fn workers(random: &mut Random) -> MockWorkers {
    MockWorkers::one(MockConfig {
        geometry: geometry(),
        eos: Eos { id: END, every: 40 },
        cost: Cost {
            step: Duration::from_micros(100 * random.below(4)),
            ..Cost::default()
        },
        ..checked()
    })
}

fn config(random: &mut Random) -> EngineConfig {
    EngineConfig {
        depth: 1 + random.below(3) as u16,
        prepare_policy: match random.below(3) {
            0 => PreparePolicy::Always,
            _ => PreparePolicy::WhenNeeded,
        },
        ..restarting(RestartPolicy {
            soon: Duration::ZERO,
            ..RestartPolicy::default()
        })
    }
}

/// Runs all clients and kills the workers at random times.
async fn weather(
    engine: &Engine,
    workers: &MockWorkers,
    expected: &[Answers],
    random: &mut Random,
) {
    let clients = (0..REQUESTS).map(|number| {
        let wait = Duration::from_micros(random.below(20_000));
        let does = match random.below(6) {
            0 => Client::Withdraws(Duration::from_micros(random.below(8_000))),
            1 => Client::Leaves(random.below(6)),
            _ => Client::Stays,
        };
        let engine = engine.clone();
        async move {
            sleep(wait).await;
            client(engine, number, does, &expected[number as usize]).await;
        }
    });
    let clients: Vec<_> = clients.collect();
    let kills: Vec<_> = (0..random.below(4))
        .map(|_| Duration::from_micros(random.below(25_000)))
        .collect();
    let killer = async {
        for after in kills {
            sleep(after).await;
            workers.kill();
        }
    };
    tokio::join!(join_all(clients), killer);
}

async fn storm(seed: u64, expected: &[Answers]) {
    let mut random = Random(seed);
    let workers = workers(&mut random);
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let config = config(&mut random);
    let engine = Engine::start(Box::new(workers.clone()), config, metrics);
    ready(&engine).await;
    weather(&engine, &workers, expected, &mut random).await;
    ready(&engine).await;
    eventually("everything is released", || {
        let left = [
            "penstock_kv_blocks{state=\"leased\"}",
            "penstock_kv_blocks_dead",
            "tgi_queue_size",
            "tgi_batch_current_size",
        ];
        left.iter().all(|name| gauge(&registry, name) == 0) && workers.view().preparing == 0
    })
    .await;
    // The engine may notice the last kill only now.
    while !serves(&engine).await {
        ready(&engine).await;
    }
}

async fn serves(engine: &Engine) -> bool {
    match engine.submit(request(prompt(1), 4)).await {
        Ok(stream) => collect(stream).await.1 == End::Length,
        Err(_) => false,
    }
}

#[tokio::test]
async fn under_random_load_no_request_is_lost_and_no_block_leaks() {
    let (quiet, _) = started(Geometry::default()).await;
    let mut expected = Vec::new();
    for number in 0..REQUESTS {
        expected.push(answers(&quiet, wanted(number)).await);
    }
    for seed in 0..STORMS {
        println!("storm {seed}");
        storm(seed, &expected).await;
    }
}
