//! The events of scenario files, and plans and emissions as text.

use penstock_scheduler::config::{DecodeReads, GroupKind, KvGroup, Reserve, SchedulerConfig};
use penstock_scheduler::ids::{GroupId, Micros, RequestId, SequenceId, Slot, TokenId};
use penstock_scheduler::plan::{Emission, StepOutcome, StepPlan, Table};
use penstock_scheduler::request::{Pipelining, Request, SchedulingClass};
use penstock_scheduler::{FirstComeFirstServed, Scheduler};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

/// A scenario in progress.
#[derive(Default)]
pub(crate) struct Script {
    scheduler: Option<Scheduler>,
    in_flight: VecDeque<StepPlan>,
    now: Micros,
}

/// The `name=value` words and bare words of an event.
struct Words<'a> {
    bare: Vec<&'a str>,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn new(event: &'a str) -> Self {
        let (values, bare): (Vec<_>, Vec<_>) =
            event.split_whitespace().partition(|w| w.contains('='));
        Self {
            bare,
            values: values
                .into_iter()
                .filter_map(|word| word.split_once('='))
                .collect(),
        }
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.values
            .get(name)
            .map_or(default, |value| value.parse().unwrap())
    }

    /// Parses `7,8` as a list.
    fn list(&self, name: &str) -> Vec<u32> {
        let values = self.values.get(name).map(|list| list.split(','));
        let numbers = values.into_iter().flatten();
        numbers.map(|number| number.parse().unwrap()).collect()
    }

    /// Parses `3` as 0, 1, 2, and `7,8` and `7,` as lists.
    fn tokens(&self, name: &str) -> Vec<TokenId> {
        match self.values.get(name) {
            None => Vec::new(),
            Some(list) if list.contains(',') => list
                .split_terminator(',')
                .map(|token| TokenId(token.parse().unwrap()))
                .collect(),
            Some(count) => (0..count.parse().unwrap()).map(TokenId).collect(),
        }
    }

    fn sequence(&self) -> SequenceId {
        let (request, index) = self.bare[1].split_once('.').unwrap_or((self.bare[1], "0"));
        SequenceId {
            request: RequestId(request.parse().unwrap()),
            index: index.parse().unwrap(),
        }
    }
}

impl Script {
    /// Applies an event and returns its results.
    pub(crate) fn event(&mut self, event: &str) -> Vec<String> {
        let words = Words::new(event);
        if words.bare[0] == "config" {
            let policy = Box::new(FirstComeFirstServed);
            self.scheduler = Some(Scheduler::new(config(&words), policy).unwrap());
            return Vec::new();
        }
        let mut scheduler = self.scheduler.take().unwrap();
        let news = self.apply(&mut scheduler, &words);
        scheduler.check().unwrap();
        self.scheduler = Some(scheduler);
        news
    }

    fn apply(&mut self, scheduler: &mut Scheduler, words: &Words<'_>) -> Vec<String> {
        match words.bare[0] {
            "at" => self.now = Micros(words.bare[1].parse().unwrap()),
            "add" => {
                if let Err(error) = scheduler.add(request(words), self.now) {
                    return vec![format!("refused: {error}")];
                }
            }
            "prepared" => scheduler.prepared(words.sequence().request, self.now),
            "again" => scheduler.prepare_again(words.sequence().request),
            "finish" => scheduler.finish(words.sequence()),
            "abort" => {
                scheduler.abort(words.sequence().request);
            }
            "fork" => {
                let max_new_tokens = words.number("max", 0) as u32;
                return match scheduler.fork(words.sequence(), max_new_tokens, self.now) {
                    Ok(child) => vec![format!("forked {}", name(child))],
                    Err(error) => vec![format!("refused: {error}")],
                };
            }
            "steer" => {
                let tokens = words.tokens("tokens");
                let children = scheduler.steer(words.sequence(), &tokens, self.now);
                return children
                    .iter()
                    .map(|&id| format!("forked {}", name(id)))
                    .collect();
            }
            "lost" => {
                self.in_flight.clear();
                return vec![format!("epoch {}", scheduler.workers_lost(self.now))];
            }
            "plan" => {
                let Some(plan) = scheduler.plan(self.now) else {
                    return vec!["nothing".into()];
                };
                let news = describe(&plan);
                self.in_flight.push_back(plan);
                return news;
            }
            "done" => return self.done(scheduler, words),
            "counts" => return vec![counts(scheduler)],
            "backlog" => return vec![format!("{} us", scheduler.backlog())],
            other => panic!("unknown event {other}"),
        }
        Vec::new()
    }

    /// Applies `done 0:7 1:8,9 fail:2`: the tokens that the slots of the oldest plan in flight
    /// yielded.
    fn done(&mut self, scheduler: &mut Scheduler, words: &Words<'_>) -> Vec<String> {
        let plan = self.in_flight.pop_front().unwrap();
        let mut outcome = StepOutcome {
            epoch: plan.epoch,
            step: plan.step,
            duration: words.number("took", 0),
            ..StepOutcome::default()
        };
        for word in &words.bare[1..] {
            let (slot, tokens) = word.split_once(':').unwrap();
            if slot == "fail" {
                outcome.failed.push(Slot(tokens.parse().unwrap()));
                continue;
            }
            if slot == "lack" {
                outcome.unprepared.push(Slot(tokens.parse().unwrap()));
                continue;
            }
            let before = outcome.token_ids.len();
            outcome.slots.push(Slot(slot.parse().unwrap()));
            outcome
                .token_ids
                .extend(tokens.split(',').map(|t| TokenId(t.parse().unwrap())));
            outcome
                .counts
                .push((outcome.token_ids.len() - before) as u32);
        }
        let news = scheduler.complete(&outcome, self.now);
        let emitted = news.iter().map(|news| describe_emission(news, &outcome));
        let unprepared = scheduler.take_unprepared();
        emitted
            .chain(unprepared.iter().map(|id| format!("unprepared {id}")))
            .collect()
    }
}

fn config(words: &Words<'_>) -> SchedulerConfig {
    let number = |name, default| words.number(name, default) as u32;
    SchedulerConfig {
        block_tokens: number("block", 4),
        groups: groups(words),
        max_slots: number("slots", 4),
        max_step_tokens: number("step", 64),
        step_sizes: words.list("sizes"),
        max_sequence_tokens: number("longest", 64),
        max_tokens_per_run: number("k", 1),
        max_waiting: number("waiting", 32) as usize,
        max_waiting_tokens: 1_000,
        depth: number("depth", 2) as u16,
        lead: number("lead", 0).into(),
        prefix_cache: number("cache", 1) == 1,
        reserve: match words.bare.contains(&"to-finish") {
            true => Reserve::ToFinish,
            false => Reserve::Growth,
        },
        latency_target: Some(words.number("latency", 1_000_000)),
        aging: words.number("aging", 1_000_000),
        decode_reads: DecodeReads::default(),
    }
}

/// Parses `groups=16,full+8,window:4+2,state`; without it, the one group of `blocks` and `window`.
fn groups(words: &Words<'_>) -> Vec<KvGroup> {
    let kind = |name: &str| match name.split_once(':') {
        Some(("window", tokens)) => GroupKind::Sliding {
            window: tokens.parse().unwrap(),
        },
        _ if name == "full" => GroupKind::Full,
        _ if name == "state" => GroupKind::State,
        _ => panic!("unknown kind of group {name}"),
    };
    let group = |text: &str| {
        let (blocks, name) = text.split_once(',').unwrap();
        KvGroup {
            blocks: blocks.parse().unwrap(),
            kind: kind(name),
        }
    };
    match (words.values.get("groups"), words.number("window", 0)) {
        (Some(list), _) => list.split('+').map(group).collect(),
        (None, window) => vec![KvGroup {
            blocks: words.number("blocks", 16) as u32,
            kind: match window {
                0 => GroupKind::Full,
                window => GroupKind::Sliding {
                    window: window as u32,
                },
            },
        }],
    }
}

fn request(words: &Words<'_>) -> Request {
    Request {
        id: words.sequence().request,
        token_ids: words.tokens("prompt"),
        generated: words.number("generated", 0) as u32,
        max_new_tokens: words.number("max", 1) as u32,
        min_new_tokens: words.number("min", 0) as u32,
        stop_token_ids: words
            .values
            .get("stop")
            .map_or_else(Vec::new, |token| vec![TokenId(token.parse().unwrap())]),
        cache_salt: words
            .values
            .get("salt")
            .map_or_else(Vec::new, |s| vec![s.parse().unwrap()]),
        max_cached_tokens: words.number("cached", u64::from(u32::MAX)) as u32,
        preparing: words.bare.contains(&"preparing"),
        pipelining: match words.bare.last() {
            Some(&"waits") => Pipelining::Waits,
            Some(&"steered") => Pipelining::Steered,
            _ => Pipelining::Ahead,
        },
        sequences: words.number("sequences", 1) as u32,
        class: SchedulingClass::default(),
    }
}

fn counts(scheduler: &Scheduler) -> String {
    let s = scheduler.snapshot();
    format!(
        "waiting {} running {} free {} leased {} cached {} hits {} preempted {} recomputed {}",
        s.waiting,
        s.running,
        s.blocks_free,
        s.blocks_leased,
        s.blocks_cached,
        s.prefix_hit_tokens,
        s.preemptions,
        s.recomputed_tokens
    )
}

fn describe(plan: &StepPlan) -> Vec<String> {
    let mut lines = vec![format!("step {}", plan.step)];
    if !plan.finished.is_empty() {
        lines.push(format!("finished {}", list(&plan.finished)));
    }
    for new in &plan.new {
        let (id, slot, tokens) = (name(new.sequence), new.slot, new.token_ids.len());
        let (computed, blocks) = (new.computed, tables(&new.tables));
        lines.push(format!(
            "new {id} slot {slot}: {tokens} tokens, {computed} computed, blocks {blocks}"
        ));
    }
    for fork in &plan.forks {
        let (id, blocks) = (name(fork.sequence), tables(&fork.tables));
        lines.push(format!(
            "fork {id} slot {}>{}, blocks {blocks}",
            fork.source, fork.destination
        ));
    }
    for copy in &plan.copies {
        let group = in_group(copy.group);
        lines.push(format!("copy {}>{}{group}", copy.source, copy.destination));
    }
    for steered in &plan.steered {
        lines.push(format!(
            "slot {} goes on with {}",
            steered.slot, steered.token
        ));
    }
    for growth in &plan.growth {
        lines.push(format!(
            "growth {} with blocks {}{}",
            list(&growth.counts),
            list(&growth.blocks),
            in_group(growth.group)
        ));
    }
    let runs: Vec<_> = plan
        .runs
        .iter()
        .map(|run| format!("{}x{}", run.slot, run.tokens))
        .collect();
    lines.push(format!("run {}", runs.join(" ")));
    lines
}

fn describe_emission(emission: &Emission, outcome: &StepOutcome) -> String {
    let id = name(emission.sequence);
    let tokens = list(&outcome.token_ids[emission.tokens.clone()]);
    match emission.finish {
        Some(finish) => format!("{id}: {tokens} {finish:?}"),
        None => format!("{id}: {tokens}"),
    }
}

/// Returns `3` for a request's first sequence, `3.1` for a fork.
fn name(id: SequenceId) -> String {
    match id.index {
        0 => id.request.to_string(),
        index => format!("{}.{index}", id.request),
    }
}

/// Returns the blocks of all groups, separated by bars.
fn tables(tables: &[Table]) -> String {
    let tables = tables.iter().map(|table| list(&table.blocks));
    tables.collect::<Vec<_>>().join(" | ")
}

fn in_group(group: GroupId) -> String {
    match group.0 {
        0 => String::new(),
        group => format!(" of group {group}"),
    }
}

fn list(items: &[impl Display]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}
