//! Times one step of 1,024 running sequences: `plan` and `complete`, pipelined as in the engine.

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_scheduler::config::{DecodeReads, GroupKind, KvGroup, Reserve, SchedulerConfig};
use penstock_scheduler::ids::{Micros, RequestId, TokenId};
use penstock_scheduler::plan::{StepOutcome, StepPlan};
use penstock_scheduler::request::{Pipelining, Request, SchedulingClass};
use penstock_scheduler::{FirstComeFirstServed, Scheduler};
use std::collections::VecDeque;
use std::hint::black_box;

const RUNNING: u32 = 1_024;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        block_tokens: 16,
        groups: vec![KvGroup {
            blocks: 131_072,
            kind: GroupKind::Full,
        }],
        max_slots: RUNNING,
        max_step_tokens: 8_192,
        step_sizes: Vec::new(),
        max_sequence_tokens: 8_192,
        max_tokens_per_run: 1,
        max_waiting: 10_000,
        max_waiting_tokens: 100_000_000,
        depth: 2,
        lead: 0,
        prefix_cache: true,
        reserve: Reserve::Growth,
        latency_target: Some(1_000_000),
        aging: 1_000_000,
        decode_reads: DecodeReads::default(),
    }
}

/// The shape of the requests.
#[derive(Clone, Copy)]
struct Shape {
    prompt: u32,
    /// Least generated tokens; up to 1,024 more.
    answer: u32,
}

/// Traffic that keeps all slots busy: a new request replaces each one that ends.
struct Traffic {
    scheduler: Scheduler,
    wire: VecDeque<StepOutcome>,
    next_id: u64,
    now: u64,
    /// Prompt tokens left per slot; a run yields when it reaches 0.
    prefill_left: Vec<u32>,
}

impl Traffic {
    fn new(shape: Shape) -> Self {
        let scheduler = Scheduler::new(config(), Box::new(FirstComeFirstServed));
        let Ok(scheduler) = scheduler else {
            unreachable!("the configuration is valid")
        };
        let prefill_left = vec![0; RUNNING as usize];
        let mut traffic = Self {
            scheduler,
            wire: VecDeque::new(),
            next_id: 0,
            now: 0,
            prefill_left,
        };
        for _ in 0..RUNNING {
            traffic.arrive(shape);
        }
        traffic
    }

    fn arrive(&mut self, shape: Shape) {
        let id = self.next_id;
        self.next_id += 1;
        let request = Request {
            id: RequestId(id),
            token_ids: (0..shape.prompt)
                .map(|at| TokenId((id as u32 * 31 + at) % 32_000))
                .collect(),
            generated: 0,
            max_new_tokens: shape.answer + (id * 389 % 1_024) as u32,
            min_new_tokens: 0,
            stop_token_ids: vec![TokenId(2), TokenId(32_001)],
            cache_salt: Vec::new(),
            max_cached_tokens: u32::MAX,
            preparing: false,
            pipelining: Pipelining::Ahead,
            sequences: 1,
            class: SchedulingClass::default(),
        };
        let added = self.scheduler.add(request, Micros(self.now));
        assert!(added.is_ok(), "{added:?}");
    }

    /// Returns the workers' outcome of a plan. Not measured.
    fn answer(&mut self, plan: &StepPlan) -> StepOutcome {
        for new in &plan.new {
            self.prefill_left[new.slot.0 as usize] = new.token_ids.len() as u32 - new.computed;
        }
        let mut outcome = StepOutcome {
            epoch: plan.epoch,
            step: plan.step,
            ..StepOutcome::default()
        };
        for run in &plan.runs {
            let left = &mut self.prefill_left[run.slot.0 as usize];
            *left = left.saturating_sub(run.tokens);
            if *left == 0 {
                outcome.slots.push(run.slot);
                outcome.counts.push(1);
                outcome
                    .token_ids
                    .push(TokenId((plan.step.0 * 7 % 31_000) as u32 + 3));
            }
        }
        outcome.duration = 20_000 + 5 * plan.runs.len() as u64;
        outcome
    }

    /// Keeps two plans in flight and returns the oldest outcome.
    fn advance(&mut self) -> StepOutcome {
        while self.wire.len() < 2 {
            self.now += 10_000;
            let Some(plan) = self.scheduler.plan(Micros(self.now)) else {
                break;
            };
            let outcome = self.answer(&plan);
            self.wire.push_back(outcome);
        }
        let Some(outcome) = self.wire.pop_front() else {
            unreachable!("something runs")
        };
        outcome
    }
}

fn step(criterion: &mut Criterion, name: &str, shape: Shape) {
    let mut traffic = Traffic::new(shape);
    // Reach the steady state: all prompts are computed.
    for _ in 0..300 {
        let outcome = traffic.advance();
        replace(&mut traffic, &outcome, shape);
    }
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut steps: Vec<_> = (0..iterations)
                .map(|_| measured(&mut traffic, shape))
                .collect();
            steps.sort_unstable();
            // The median step, so that interruptions do not count.
            steps[steps.len() / 2] * iterations as u32
        });
    });
    let running = traffic.scheduler.snapshot().running;
    assert!(running > 1_000, "only {running} were running");
}

fn replace(traffic: &mut Traffic, outcome: &StepOutcome, shape: Shape) -> usize {
    let news = traffic.scheduler.complete(outcome, Micros(traffic.now));
    let ended = news
        .iter()
        .filter(|emission| emission.finish.is_some())
        .count();
    for _ in 0..ended {
        traffic.arrive(shape);
    }
    news.len()
}

/// Times one `plan` and one `complete`.
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench owns a clock"
)]
fn measured(traffic: &mut Traffic, shape: Shape) -> std::time::Duration {
    let clock = std::time::Instant::now();
    traffic.now += 10_000;
    let plan = traffic.scheduler.plan(Micros(traffic.now));
    let mut spent = clock.elapsed();
    if let Some(plan) = plan {
        let outcome = traffic.answer(&plan);
        traffic.wire.push_back(outcome);
    }
    let Some(outcome) = traffic.wire.pop_front() else {
        return spent;
    };
    let clock = std::time::Instant::now();
    let news = black_box(traffic.scheduler.complete(&outcome, Micros(traffic.now)));
    spent += clock.elapsed();
    for _ in news.iter().filter(|emission| emission.finish.is_some()) {
        traffic.arrive(shape);
    }
    spent
}

fn benches(criterion: &mut Criterion) {
    let decoding = Shape {
        prompt: 16,
        answer: 512,
    };
    step(criterion, "plan and complete/1024 decoding", decoding);
    let turnover = Shape {
        prompt: 512,
        answer: 256,
    };
    step(
        criterion,
        "plan and complete/1024 with one or two prompts of 512 per step",
        turnover,
    );
}

criterion_group!(group, benches);
criterion_main!(group);
