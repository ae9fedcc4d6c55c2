//! One episode: workers, clients and faults from a seed, and what must hold at its end.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use futures_util::future::join_all;
use penstock_engine::shard::StepLimits;
use penstock_engine::{Engine, EngineConfig, EngineMetrics, PreparePolicy};
use penstock_mock_shard::{Check, Eos, Fault as Scripted, Geometry, MockConfig, SlidingGroup};
use penstock_request::{EngineState, types::SubmitError};
use penstock_scheduler::{
    FairShare, Policy, SequenceFacts,
    request::{Place, SchedulingClass},
};
use prometheus_client::registry::Registry;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep, timeout},
};

use crate::clients::{Behaviour, Client, Fate};
use crate::faults::{Fault, Weather};
use crate::panics;
use crate::random::Random;
use crate::requests::{ANSWERS, END, POISON, REQUESTS, poison, wanted};
use crate::workers::SimulatedWorkers;
use crate::world::{Seen, Setup, World};

/// Longest virtual time of an episode.
const LONGEST: Duration = Duration::from_secs(2 * 3600);

/// What happened in an episode, or in several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) faults: BTreeMap<Fault, u64>,
    pub(crate) losses: u64,
    pub(crate) served: u64,
    pub(crate) gone: u64,
    pub(crate) late: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    /// Poisoned requests that were found.
    pub(crate) poison: u64,
    /// Virtual seconds of the longest episode.
    pub(crate) longest: u64,
    trace: u64,
}

/// An episode before it runs.
pub(crate) struct Episode {
    seed: u64,
    setup: Setup,
    config: EngineConfig,
    clients: Vec<Client>,
}

/// How requests ended that were not served.
#[derive(Debug, Default)]
struct Unserved {
    blamed: u64,
    by_engine: u64,
    by_worker: u64,
    overloaded: u64,
    unavailable: u64,
}

/// Panics when the schedule says so; otherwise the engine's usual policy.
struct Fragile(Arc<World>);

impl Policy for Fragile {
    fn rank(&mut self, facts: &SequenceFacts<'_>) -> u64 {
        assert!(!self.0.panics(), "{}", panics::ON_PURPOSE);
        FairShare.rank(facts)
    }

    fn place(&self, class: &SchedulingClass) -> Place {
        FairShare.place(class)
    }

    fn victim(&self, juniors: &[SequenceFacts<'_>]) -> usize {
        FairShare.victim(juniors)
    }
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Self) {
        for (&fault, times) in &other.faults {
            *self.faults.entry(fault).or_default() += times;
        }
        self.losses += other.losses;
        self.served += other.served;
        self.gone += other.gone;
        self.late += other.late;
        self.refused += other.refused;
        self.failed += other.failed;
        self.poison += other.poison;
        self.longest = self.longest.max(other.longest);
    }
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    builder.build().expect("a runtime")
}

/// Starts an engine in this world.
fn start(world: &Arc<World>, config: &EngineConfig) -> Engine {
    let metrics = EngineMetrics::register(&mut Registry::default());
    let workers = Box::new(SimulatedWorkers(Arc::clone(world)));
    let world = Arc::clone(world);
    let policy = move || Box::new(Fragile(Arc::clone(&world))) as Box<dyn Policy>;
    Engine::start_with(workers, config.clone(), metrics, policy)
}

/// Runs `work` on an engine whose workers never fail.
pub(crate) fn undisturbed<T, F: Future<Output = T>>(
    geometry: Geometry,
    work: impl FnOnce(Engine) -> F,
) -> T {
    let setup = Setup {
        mock: MockConfig {
            geometry,
            eos: EOS,
            ..MockConfig::default()
        },
        ranks: 1,
        weather: Weather::Calm,
        step: 1,
        prepare: 0,
        past: 1,
    };
    runtime().block_on(async {
        let world = World::new(setup, Default::default(), 0);
        let engine = start(&world, &EngineConfig::default());
        ready(&engine).await;
        work(engine).await
    })
}

const EOS: Eos = Eos { id: END, every: 40 };

async fn ready(engine: &Engine) {
    let mut states = engine.watch();
    let is_ready = |state: &EngineState| *state == EngineState::Ready;
    states.wait_for(is_ready).await.expect("the engine runs");
}

impl Episode {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather::pick(&mut random);
        let depth = random.within(1, 3) as u16;
        let mock = mock(weather, &mut random);
        let tokens_per_run = mock.geometry.tokens_per_run;
        let setup = Setup {
            mock,
            ranks: 1 + usize::from(random.chance(25)),
            weather,
            step: random.pick(&[1, 5, 20]),
            prepare: random.pick(&[0, 30]),
            past: (u32::from(depth) + 1) * tokens_per_run,
        };
        let mut config = config(depth, &mut random);
        let count = random.within(3, 9);
        let mut clients: Vec<_> = (0..count)
            .map(|name| client(name, tokens_per_run > 1, &mut random))
            .collect();
        if weather == Weather::Poison {
            config.max_waiting = 4096;
            for name in 0..random.within(1, 2) {
                clients[name as usize].request = poison(random.within(0, REQUESTS - 1));
                clients[name as usize].number = None;
                clients[name as usize].behaviour = Behaviour::Stays;
            }
        }
        Self {
            seed,
            setup,
            config,
            clients,
        }
    }

    pub(crate) fn run(self) -> Summary {
        LazyLock::force(&ANSWERS);
        let faults = self.setup.weather.faults(&mut Random::new(!self.seed));
        let runtime = runtime();
        let (seen, fates, longest) = runtime.block_on(async {
            let world = World::new(self.setup.clone(), faults, self.seed);
            let began = Instant::now();
            let run = timeout(LONGEST, self.run_in(&world)).await;
            let fates = run.expect("an episode ends");
            assert_eq!(world.violations(), Vec::<String>::new(), "broken rules");
            world.end();
            sleep(Duration::from_millis(10)).await;
            (world.seen(), fates, began.elapsed().as_secs())
        });
        assert_eq!(panics::unexpected(), 0, "the engine panicked");
        let tasks = runtime.metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "tasks are left");
        self.judge(&seen, &fates, longest)
    }

    /// Runs all clients, then one more, and drains the engine.
    async fn run_in(&self, world: &Arc<World>) -> Vec<Fate> {
        let engine = start(world, &self.config);
        ready(&engine).await;
        let clients = self.clients.iter().cloned();
        let clients = join_all(clients.map(|client| client.run(&engine, world)));
        let fates = tokio::select! {
            biased;
            fates = clients => fates,
            () = world.kill_at_times() => unreachable!("it goes on for ever"),
        };
        world.calm_down();
        ready(&engine).await;
        let last = Client {
            name: u32::MAX,
            number: Some(0),
            request: wanted(0),
            behaviour: Behaviour::Stays,
            arrives: 0,
        };
        // A scripted error of a sequence, or the end of an outage, may meet the first ones.
        let mut fate = Fate::Gone;
        for _ in 0..4 {
            ready(&engine).await;
            fate = last.clone().run(&engine, world).await;
            match &fate {
                Fate::Served => break,
                Fate::Refused(SubmitError::Unavailable { .. }) => {}
                other => assert!(self.slot_errors() > 0, "the last one: {other:?}"),
            }
        }
        assert_eq!(fate, Fate::Served, "the last one");
        engine.drain(Duration::from_secs(1)).await;
        let reason = "the server has shut down".into();
        assert_eq!(engine.state(), EngineState::Stopped { reason });
        fates
    }

    /// Checks that nobody was refused or failed without a reason.
    fn judge(&self, seen: &Seen, fates: &[Fate], longest: u64) -> Summary {
        let mut summary = Summary {
            faults: seen.faults.clone(),
            losses: seen.losses,
            trace: seen.trace,
            longest,
            ..Summary::default()
        };
        let mut unserved = Unserved::default();
        for (client, fate) in self.clients.iter().zip(fates) {
            match fate {
                Fate::Served => summary.served += 1,
                Fate::Gone => summary.gone += 1,
                Fate::Late => summary.late += 1,
                Fate::Refused(_) => summary.refused += 1,
                Fate::Failed(_) => summary.failed += 1,
            }
            match client.number {
                Some(_) => unserved.count(client, fate),
                None if is_blamed(fate) => summary.poison += 1,
                None => {
                    assert_ne!(*fate, Fate::Served, "poison");
                    unserved.count(client, fate);
                }
            }
        }
        self.check(seen, &unserved, summary.poison);
        summary
    }

    /// Returns how many sequences fail by script in the life of a worker.
    fn slot_errors(&self) -> u64 {
        let scripted = self.setup.mock.faults.iter();
        let errors = scripted.filter(|fault| matches!(fault, Scripted::ErrorSlot(_)));
        errors.count() as u64
    }

    fn check(&self, seen: &Seen, unserved: &Unserved, poison: u64) {
        let times = |fault| seen.faults.get(&fault).copied().unwrap_or(0);
        let storm = self.setup.weather == Weather::Storm;
        let faults: u64 = seen.faults.values().sum();
        let bounds = [
            (
                unserved.blamed,
                if storm {
                    faults + seen.dead_on_arrival
                } else {
                    0
                },
            ),
            (
                unserved.by_engine,
                times(Fault::Panic) * if storm { 2 } else { 1 },
            ),
            (unserved.by_worker, self.slot_errors() * seen.starts),
            (
                unserved.unavailable,
                if seen.outage + Duration::from_secs(5) >= self.config.max_restart_wait {
                    u64::MAX
                } else {
                    0
                },
            ),
            (
                unserved.overloaded,
                if self.config.max_waiting < 10 {
                    u64::MAX
                } else {
                    0
                },
            ),
            (
                seen.losses,
                faults + seen.dead_on_arrival + poison * u64::from(4 + self.clients.len().ilog2()),
            ),
        ];
        let within = bounds.iter().all(|(count, most)| count <= most);
        assert!(within, "{bounds:?} {unserved:?} {seen:?} {:?}", self.setup);
    }
}

/// Whether a request failed because the workers fail on it.
fn is_blamed(fate: &Fate) -> bool {
    match fate {
        Fate::Failed(why) | Fate::Refused(SubmitError::Internal(why)) => {
            why.starts_with("the workers fail on this request")
        }
        _ => false,
    }
}

impl Unserved {
    fn count(&mut self, client: &Client, fate: &Fate) {
        let why = match fate {
            Fate::Served | Fate::Late => return,
            Fate::Gone => {
                let leaves = matches!(
                    client.behaviour,
                    Behaviour::Leaves(_) | Behaviour::Withdraws(_)
                );
                assert!(leaves, "{client:?} is gone");
                return;
            }
            Fate::Refused(SubmitError::Overloaded { .. }) => {
                self.overloaded += 1;
                return;
            }
            Fate::Refused(SubmitError::Unavailable { .. }) => {
                self.unavailable += 1;
                return;
            }
            Fate::Refused(SubmitError::TooLate { .. }) => {
                let late = matches!(client.behaviour, Behaviour::HasDeadline(_));
                assert!(late, "{client:?} has no deadline");
                return;
            }
            Fate::Refused(SubmitError::Internal(why)) | Fate::Failed(why) => why,
            Fate::Refused(error) => panic!("{client:?}: {error:?}"),
        };
        let count = match why.as_str() {
            why if why.starts_with("the workers fail on") => &mut self.blamed,
            why if why.starts_with("the engine failed on") => &mut self.by_engine,
            why if why.starts_with("the worker failed on") => &mut self.by_worker,
            _ => panic!("{client:?}: {why}"),
        };
        *count += 1;
    }
}

/// A mock worker with little room.
fn mock(weather: Weather, random: &mut Random) -> MockConfig {
    let block_tokens = random.pick(&[4, 8, 16]);
    let least = 112 / block_tokens;
    let blocks = random.within(least, 3 * least);
    let sliding = SlidingGroup {
        blocks,
        window: random.within(4, 40),
    };
    let geometry = Geometry {
        blocks,
        block_tokens,
        slots: random.within(1, 6),
        step_tokens: random.within(8, 64),
        tokens_per_run: if random.chance(20) { 3 } else { 1 },
        sliding: random.chance(20).then_some(sliding),
        ..Geometry::default()
    };
    let step = |random: &mut Random| random.within(0, 40).into();
    let faults = match weather {
        Weather::Poison if random.chance(50) => vec![Scripted::DieOn(POISON)],
        Weather::Poison => vec![Scripted::RaiseOn(POISON)],
        _ if random.chance(20) => vec![Scripted::ErrorSlot(step(random))],
        _ if random.chance(20) => vec![Scripted::DropPrepared(step(random))],
        _ => Vec::new(),
    };
    MockConfig {
        geometry,
        eos: EOS,
        check: Check::Full,
        faults,
        ..MockConfig::default()
    }
}

fn config(depth: u16, random: &mut Random) -> EngineConfig {
    EngineConfig {
        depth,
        prefix_cache: random.chance(80),
        max_waiting: if random.chance(10) { 2 } else { 4096 },
        prepare_policy: match random.chance(20) {
            true => PreparePolicy::Always,
            false => PreparePolicy::WhenNeeded,
        },
        step_limits: StepLimits {
            least: Duration::from_secs(2),
            first: Duration::from_secs(5),
        },
        verify: true,
        ..EngineConfig::default()
    }
}

fn client(name: u32, several_tokens: bool, random: &mut Random) -> Client {
    let number = loop {
        let number = random.within(0, REQUESTS - 1);
        // A beam search takes one token at a time.
        if !several_tokens || wanted(number).beam.is_none() {
            break number;
        }
    };
    Client {
        name,
        number: Some(number),
        request: wanted(number),
        behaviour: Behaviour::pick(random),
        arrives: random.within(0, 300).into(),
    }
}
