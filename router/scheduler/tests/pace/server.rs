//! A server in virtual time: a scheduler, workers with the step times of a model on a GPU, and
//! clients that record when their tokens arrive.

use crate::random::Random;
use crate::times::{Speed, Step, table_sizes};
use penstock_scheduler::config::{DecodeReads, GroupKind, KvGroup, Reserve, SchedulerConfig};
use penstock_scheduler::ids::{Micros, RequestId, TokenId};
use penstock_scheduler::plan::{StepOutcome, StepPlan};
use penstock_scheduler::request::{Pipelining, Request, SchedulingClass};
use penstock_scheduler::{FairShare, FirstComeFirstServed, Scheduler};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const SLOTS: u32 = 512;
pub(crate) const STEP: u32 = 16_896;
/// Tokens of the largest step beside decodes, and of a step while few prompts wait.
pub(crate) const PREFILL_SIZE: u32 = 8_192;

/// Most plans in flight in any of the tests.
const DEPTH: usize = 3;
/// All tests end long before this time, unless requests starve.
const FOREVER: u64 = 1_000_000_000;

/// A client's view of its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) arrived: u64,
    /// When its tokens arrived.
    pub(crate) tokens: Vec<u64>,
    pub(crate) over: bool,
    pub(crate) tenant: u64,
    pub(crate) prompt: u32,
}

/// Tokens of a long prompt.
const LONG: u32 = 32_768;

/// A sequence on the workers.
#[derive(Clone, Copy, Default)]
struct Slot {
    known: u32,
    computed: u32,
}

/// The server, its clients and the clock.
pub(crate) struct Server {
    pub(crate) now: u64,
    speed: Speed,
    pub(crate) steps: Vec<Step>,
    pub(crate) clients: BTreeMap<u64, Client>,
    pub(crate) scheduler: Scheduler,
    slots: Vec<Slot>,
    free_at: u64,
    /// Microseconds that disturbances added to steps.
    pub(crate) disturbed: u64,
    in_flight: VecDeque<(u64, StepOutcome)>,
    cold: Option<Cold>,
    /// A time, and the relative slowdown of steps from then on; it decays by a factor of e in two
    /// seconds.
    pub(crate) heat: (u64, f64),
    pub(crate) transport: Transport,
    /// When the last outcome arrived.
    answered_at: u64,
}

/// Microseconds outside of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transport {
    /// From a plan to its start on an idle device.
    pub(crate) launch: u64,
    /// From the end of a step to its outcome.
    pub(crate) reply: u64,
}

/// Workers that have compiled nothing and captured no graph yet.
struct Cold {
    shapes: BTreeSet<(u32, u32)>,
    /// Percent of the first steps of a shape that take longer.
    disturbed: u32,
    /// Range of the microseconds that they take longer.
    longer: (u32, u32),
    random: Random,
}

/// Ranges of microseconds: compiling a kernel, and launching a step without a graph on a slow host
/// and on a fast one.
pub(crate) const COMPILING: (u32, u32) = (100_000, 1_500_000);
pub(crate) const LAUNCHING: (u32, u32) = (20_000, 80_000);
pub(crate) const FAST_LAUNCHING: (u32, u32) = (5_000, 20_000);

impl Cold {
    fn new(seed: u64, longer: (u32, u32)) -> Self {
        let mut random = Random::new(seed);
        Self {
            shapes: BTreeSet::new(),
            disturbed: random.pick(&[10, 20, 30, 40, 50, 60, 70, 80, 90]),
            longer,
            random,
        }
    }

    /// Returns the microseconds that a step takes longer.
    fn delay(&mut self, step: Step) -> u64 {
        let tokens = step.decodes + step.prompt;
        let shape = match step.prompt {
            0 => (0, step.decodes.next_multiple_of(8)),
            _ => (padded(tokens), step.decodes.next_power_of_two()),
        };
        let disturbed = self.shapes.insert(shape) && self.random.chance(self.disturbed);
        if disturbed {
            let (least, most) = self.longer;
            u64::from(self.random.within(least, most))
        } else {
            0
        }
    }
}

impl Server {
    /// Starts with cold workers. `seed` determines which first steps of a shape take longer, within
    /// `longer`.
    pub(crate) fn cold(seed: u64, longer: (u32, u32)) -> Self {
        let mut config = config();
        (config.depth, config.lead) = (3, 3_000);
        Self {
            cold: Some(Cold::new(seed, longer)),
            ..Self::with(config, Speed::Burst)
        }
    }

    /// From here on, no step is disturbed.
    pub(crate) fn warm(&mut self) {
        self.cold = None;
    }

    /// Creates a server with a latency target in microseconds.
    pub(crate) fn with_latency_target(latency_target: u64) -> Self {
        let config = SchedulerConfig {
            latency_target: Some(latency_target),
            ..config()
        };
        Self::with(config, Speed::Burst)
    }

    /// Creates a server of a model of 70 billion parameters in int4.
    pub(crate) fn of_large_model(latency_target: Option<u64>) -> Self {
        let config = SchedulerConfig {
            latency_target,
            decode_reads: DecodeReads {
                weights: 39_500_000_000,
                token: 327_680,
            },
            ..config()
        };
        Self::with(config, Speed::Large)
    }

    pub(crate) fn new(speed: Speed) -> Self {
        Self::with(config(), speed)
    }

    fn with(config: SchedulerConfig, speed: Speed) -> Self {
        Self {
            now: 0,
            speed,
            steps: Vec::new(),
            clients: BTreeMap::new(),
            scheduler: Scheduler::new(config, Box::new(FirstComeFirstServed)).unwrap(),
            slots: vec![Slot::default(); SLOTS as usize],
            free_at: 0,
            disturbed: 0,
            in_flight: VecDeque::new(),
            cold: None,
            heat: (0, 0.0),
            transport: Transport::default(),
            answered_at: 0,
        }
    }

    /// Creates a server with `slots` slots whose tenants share it.
    pub(crate) fn shared(slots: u32) -> Self {
        Self::shared_with(slots, |_| ())
    }

    pub(crate) fn shared_with(slots: u32, change: impl FnOnce(&mut SchedulerConfig)) -> Self {
        let mut config = SchedulerConfig {
            max_slots: slots,
            ..config()
        };
        change(&mut config);
        Self {
            scheduler: Scheduler::new(config.clone(), Box::new(FairShare)).unwrap(),
            ..Self::with(config, Speed::Burst)
        }
    }

    /// Adds a request with a prompt that no other shares, and returns its number.
    pub(crate) fn arrive(&mut self, prompt: u32, answer: u32) -> u64 {
        self.arrive_with(prompt, answer, |_| ())
    }

    pub(crate) fn arrive_as(&mut self, pipelining: Pipelining, prompt: u32, answer: u32) -> u64 {
        self.arrive_with(prompt, answer, |request| request.pipelining = pipelining)
    }

    /// Adds a request of a tenant.
    pub(crate) fn arrive_for(
        &mut self,
        (tenant, weight): (u64, u32),
        prompt: u32,
        answer: u32,
    ) -> u64 {
        self.arrive_with(prompt, answer, |request| {
            (request.class.tenant, request.class.weight) = (tenant, weight);
        })
    }

    /// Adds a request that `change` completes.
    pub(crate) fn arrive_with(
        &mut self,
        prompt: u32,
        answer: u32,
        change: impl FnOnce(&mut Request),
    ) -> u64 {
        let mut request = self.request(prompt, answer);
        change(&mut request);
        let tenant = request.class.tenant;
        self.scheduler.add(request, Micros(self.now)).unwrap();
        let client = Client {
            arrived: self.now,
            tenant,
            prompt,
            ..Client::default()
        };
        let id = self.clients.len() as u64;
        self.clients.insert(id, client);
        id
    }

    /// Returns the next request.
    pub(crate) fn request(&self, prompt: u32, answer: u32) -> Request {
        let id = self.clients.len() as u64;
        let token = |at: u32| TokenId((id as u32).wrapping_mul(0x9e37_79b9).wrapping_add(at));
        Request {
            id: RequestId(id),
            token_ids: (0..prompt).map(token).collect(),
            generated: 0,
            max_new_tokens: answer,
            min_new_tokens: 0,
            stop_token_ids: Vec::new(),
            cache_salt: Vec::new(),
            max_cached_tokens: u32::MAX,
            preparing: false,
            pipelining: Pipelining::Ahead,
            sequences: 1,
            class: SchedulingClass::default(),
        }
    }

    /// Advances to the next outcome or to `until`. Returns how many requests with short prompts
    /// ended.
    pub(crate) fn advance(&mut self, until: u64) -> u32 {
        while let Some(plan) = self.scheduler.plan(Micros(self.now)) {
            self.launch(&plan);
            assert!(self.in_flight.len() <= DEPTH, "too many plans in flight");
        }
        let next = self.in_flight.front().map_or(u64::MAX, |(at, _)| *at);
        self.now = next.min(until);
        assert!(self.now < FOREVER, "requests are left that nothing answers");
        if next > until {
            return 0;
        }
        let (_, outcome) = self.in_flight.pop_front().unwrap();
        let mut ended = 0;
        for emission in self.scheduler.complete(&outcome, Micros(self.now)) {
            let client = self.clients.get_mut(&emission.sequence.request.0).unwrap();
            client.tokens.push(self.now);
            client.over = emission.finish.is_some();
            ended += u32::from(client.over && client.prompt < LONG);
        }
        ended
    }

    /// Advances to the time `until`.
    pub(crate) fn stream(&mut self, until: u64) {
        while self.now < until {
            self.advance(until);
        }
    }

    /// Adds `requests` requests of a shape, at once or spread over a few milliseconds by `seed`.
    pub(crate) fn arrive_one_by_one(&mut self, requests: u32, shape: (u32, u32), seed: u64) {
        for request in 0..requests {
            self.arrive(shape.0, shape.1);
            if !seed.is_multiple_of(3) {
                self.stream(self.now + (seed * 7_919 + u64::from(request) * 104_729) % 400);
            }
        }
    }

    /// Adds eight long prompts, two seconds apart, the first at `from`.
    pub(crate) fn send_long_prompts(&mut self, from: u64) {
        for prompt in 1..=8 {
            self.arrive(LONG, 16);
            self.stream(from + prompt * 2_000_000);
        }
    }

    /// Advances until `is_so` holds for all clients.
    pub(crate) fn until_all(&mut self, is_so: impl Fn(&Client) -> bool) {
        while !self.clients.values().all(&is_so) {
            self.advance(u64::MAX - 1);
        }
    }

    /// Advances until all requests have ended.
    pub(crate) fn answer_all(&mut self) {
        self.until_all(|client| client.over);
    }

    /// Runs `streams` clients that send the next request when the last one ends, `requests` in all.
    /// Calls `look` after each outcome with the number of requests not yet sent.
    pub(crate) fn closed_loop(
        &mut self,
        (streams, requests): (u32, u32),
        (prompt, answer): (u32, u32),
        mut look: impl FnMut(&Self, u32),
    ) {
        for _ in 0..streams {
            self.arrive(prompt, answer);
        }
        let (mut left, mut running) = (requests - streams, streams);
        while running > 0 {
            let ended = self.advance(u64::MAX - 1);
            let next = ended.min(left);
            for _ in 0..next {
                self.arrive(prompt, answer);
            }
            left -= next;
            running -= ended - next;
            look(self, left);
        }
    }

    /// Returns the clients with long prompts.
    pub(crate) fn long(&self) -> impl Iterator<Item = &Client> + '_ {
        self.clients.values().filter(|client| client.prompt >= LONG)
    }

    /// Returns the microseconds between tokens after `since`, for prompts of `prompt` tokens.
    pub(crate) fn gaps(&self, prompt: u32, since: u64) -> Vec<u64> {
        let clients = self
            .clients
            .values()
            .filter(|client| client.prompt == prompt);
        let pairs = clients.flat_map(|client| client.tokens.windows(2));
        pairs
            .filter(|pair| pair[0] >= since)
            .map(|pair| pair[1] - pair[0])
            .collect()
    }

    fn launch(&mut self, plan: &StepPlan) {
        for new in &plan.new {
            self.slots[new.slot.0 as usize] = Slot {
                known: new.token_ids.len() as u32,
                computed: new.computed,
            };
        }
        let mut outcome = StepOutcome {
            epoch: plan.epoch,
            step: plan.step,
            ..StepOutcome::default()
        };
        let mut step = Step::default();
        for run in &plan.runs {
            let slot = &mut self.slots[run.slot.0 as usize];
            let position = f64::from(slot.computed);
            if slot.computed + 1 == slot.known {
                step.decodes += 1;
                step.context += position;
            } else {
                step.prompt += run.tokens;
                step.pairs += f64::from(run.tokens) * (position + f64::from(run.tokens) / 2.0);
            }
            slot.computed += run.tokens;
            if slot.computed == slot.known {
                slot.known += 1;
                outcome.slots.push(run.slot);
                outcome.counts.push(1);
                outcome.token_ids.push(TokenId(plan.step.0 as u32));
            }
        }
        let took = self.speed.micros(step);
        let (began, heat) = self.heat;
        let took = took * (1.0 + heat * (-((self.now - began) as f64) / 2e6).exp());
        let more = self.cold.as_mut().map_or(0, |cold| cold.delay(step));
        self.disturbed += more;
        step.took = took as u64 + more;
        self.free_at = self.free_at.max(self.now + self.transport.launch) + step.took;
        let at = self.free_at + self.transport.reply;
        let vary = 0.97 + 0.01 * (plan.step.0 % 7) as f64;
        // The reported times vary by 3 %.
        outcome.duration =
            ((at - self.answered_at.max(self.now) - more) as f64 * vary) as u64 + more;
        self.answered_at = at;
        self.in_flight.push_back((at, outcome));
        self.steps.push(step);
    }
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        block_tokens: 16,
        groups: vec![KvGroup {
            blocks: 50_000,
            kind: GroupKind::Full,
        }],
        max_slots: SLOTS,
        max_step_tokens: STEP,
        step_sizes: sizes(),
        max_sequence_tokens: 140_000,
        max_tokens_per_run: 1,
        max_waiting: 10_000,
        max_waiting_tokens: 100_000_000,
        depth: 2,
        lead: 0,
        prefix_cache: true,
        reserve: Reserve::Growth,
        latency_target: None,
        aging: 5_000_000,
        decode_reads: DecodeReads {
            weights: 16_060_522_496,
            token: 131_072,
        },
    }
}

/// Returns the step sizes that a GPU worker declares.
fn sizes() -> Vec<u32> {
    let larger = (2_560..=PREFILL_SIZE).step_by(512);
    table_sizes()
        .skip_while(|&tokens| tokens < 64)
        .chain(larger)
        .collect()
}

/// Returns the size that a step of `tokens` tokens with prompts is padded to.
fn padded(tokens: u32) -> u32 {
    let mut sizes = sizes().into_iter();
    sizes.find(|&size| size >= tokens).unwrap_or(tokens)
}

impl Client {
    /// Returns the microseconds to its first token.
    pub(crate) fn waited(&self) -> Option<u64> {
        self.tokens.first().map(|first| first - self.arrived)
    }
}

/// Returns the value below which `percent` of the values are.
pub(crate) fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values[(values.len() - 1) * percent / 100]
}
