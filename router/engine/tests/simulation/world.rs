//! What an episode's workers, clients and schedule of faults share.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use penstock_engine::{WorkersError, generated::v1};
use penstock_mock_shard::MockConfig;
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::clients::Fate;
use crate::faults::{Fault, Weather};
use crate::random::{Random, hash};
use crate::workers::Process;

/// Longer than any deadline of a step.
pub(crate) const OVERSLEPT: Duration = Duration::from_secs(300);
/// Longest time in milliseconds that it takes to end lost workers.
pub(crate) const BURY: u32 = 50;
/// Answers after which a fault that did not come is given up.
const PATIENCE: u32 = 60;

/// What the workers of an episode are.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mock: MockConfig,
    pub(crate) ranks: usize,
    pub(crate) weather: Weather,
    /// Longest step in milliseconds.
    pub(crate) step: u32,
    /// Longest preparation in milliseconds.
    pub(crate) prepare: u32,
    /// Tokens per choice after which a request has got past the steps that were in flight.
    pub(crate) past: u32,
}

pub(crate) struct World {
    setup: Setup,
    began: Instant,
    state: Mutex<State>,
}

/// The counts of an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// Losses of workers.
    pub(crate) losses: u64,
    pub(crate) starts: u64,
    /// Workers that died as soon as they were loaded.
    pub(crate) dead_on_arrival: u64,
    /// Longest time without workers.
    pub(crate) outage: Duration,
    /// Hash of all events with their times.
    pub(crate) trace: u64,
}

struct State {
    random: Random,
    faults: VecDeque<(u32, Fault)>,
    /// The rank that has the next fault.
    victim: usize,
    /// Answers of the victim since the last fault.
    replies: u32,
    /// Open requests, with the tokens that they lack to be past the last fault.
    behind: BTreeMap<u32, u32>,
    /// Tokens that each request needs for that.
    needs: BTreeMap<u32, u32>,
    processes: Vec<Arc<Process>>,
    starts_to_fail: u32,
    outside: bool,
    /// Whether the workers live on when the engine gives them up.
    survive: bool,
    lost_at: Option<Instant>,
    /// The last answer of this epoch, and of the one before.
    answers: [Option<v1::StepReply>; 2],
    violations: Vec<String>,
    seen: Seen,
}

impl World {
    pub(crate) fn new(setup: Setup, faults: VecDeque<(u32, Fault)>, seed: u64) -> Arc<Self> {
        let state = State {
            random: Random::new(seed ^ 0xfa17),
            faults,
            victim: 0,
            replies: 0,
            behind: BTreeMap::new(),
            needs: BTreeMap::new(),
            processes: Vec::new(),
            starts_to_fail: 0,
            outside: false,
            survive: false,
            lost_at: None,
            answers: [None, None],
            violations: Vec::new(),
            seen: Seen::default(),
        };
        Arc::new(Self {
            setup,
            began: Instant::now(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is locked")
    }

    fn note(&self, state: &mut State, words: &[u64]) {
        let now = self.began.elapsed().as_micros() as u64;
        state.seen.trace = hash(&[state.seen.trace, now, hash(words)]);
    }

    pub(crate) fn within(&self, low: u32, high: u32) -> Duration {
        Duration::from_millis(self.state().random.within(low, high).into())
    }

    pub(crate) fn step_time(&self) -> Duration {
        self.within(1, self.setup.step)
    }

    pub(crate) fn prepare_time(&self) -> Duration {
        self.within(0, self.setup.prepare)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.setup.ranks
    }

    pub(crate) fn mock(&self) -> MockConfig {
        self.setup.mock.clone()
    }
}

/// What the clients tell.
impl World {
    /// A client sends a request. `choices` show that it gets on; `None`: none does.
    pub(crate) fn opened(&self, name: u32, choices: Option<u32>) {
        let mut state = self.state();
        let needs = choices.map_or(u32::MAX, |choices| choices * self.setup.past);
        state.needs.insert(name, needs);
        state.behind.insert(name, 0);
        self.note(&mut state, &[1, name.into()]);
    }

    pub(crate) fn got_tokens(&self, name: u32, count: usize) {
        let mut state = self.state();
        if let Some(behind) = state.behind.get_mut(&name).filter(|b| **b < u32::MAX) {
            *behind = behind.saturating_sub(count as u32);
        }
        self.note(&mut state, &[2, name.into(), count as u64]);
    }

    pub(crate) fn closed(&self, name: u32, fate: &Fate) {
        let mut state = self.state();
        state.behind.remove(&name);
        let served = u64::from(*fate == Fate::Served);
        self.note(&mut state, &[3, name.into(), served]);
    }

    /// A request ended at its deadline; it must not be too early or too late.
    pub(crate) fn late(&self, deadline: Option<Instant>) -> Fate {
        let (now, deadline) = (Instant::now(), deadline.expect("it has a deadline"));
        let latest = deadline + Duration::from_millis(u64::from(BURY) + 2);
        let off = now.saturating_duration_since(deadline);
        assert!(deadline <= now && now <= latest, "{off:?} late");
        Fate::Late
    }
}

/// Faults.
impl World {
    /// Returns the next fault if it is due and `comes` here.
    fn take(&self, comes: impl Fn(Fault) -> bool) -> Option<Fault> {
        let mut state = self.state();
        let &(gap, fault) = state.faults.front()?;
        let patient = matches!(self.setup.weather, Weather::Patient | Weather::Poison);
        let waits = patient && state.behind.values().any(|&behind| behind > 0);
        if state.replies < gap || waits || !comes(fault) {
            return None;
        }
        state.faults.pop_front();
        state.replies = 0;
        let last = self.setup.ranks as u32 - 1;
        state.victim = state.random.within(0, last) as usize;
        *state.seen.faults.entry(fault).or_default() += 1;
        if fault.is_loss() {
            state.mark_behind();
            state.outside = fault.is_from_outside();
        }
        self.note(&mut state, &[4, fault as u64]);
        Some(fault)
    }

    /// Returns what goes wrong with an answer of this rank.
    pub(crate) fn on_reply(&self, rank: usize) -> Option<Fault> {
        {
            let mut state = self.state();
            if state.victim != rank {
                return None;
            }
            state.replies += 1;
            if state.replies > PATIENCE {
                state.faults.pop_front();
                state.replies = 0;
            }
        }
        self.take(|fault| !matches!(fault, Fault::Panic | Fault::KilledAnytime))
    }

    /// Returns whether the scheduler panics now.
    pub(crate) fn panics(&self) -> bool {
        self.take(|fault| fault == Fault::Panic).is_some()
    }

    /// Kills workers at random times. Does not end.
    pub(crate) async fn kill_at_times(&self) {
        while !self.state().faults.is_empty() {
            sleep(self.within(1, 200)).await;
            if self.take(|fault| fault == Fault::KilledAnytime).is_some() {
                let state = self.state();
                if let Some(process) = state.processes.get(state.victim) {
                    process.kill();
                }
            }
        }
        pending::<()>().await;
    }

    /// Nothing goes wrong from now on.
    pub(crate) fn calm_down(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.starts_to_fail = 0;
    }

    /// The workers live on when the engine gives them up.
    pub(crate) fn survive(&self) {
        self.state().survive = true;
    }

    /// An answer was sent.
    pub(crate) fn answered(&self, reply: &v1::StepReply) {
        self.state().answers[0] = Some(reply.clone());
    }

    /// Returns an answer of an earlier epoch.
    pub(crate) fn old_answer(&self) -> Option<v1::StepReply> {
        self.state().answers[1].clone()
    }

    pub(crate) fn violated(&self, status: &Status) {
        self.state().violations.push(status.message().to_owned());
    }
}

impl State {
    /// All open requests have yet to get past this moment.
    fn mark_behind(&mut self) {
        for (name, behind) in &mut self.behind {
            *behind = self.needs[name];
        }
    }
}

/// Starts and ends of workers.
impl World {
    /// Returns the workers if they outlive the engine's patience; ends them otherwise.
    pub(crate) fn survivors(&self) -> Option<Vec<Arc<Process>>> {
        let mut state = self.state();
        let survive = std::mem::take(&mut state.survive);
        if survive && state.processes.iter().all(|process| !process.is_dead()) {
            return Some(state.processes.clone());
        }
        drop(state);
        self.end();
        None
    }

    /// Returns whether the workers die as soon as they are loaded, or that they do not start.
    pub(crate) fn begin_start(&self) -> Result<bool, WorkersError> {
        let mut state = self.state();
        state.seen.starts += 1;
        if state.starts_to_fail == 0 {
            return Ok(false);
        }
        state.starts_to_fail -= 1;
        if state.random.chance(50) {
            return Err(WorkersError::Process("no memory".into()));
        }
        state.seen.dead_on_arrival += 1;
        Ok(true)
    }

    pub(crate) fn set_processes(&self, processes: Vec<Arc<Process>>) {
        self.state().processes = processes;
    }

    /// The workers can step.
    pub(crate) fn begin_epoch(&self) {
        let mut state = self.state();
        state.answers.swap(0, 1);
        state.answers[0] = None;
        if let Some(lost_at) = state.lost_at.take() {
            state.seen.outage = state.seen.outage.max(lost_at.elapsed());
        }
    }

    /// The engine has lost the workers. Returns whether somebody killed them.
    pub(crate) fn bury(&self) -> bool {
        let mut state = self.state();
        state.lost_at.get_or_insert_with(Instant::now);
        state.seen.losses += 1;
        state.mark_behind();
        if state.starts_to_fail == 0 && state.random.chance(25) {
            let storm = self.setup.weather == Weather::Storm;
            state.starts_to_fail = state.random.within(1, if storm { 9 } else { 3 });
        }
        let losses = state.seen.losses;
        self.note(&mut state, &[5, losses]);
        std::mem::take(&mut state.outside)
    }

    /// Ends all workers.
    pub(crate) fn end(&self) {
        let processes = std::mem::take(&mut self.state().processes);
        processes.iter().for_each(|process| process.kill());
    }

    pub(crate) fn seen(&self) -> Seen {
        self.state().seen.clone()
    }

    /// Returns the rules of the protocol that the engine broke.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }
}
