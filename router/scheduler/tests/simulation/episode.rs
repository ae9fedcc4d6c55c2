//! One random episode of a scheduler, checked after every call.

use crate::policies::policy;
use crate::random::{Random, hash};
use crate::worker::{VOCABULARY, Worker, World, extend_history, next_token, root};
use penstock_scheduler::Scheduler;
use penstock_scheduler::config::{DecodeReads, GroupKind, KvGroup, Reserve, SchedulerConfig};
use penstock_scheduler::ids::{Epoch, Micros, RequestId, SequenceId, TokenId};
use penstock_scheduler::plan::{BlockCopy, Emission, Finish, StepOutcome, StepPlan};
use penstock_scheduler::request::{Pipelining, Request, SchedulingClass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most sequences of a steered request.
const BEAMS: u32 = 5;

/// The client's view of a sequence.
#[derive(Clone)]
struct Record {
    history: u64,
    /// The history without its last token.
    before: u64,
    /// Whether it waits for `steer`.
    held: bool,
    /// Whether its request is steered.
    steered: bool,
    generated: u32,
    max_new_tokens: u32,
    min_new_tokens: u32,
    stops: Vec<TokenId>,
}

/// What happened in an episode, to compare two runs and to check that it was not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Hash of all plans.
    pub(crate) plans: u64,
    /// Plans made.
    pub(crate) steps: u64,
    /// Requests and forks accepted.
    pub(crate) accepted: u64,
    /// Preemptions.
    pub(crate) preemptions: u64,
    /// Tokens found in the prefix cache.
    pub(crate) hits: u64,
    /// Forks that shared their parent's blocks.
    pub(crate) forks: u64,
    /// Sequences that had to be prepared again while they ran.
    pub(crate) unprepared: u64,
    /// Tokens that the caller chose.
    pub(crate) steered: u64,
    /// Copies of states: checkpoints, restored ones and forks.
    pub(crate) state_copies: u64,
    /// Tokens found in the prefix cache where a window or a state could shorten the hit.
    pub(crate) group_hits: u64,
    /// Sequences that ended by an emission.
    pub(crate) finished: u64,
}

/// An episode in progress.
pub(crate) struct Episode {
    random: Random,
    config: SchedulerConfig,
    scheduler: Scheduler,
    worker: Worker,
    /// Outcomes that the scheduler has not received.
    wire: VecDeque<StepOutcome>,
    stale: Vec<StepOutcome>,
    live: BTreeMap<SequenceId, Record>,
    /// Requests that wait for `prepared`.
    preparing: Vec<RequestId>,
    /// Requests whose forks may not be made yet.
    unforked: BTreeSet<RequestId>,
    salts: BTreeMap<u64, Vec<u64>>,
    epoch: Epoch,
    now: u64,
    next_id: u64,
    failures: u32,
    /// Percent of sequences that enter a slot unprepared.
    unprepared: u32,
    /// Percent of runs whose token comes later.
    late: u32,
    losses: u32,
    /// Whether tenants share the workers, and make way for each other.
    fair: bool,
    /// Whether forks may share blocks without room for all to finish.
    forked: bool,
    summary: Summary,
}

impl Episode {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = random_config(&mut random);
        let chosen = random.within(0, 9);
        Self {
            scheduler: Scheduler::new(config.clone(), policy(chosen)).unwrap(),
            worker: Worker::new(&config),
            failures: random.pick(&[0, 0, 0, 3]),
            unprepared: random.pick(&[0, 0, 10, 40]),
            late: random.pick(&[0, 0, 5, 50]),
            losses: random.pick(&[0, 0, 1, 4]),
            random,
            config,
            wire: VecDeque::new(),
            stale: Vec::new(),
            live: BTreeMap::new(),
            preparing: Vec::new(),
            unforked: BTreeSet::new(),
            salts: BTreeMap::new(),
            epoch: Epoch(0),
            now: 0,
            next_id: 0,
            fair: chosen < 4,
            forked: false,
            summary: Summary::default(),
        }
    }

    /// Runs traffic for a while, then none until everything has ended.
    pub(crate) fn run(mut self) -> Summary {
        let events = self.random.pick(&[20, 100, 600, 1_500]);
        for _ in 0..events {
            self.event();
            self.check();
        }
        (self.failures, self.unprepared, self.late) = (0, 0, 0);
        self.finish_all();
        let end = self.scheduler.snapshot();
        let empty = (end.waiting, end.preparing, end.running, end.blocks_leased) == (0, 0, 0, 0);
        assert!(empty, "something is left: {end:?}");
        let reserved = self.config.reserve == Reserve::ToFinish && !self.forked && !self.fair;
        assert!(!reserved || end.preemptions == 0, "preempted: {end:?}");
        self.summary.preemptions = end.preemptions;
        self.summary.hits = end.prefix_hit_tokens;
        if self.config.groups.len() > 1 {
            self.summary.group_hits = end.prefix_hit_tokens;
        }
        self.summary
    }

    fn event(&mut self) {
        self.now += u64::from(self.random.within(0, 5));
        match self.random.within(0, 99) {
            0..25 => self.arrive(),
            25..30 => self.fork(),
            30..33 => self.abort(),
            33..36 => self.finish(),
            36..40 => self.prepare(),
            40..75 => {
                self.plan();
            }
            98 if self.random.chance(10 * self.losses) => self.lose(),
            _ => {
                self.deliver();
            }
        }
    }

    fn check(&self) {
        if let Err(violation) = self.scheduler.check() {
            panic!("{violation}");
        }
    }

    fn arrive(&mut self) {
        let request = self.random_request();
        if self
            .scheduler
            .add(request.clone(), Micros(self.now))
            .is_err()
        {
            return;
        }
        self.next_id += 1;
        self.summary.accepted += 1;
        self.salts.insert(request.id.0, request.cache_salt.clone());
        if request.preparing {
            self.preparing.push(request.id);
        }
        let history = root(&request.cache_salt);
        let record = Record {
            before: 0,
            held: false,
            steered: request.pipelining == Pipelining::Steered,
            history: request
                .token_ids
                .iter()
                .fold(history, |h, &token| extend_history(h, token)),
            generated: request.generated,
            max_new_tokens: request.max_new_tokens,
            min_new_tokens: request.min_new_tokens,
            stops: request.stop_token_ids,
        };
        for index in 0..request.sequences {
            let id = SequenceId {
                request: request.id,
                index,
            };
            self.live.insert(id, record.clone());
        }
        if request.sequences > 1 {
            self.unforked.insert(request.id);
            self.forked = true;
        }
    }

    fn random_request(&mut self) -> Request {
        let random = &mut self.random;
        let longest = longest(&self.config);
        let length = random.pick(&[1, 2, longest / 4, longest / 2, longest]);
        let length = random.within(1, length.max(1));
        let answer = random.pick(&[1, longest / 2, longest.saturating_sub(length).max(1)]);
        // One of few prompts, so that many requests share prefixes.
        let kind = u64::from(random.within(0, 3));
        let token = |at: u32| TokenId((hash(&[kind, at.into()]) % u64::from(VOCABULARY)) as u32);
        let generated = if random.chance(10) {
            random.within(0, length - 1)
        } else {
            0
        };
        Request {
            id: RequestId(self.next_id),
            token_ids: (0..length).map(token).collect(),
            generated,
            max_new_tokens: random.within(0, answer) + generated.min(answer),
            min_new_tokens: random.pick(&[0, 0, 3]),
            stop_token_ids: if random.chance(40) {
                vec![TokenId(0)]
            } else {
                vec![]
            },
            cache_salt: random.pick(&[&[][..], &[], &[], &[7], &[7, 8]]).to_vec(),
            max_cached_tokens: random.pick(&[u32::MAX, u32::MAX, 0, length / 2]),
            preparing: random.chance(10),
            pipelining: random.pick(&[
                Pipelining::Ahead,
                Pipelining::Ahead,
                Pipelining::Waits,
                Pipelining::Steered,
            ]),
            sequences: random.pick(&[1, 1, 1, 2, 5]),
            class: SchedulingClass {
                priority: random.within(0, 2) as i32,
                tenant: random.pick(&[0, 0, 0, 1, 2]),
                weight: random.within(0, 3),
                ..SchedulingClass::default()
            },
        }
    }

    fn pick_live(&mut self) -> Option<SequenceId> {
        let last = self.live.len().checked_sub(1)?;
        let at = self.random.within(0, last as u32) as usize;
        self.live.keys().nth(at).copied()
    }

    fn fork(&mut self) {
        let Some(parent) = self.pick_live() else {
            return;
        };
        if self.unforked.contains(&parent.request) || self.live[&parent].steered {
            return;
        }
        let max_new_tokens = self.live[&parent].generated + self.random.within(0, 9);
        let forked = self
            .scheduler
            .fork(parent, max_new_tokens, Micros(self.now));
        let Ok(child) = forked else { return };
        self.forked = true;
        self.summary.accepted += 1;
        let record = &self.live[&parent];
        let record = Record {
            max_new_tokens,
            stops: record.stops.clone(),
            ..*record
        };
        let old = self.live.insert(child, record);
        assert!(old.is_none(), "{child:?} was forked twice");
    }

    fn abort(&mut self) {
        let Some(id) = self.pick_live() else { return };
        assert!(self.scheduler.abort(id.request), "{id:?} was live");
        assert!(!self.scheduler.abort(id.request), "{id:?} is over");
        self.end_request(id.request);
    }

    fn finish(&mut self) {
        let Some(id) = self.pick_live() else { return };
        if self.unforked.contains(&id.request) {
            // If the first sequence ends before the forks are made, the request ends.
            self.scheduler.abort(id.request);
            self.end_request(id.request);
            return;
        }
        self.scheduler.finish(id);
        self.live.remove(&id);
        self.steer(id.request);
    }

    /// Once all sequences of a steered request are held: some end, some continue, some fork.
    fn steer(&mut self, request: RequestId) {
        let of = |id: &SequenceId| id.request == request;
        let mut sequences = self.live.iter().filter(|(id, _)| of(id));
        if self.unforked.contains(&request) || !sequences.all(|(_, record)| record.held) {
            return;
        }
        let ids: Vec<_> = self.live.keys().filter(|id| of(id)).copied().collect();
        let mut left = BEAMS;
        for id in ids {
            let count = self.random.pick(&[0, 1, 1, 1, 2, 3]).min(left);
            left -= count;
            let tokens: Vec<_> = (0..count)
                .map(|_| TokenId(self.random.within(0, VOCABULARY - 1)))
                .collect();
            let children = self.scheduler.steer(id, &tokens, Micros(self.now));
            let record = self.live.remove(&id).unwrap();
            let going = std::iter::once(id).chain(children.iter().copied());
            assert_eq!(
                children.len() + 1,
                tokens.len().max(1),
                "one sequence per token"
            );
            for (id, token) in going.zip(tokens) {
                let history = extend_history(record.before, token);
                let record = Record {
                    history,
                    held: false,
                    stops: record.stops.clone(),
                    ..record
                };
                assert!(
                    self.live.insert(id, record).is_none(),
                    "{id:?} was forked twice"
                );
                self.forked = true;
                self.summary.steered += 1;
            }
            self.check();
        }
    }

    fn end_request(&mut self, id: RequestId) {
        self.live.retain(|live, _| live.request != id);
        self.preparing.retain(|&request| request != id);
        self.unforked.remove(&id);
    }

    fn prepare(&mut self) {
        if let Some(id) = self.preparing.pop() {
            self.scheduler.prepared(id, Micros(self.now));
        }
    }

    fn plan(&mut self) -> bool {
        let before = self.scheduler.snapshot();
        let Some(plan) = self.scheduler.plan(Micros(self.now)) else {
            // Beams wait for a sibling that is prepared again.
            let waits = !self.preparing.is_empty();
            let idle = before.in_flight == 0 && before.running + before.waiting > 0 && !waits;
            assert!(!idle, "nothing runs although {before:?}");
            return false;
        };
        assert!(
            before.in_flight < usize::from(self.config.depth),
            "too many plans in flight"
        );
        assert_eq!(plan.epoch, self.epoch);
        assert!(!plan.runs.is_empty(), "an empty plan");
        self.note(&plan);
        let world = World {
            failures: self.failures,
            unprepared: self.unprepared,
            late: self.late,
            salts: &self.salts,
        };
        let outcome = self.worker.step(&plan, &world, &mut self.random);
        self.wire.push_back(outcome);
        true
    }

    fn note(&mut self, plan: &StepPlan) {
        let text = format!("{plan:?}");
        let words: Vec<_> = text.bytes().map(u64::from).collect();
        self.summary.plans = hash(&[self.summary.plans, hash(&words)]);
        self.summary.steps += 1;
        self.summary.forks += plan.forks.len() as u64;
        let kind = |copy: &BlockCopy| self.config.groups[copy.group.0 as usize].kind;
        let states = plan.copies.iter().map(kind);
        let states = states.filter(|&kind| kind == GroupKind::State);
        self.summary.state_copies += states.count() as u64;
    }

    fn deliver(&mut self) -> bool {
        if self.random.chance(20)
            && let Some(stale) = self.stale.pop()
        {
            let news = self.scheduler.complete(&stale, Micros(self.now));
            assert_eq!(news, [], "an old epoch's outcome counts");
        }
        let Some(outcome) = self.wire.pop_front() else {
            return false;
        };
        let news = self.scheduler.complete(&outcome, Micros(self.now));
        let unprepared = self.scheduler.take_unprepared();
        self.summary.unprepared += unprepared.len() as u64;
        self.preparing.extend(unprepared);
        let mut gone = BTreeSet::new();
        for emission in news {
            let id = emission.sequence.request;
            if emission.finish == Some(Finish::Failed) && self.unforked.remove(&id) {
                // Its forks may be made already; none has had an emission.
                self.scheduler.abort(id);
                self.end_request(id);
                gone.insert(id);
            }
            if !gone.contains(&id) {
                self.receive(&emission, &outcome);
                self.steer(id);
            }
        }
        true
    }

    /// Every token equals the one that the sequence would get alone, and it ends when it should.
    fn receive(&mut self, emission: &Emission, outcome: &StepOutcome) {
        let id = emission.sequence;
        self.unforked.remove(&id.request);
        let Some(record) = self.live.get_mut(&id) else {
            panic!("news of {id:?}, which is over")
        };
        let mut start = 0;
        for (&slot, &count) in outcome.slots.iter().zip(&outcome.counts) {
            let its = start == emission.tokens.start && !emission.tokens.is_empty();
            assert!(!its || slot == emission.slot, "{id:?} emits from {slot}");
            start += count as usize;
        }
        let mut expected = None;
        for &token in &outcome.token_ids[emission.tokens.clone()] {
            assert_eq!(expected, None, "{id:?} continues after its end");
            assert_eq!(
                token,
                next_token(record.history, id),
                "{id:?} got a wrong token"
            );
            record.before = record.history;
            record.history = extend_history(record.history, token);
            record.held = record.steered;
            if record.stops.contains(&token) && record.generated >= record.min_new_tokens {
                expected = Some(Finish::StopToken);
            }
            record.generated += 1;
            if record.generated >= record.max_new_tokens && expected.is_none() {
                expected = Some(Finish::Length);
            }
        }
        if emission.finish != Some(Finish::Failed) {
            assert_eq!(emission.finish, expected, "{id:?} ends wrongly");
        }
        if emission.finish.is_some() {
            self.summary.finished += 1;
            self.live.remove(&id);
        }
    }

    fn lose(&mut self) {
        self.epoch = self.scheduler.workers_lost(Micros(self.now));
        self.stale.extend(self.wire.drain(..));
        if self.random.chance(30) {
            let mut config = self.config.clone();
            for group in &mut config.groups {
                group.blocks = (group.blocks + 3)
                    .saturating_sub(self.random.within(0, 6))
                    .max(1);
                config.block_tokens = self.random.within(1, 5);
            }
            let lost = self
                .scheduler
                .replace(config.clone(), Micros(self.now))
                .unwrap();
            self.live.retain(|id, _| !lost.contains(&id.request));
            self.preparing.retain(|id| !lost.contains(id));
            self.config = config;
        }
        self.worker = Worker::new(&self.config);
        if let Some(id) = self.pick_live().filter(|_| self.random.chance(50)) {
            self.scheduler.prepare_again(id.request);
            self.preparing.push(id.request);
        }
    }

    /// Everything accepted must end within steps proportional to the work. Beams that find room
    /// only one after the other run all their tokens again for each new token.
    fn finish_all(&mut self) {
        let again = BEAMS * self.config.max_sequence_tokens;
        let turns = |record: &Record| if record.steered { again } else { 1 };
        let work = |record: &Record| record.max_new_tokens * turns(record);
        let work: u32 = self.live.values().map(work).sum();
        let prompts = self.live.len() as u32 * self.config.max_sequence_tokens;
        let limit = 20 * (work + prompts) + 100;
        for _ in 0..limit {
            if self.live.is_empty() {
                break;
            }
            self.now += 1;
            self.prepare();
            if !self.plan() || self.random.chance(50) {
                self.deliver();
            }
            self.check();
        }
        assert!(
            self.live.is_empty(),
            "starved after {limit} steps: {:?}",
            self.live.keys()
        );
        while self.deliver() {}
    }
}

/// Returns the tokens of the longest sequence that the pools admit.
fn longest(config: &SchedulerConfig) -> u32 {
    let lengths = (1..=config.max_sequence_tokens).rev();
    let mut admitted = lengths.filter(|&tokens| config.admits(tokens.into()).is_ok());
    admitted.next().unwrap_or(1)
}

fn random_config(random: &mut Random) -> SchedulerConfig {
    let max_tokens_per_run = random.pick(&[1, 1, 2, 3, 4]);
    let block_tokens = random.within(1, 5);
    let groups = random_groups(random);
    SchedulerConfig {
        block_tokens,
        groups,
        max_slots: random.pick(&[1, 3, 8, 16]),
        max_step_tokens: max_tokens_per_run + random.pick(&[0, 1, 5, 20, 60]),
        step_sizes: random
            .pick(&[&[][..], &[], &[1, 7], &[4, 8, 16, 100]])
            .to_vec(),
        max_sequence_tokens: random.pick(&[3, 20, 40, 90]),
        max_tokens_per_run,
        max_waiting: random.pick(&[1, 6, 30]),
        max_waiting_tokens: random.pick(&[10, 100, 1_000]),
        depth: random.within(1, 3) as u16,
        lead: random.pick(&[0, 1_500, 1_000_000]),
        prefix_cache: random.chance(80),
        reserve: random.pick(&[
            Reserve::Growth,
            Reserve::Growth,
            Reserve::Growth,
            Reserve::ToFinish,
        ]),
        latency_target: random.pick(&[None, Some(0), Some(900), Some(1_500), Some(1_000_000)]),
        aging: random.pick(&[0, 5, 50, 1_000]),
        decode_reads: DecodeReads::default(),
    }
}

/// Returns one group, or two or three of different kinds.
fn random_groups(random: &mut Random) -> Vec<KvGroup> {
    let kind = |window| match window {
        0 => GroupKind::Full,
        window => GroupKind::Sliding { window },
    };
    let group = |blocks, kind| KvGroup { blocks, kind };
    let blocks = random.pick(&[2, 9, 17, 17, 40]);
    let first = group(blocks, kind(random.pick(&[0, 0, 1, 4, 9])));
    if random.chance(60) {
        return vec![first];
    }
    let blocks = random.pick(&[4, 12, 30]);
    let second = group(blocks, kind(random.pick(&[0, 1, 4, 6])));
    let states = group(random.pick(&[1, 2, 5, 16]), GroupKind::State);
    match random.within(0, 5) {
        0 | 1 => vec![first, second],
        2 => vec![first, states],
        3 => vec![states, second],
        4 => vec![second, states, first],
        _ => vec![first, second, states],
    }
}
