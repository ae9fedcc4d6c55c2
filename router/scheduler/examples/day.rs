//! A day of 1,000,000 requests through one scheduler, in virtual time: `day <out.csv> [requests]`.
//!
//! Load: Poisson arrivals whose rate swings by 60 % around its mean over the day, prompts of 700
//! tokens and answers of 130 on average (log-normal); half of the requests start with one of 20
//! system prompts of 256 tokens. Worker: a pool of 98,304 tokens of KV, steps of 10 ms plus 25 us
//! per decode plus 65 us per prompt token, one step at a time, plans two deep. The CSV has a row
//! per five minutes.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program around the scheduler, not the scheduler: it reports and measures itself"
)]

use penstock_scheduler::config::{DecodeReads, GroupKind, KvGroup, Reserve, SchedulerConfig};
use penstock_scheduler::ids::{Micros, RequestId, TokenId};
use penstock_scheduler::plan::{StepOutcome, StepPlan};
use penstock_scheduler::request::{Pipelining, Request, SchedulingClass};
use penstock_scheduler::{FirstComeFirstServed, Scheduler};
use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};

const REQUESTS: u64 = 1_000_000;
const DAY: f64 = 86_400e6;
const BIN: u64 = 300_000_000;
const SLOTS: u32 = 512;
const BLOCKS: u32 = 6_144;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        block_tokens: 16,
        groups: vec![KvGroup {
            blocks: BLOCKS,
            kind: GroupKind::Full,
        }],
        max_slots: SLOTS,
        max_step_tokens: 4_096,
        step_sizes: Vec::new(),
        max_sequence_tokens: 8_192,
        max_tokens_per_run: 1,
        max_waiting: 100_000,
        max_waiting_tokens: 100_000_000,
        depth: 2,
        lead: 0,
        prefix_cache: true,
        reserve: Reserve::Growth,
        latency_target: Some(50_000),
        aging: 10_000_000,
        decode_reads: DecodeReads::default(),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns a log-normal length with a median, at most `limit`.
    fn length(&mut self, median: f64, spread: f64, limit: u32) -> u32 {
        ((median * (spread * self.normal()).exp()) as u32).clamp(1, limit)
    }
}

/// The stream of requests.
struct Arrivals {
    random: Random,
    count: u64,
    left: u64,
    at: f64,
}

impl Arrivals {
    fn new(count: u64) -> Self {
        Self {
            random: Random(7),
            count,
            left: count,
            at: 0.0,
        }
    }

    /// Returns when the next request arrives; never, after the last.
    fn peek(&self) -> u64 {
        if self.left == 0 {
            u64::MAX
        } else {
            self.at as u64
        }
    }

    fn take(&mut self) -> Request {
        let id = self.count - self.left;
        let request = self.request(id);
        self.left -= 1;
        let swing = 1.0 - 0.6 * (std::f64::consts::TAU * self.at / DAY).cos();
        let rate = REQUESTS as f64 / DAY * swing;
        self.at -= self.random.unit().ln() / rate;
        request
    }

    fn request(&mut self, id: u64) -> Request {
        let random = &mut self.random;
        let mut token_ids = Vec::with_capacity(2_048);
        if random.next().is_multiple_of(2) {
            let kind = (random.next() % 20) as u32;
            token_ids.extend((0..256).map(|at| TokenId(kind * 256 + at)));
        }
        let own = random.length(440.0, 0.7, 6_000);
        let first = random.next() as u32;
        let token = |at: u32| TokenId(first.wrapping_add(at.wrapping_mul(0x9e37_79b9)));
        token_ids.extend((0..own).map(token));
        Request {
            id: RequestId(id),
            token_ids,
            generated: 0,
            max_new_tokens: random.length(100.0, 0.7, 1_900),
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
}

/// The workers: they know the prompt tokens left in each slot and the time of steps.
struct Worker {
    prefill_left: Vec<u32>,
    free_at: u64,
    in_flight: VecDeque<(u64, StepOutcome)>,
}

impl Worker {
    fn new() -> Self {
        Self {
            prefill_left: vec![0; SLOTS as usize],
            free_at: 0,
            in_flight: VecDeque::new(),
        }
    }

    fn step(&mut self, plan: &StepPlan, now: u64) {
        for new in &plan.new {
            self.prefill_left[new.slot.0 as usize] = new.token_ids.len() as u32 - new.computed;
        }
        let mut outcome = StepOutcome {
            epoch: plan.epoch,
            step: plan.step,
            ..StepOutcome::default()
        };
        let (mut decodes, mut prompt) = (0, 0);
        for run in &plan.runs {
            let prefill_left = &mut self.prefill_left[run.slot.0 as usize];
            match *prefill_left {
                0 => decodes += 1,
                _ => prompt += u64::from(run.tokens),
            }
            *prefill_left = prefill_left.saturating_sub(run.tokens);
            if *prefill_left == 0 {
                outcome.slots.push(run.slot);
                outcome.counts.push(1);
                outcome
                    .token_ids
                    .push(TokenId(plan.step.0 as u32 ^ (run.slot.0 << 20)));
            }
        }
        outcome.duration = 10_000 + 25 * decodes + 65 * prompt;
        self.free_at = self.free_at.max(now) + outcome.duration;
        self.in_flight.push_back((self.free_at, outcome));
    }

    fn done_at(&self) -> u64 {
        self.in_flight.front().map_or(u64::MAX, |(at, _)| *at)
    }
}

/// Statistics of five minutes.
#[derive(Default)]
struct Bin {
    samples: u64,
    waiting: u64,
    running: u64,
    leased: u64,
    first_tokens: Vec<u64>,
    tokens: u64,
}

impl Bin {
    fn write(&mut self, out: &mut impl Write, index: u64) -> std::io::Result<()> {
        self.first_tokens.sort_unstable();
        let at = |share: usize| {
            let last = self.first_tokens.len().saturating_sub(1);
            self.first_tokens
                .get(last * share / 100)
                .copied()
                .unwrap_or(0) as f64
                / 1e3
        };
        let mean = |sum: u64| sum as f64 / self.samples.max(1) as f64;
        let (waiting, running) = (mean(self.waiting), mean(self.running));
        let kv = 100.0 * mean(self.leased) / f64::from(BLOCKS);
        let rate = self.tokens as f64 / (BIN as f64 / 1e6);
        let hours = index as f64 * BIN as f64 / 3_600e6;
        let (p50, p99) = (at(50), at(99));
        writeln!(
            out,
            "{hours:.4},{waiting:.2},{running:.2},{kv:.2},{p50:.1},{p99:.1},{rate:.1}"
        )
    }
}

/// A day in progress.
struct Day<W: Write> {
    scheduler: Scheduler,
    arrivals: Arrivals,
    worker: Worker,
    /// When each request arrived; `u64::MAX` once its first token has.
    arrived: Vec<u64>,
    ended: u64,
    steps: u64,
    bin: Bin,
    bins: u64,
    out: W,
}

impl<W: Write> Day<W> {
    fn run(&mut self) -> std::io::Result<()> {
        loop {
            let now = self.arrivals.peek().min(self.worker.done_at());
            if now == u64::MAX {
                return self.bin.write(&mut self.out, self.bins);
            }
            while now / BIN > self.bins {
                self.bin.write(&mut self.out, self.bins)?;
                self.bin = Bin::default();
                self.bins += 1;
            }
            if self.worker.done_at() == now {
                self.complete(now);
            }
            while self.arrivals.peek() <= now {
                let added = self.scheduler.add(self.arrivals.take(), Micros(now));
                assert!(added.is_ok(), "{added:?}");
                self.arrived.push(now);
            }
            while let Some(plan) = self.scheduler.plan(Micros(now)) {
                self.worker.step(&plan, now);
                self.steps += 1;
            }
        }
    }

    fn complete(&mut self, now: u64) {
        let Some((_, outcome)) = self.worker.in_flight.pop_front() else {
            return;
        };
        for emission in self.scheduler.complete(&outcome, Micros(now)) {
            let arrived = &mut self.arrived[emission.sequence.request.0 as usize];
            if *arrived != u64::MAX {
                self.bin.first_tokens.push(now - *arrived);
                *arrived = u64::MAX;
            }
            self.bin.tokens += emission.tokens.len() as u64;
            self.ended += u64::from(emission.finish.is_some());
        }
        if self.steps.is_multiple_of(16) {
            let snapshot = self.scheduler.snapshot();
            self.bin.samples += 1;
            self.bin.waiting += snapshot.waiting as u64;
            self.bin.running += snapshot.running as u64;
            self.bin.leased += snapshot.blocks_leased;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: day <out.csv> [requests]")?;
    let requests = arguments
        .next()
        .map_or(Ok(REQUESTS), |count| count.parse())?;
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(
        out,
        "hour,waiting,running,kv_percent,ttft_p50_ms,ttft_p99_ms,tokens_per_second"
    )?;
    let clock = std::time::Instant::now();
    let mut day = Day {
        scheduler: Scheduler::new(config(), Box::new(FirstComeFirstServed))?,
        arrivals: Arrivals::new(requests),
        worker: Worker::new(),
        arrived: Vec::new(),
        ended: 0,
        steps: 0,
        bin: Bin::default(),
        bins: 0,
        out,
    };
    day.run()?;
    let Day {
        scheduler,
        ended,
        steps,
        ..
    } = day;
    let snapshot = scheduler.snapshot();
    scheduler.check()?;
    println!(
        "{requests} requests, {ended} ended, {steps} steps in {:.1?}",
        clock.elapsed()
    );
    println!("{snapshot:?}");
    Ok(())
}
