//! How prompts and streams share steps, in virtual time, with the step times of an 8B model on an
//! H200. The figures are the policy's, not a machine's; `--nocapture` prints them.
#![cfg(test)]
#![expect(
    clippy::disallowed_macros,
    reason = "the figures are worth printing: a test owns its output"
)]

mod arrivals;
#[path = "../simulation/random.rs"]
mod random;
mod server;
mod tenants;
mod times;

use penstock_scheduler::request::Pipelining;
use server::{
    COMPILING, Client, FAST_LAUNCHING, LAUNCHING, PREFILL_SIZE, STEP, Server, percentile,
};
use times::{Speed, least, least_of_experts};

const SECOND: u64 = 1_000_000;

/// 32 streams, and a prompt of 32,768 tokens every two seconds.
#[test]
fn long_prompts_do_not_slow_streams() {
    let mut server = Server::new(Speed::Burst);
    for _ in 0..32 {
        server.arrive(512, 4_500);
    }
    server.stream(4 * SECOND);
    let undisturbed = percentile(&server.gaps(512, SECOND), 50);
    for prompt in 0..8 {
        server.arrive(32_768, 16);
        server.stream((6 + 2 * prompt) * SECOND);
        let unanswered = server.long().filter(|client| client.tokens.is_empty());
        assert!(unanswered.count() <= 1, "the queue grows");
    }
    let disturbed = server.gaps(512, 4 * SECOND);
    let (median, p99) = (percentile(&disturbed, 50), percentile(&disturbed, 99));
    let waits: Vec<_> = server.long().filter_map(Client::waited).collect();
    println!(
        "undisturbed {undisturbed} us, beside long prompts median {median}, p99 {p99}; \
         first tokens of those {waits:?}"
    );
    assert!(p99 <= 3 * undisturbed, "{p99} us");
    assert!(5 * median <= 13 * undisturbed, "{median} us");
    assert!(waits.len() >= 7);
    // The prefill of one takes hardly longer than the time until the next one arrives.
    assert!(waits.iter().all(|&wait| wait < 2_400_000), "{waits:?}");
}

/// Beside 32 streams and a prompt of 131,072 tokens.
#[test]
fn short_prompts_are_prefilled_before_a_long_one() {
    let mut longest = Vec::new();
    for shorts in [0, 100] {
        let mut server = Server::new(Speed::Burst);
        for _ in 0..32 {
            server.arrive(512, 20_000);
        }
        server.stream(4 * SECOND);
        let long = server.arrive(131_072, 1);
        let mut short = Vec::new();
        for _ in 0..shorts {
            server.stream(server.now + 100_000);
            short.push(server.arrive(100, 1));
        }
        while !server.clients[&long].over {
            server.advance(u64::MAX - 1);
        }
        longest.push(server.clients[&long].waited().unwrap());
        let waits = short.iter().filter_map(|id| server.clients[id].waited());
        let waits: Vec<_> = waits.collect();
        assert_eq!(waits.len(), shorts);
        if shorts > 0 {
            let (p50, worst) = (percentile(&waits, 50), percentile(&waits, 100));
            println!(
                "short prompts beside a long one wait {p50} us, {worst} at worst; {longest:?}"
            );
            assert!(worst < 150_000, "{worst} us");
        }
    }
    // Short prompts add work of their own, and no more of it than their share.
    assert!(longest[1] < longest[0] * 4 / 3, "{longest:?}");
}

/// A step exceeds the latency target only by as much as a prefill needs to proceed at all.
#[test]
fn long_prompts_respect_the_latency_target() {
    for (promised, times) in [(5_000, 2.3), (13_000, 2.5)] {
        let mut server = Server::with_latency_target(promised);
        for _ in 0..32 {
            server.arrive(512, 1_000);
        }
        server.stream(3 * SECOND);
        let undisturbed = percentile(&server.gaps(512, SECOND), 50);
        server.arrive(32_768, 16);
        server.stream(5 * SECOND);
        let p95 = percentile(&server.gaps(512, 3 * SECOND), 95);
        println!("{promised} us promised: undisturbed {undisturbed}, p95 {p95} us");
        assert!(p95 as f64 <= times * undisturbed as f64, "{p95} us");
    }
}

/// The same after 256 streams, whose contexts are proportional to their number, on a device that
/// then gets faster or slower for some seconds.
#[test]
fn changing_device_speed_does_not_slow_streams() {
    for heat in [-0.1, -0.03, 0.03, 0.1] {
        let mut server = Server::new(Speed::Burst);
        server.closed_loop((256, 768), (1_024, 256), |_, _| ());
        server.heat = (server.now, heat);
        for _ in 0..32 {
            server.arrive(512, 4_500);
        }
        server.until_all(|client| !client.tokens.is_empty());
        let from = server.now + 4 * SECOND;
        server.stream(from);
        let undisturbed = percentile(&server.gaps(512, from - 3 * SECOND), 50);
        server.send_long_prompts(from);
        let p99 = percentile(&server.gaps(512, from), 99);
        let waits: Vec<_> = server.long().filter_map(Client::waited).collect();
        println!("{heat}: undisturbed {undisturbed} us, beside long prompts p99 {p99}, {waits:?}");
        assert!(p99 <= 3 * undisturbed, "{heat}: {p99} us");
        assert!(
            waits.len() >= 7 && waits.iter().all(|&wait| wait < 2_700_000),
            "{waits:?}"
        );
    }
}

/// The same after first steps that may have compiled or captured something, whatever was learnt
/// from them.
#[test]
fn after_a_cold_start_long_prompts_are_still_limited() {
    let (mut gaps, mut waits) = (Vec::new(), Vec::new());
    for seed in 0..64 {
        let mut server = Server::cold(seed, COMPILING);
        server.arrive(16, 1);
        server.answer_all();
        server.arrive_one_by_one(32, (128, 16), seed);
        server.answer_all();
        server.arrive_one_by_one(32, (512, 4_500), seed / 3);
        server.until_all(|client| !client.tokens.is_empty());
        let from = server.now + 4 * SECOND;
        server.stream(from);
        server.warm();
        server.send_long_prompts(from);
        let all = server.gaps(512, from);
        let gap = percentile(&all, 99);
        // Every stream has each of these gaps.
        let long = all.iter().filter(|&&gap| gap > 100_000).count() / 32;
        let wait = server.long().filter_map(Client::waited).max().unwrap();
        assert!(
            gap < 50_000 && long <= 4 && wait < 8 * SECOND,
            "seed {seed}: {gap}, {long}, {wait}"
        );
        gaps.push(gap);
        waits.push(wait);
    }
    let worst = gaps.iter().max().unwrap();
    assert!(
        gaps.iter().filter(|&&gap| gap > 30_000).count() <= 1,
        "{gaps:?}"
    );
    println!(
        "gaps p99 beside long prompts: median {}, worst {worst} us; longest wait {} us",
        percentile(&gaps, 50),
        percentile(&waits, 100)
    );
}

/// 256 streams after first steps that waited for a kernel or a graph: those steps are slow, the
/// steps after them are not.
#[test]
fn a_cold_start_does_not_slow_many_streams() {
    for longer in [FAST_LAUNCHING, LAUNCHING, COMPILING] {
        let rates = (0..32).map(|seed| {
            let mut server = Server::cold(seed, longer);
            server.arrive_one_by_one(32, (128, 16), seed);
            server.answer_all();
            let (began, before) = (server.now, server.disturbed);
            server.closed_loop((256, 768), (1_024, 256), |_, _| ());
            let disturbed = server.disturbed - before;
            768 * 256 * SECOND / (server.now - began - disturbed)
        });
        let rates: Vec<_> = rates.collect();
        let (worst, mean) = (percentile(&rates, 0), rates.iter().sum::<u64>() / 32);
        println!(
            "256 streams after a cold start, {longer:?} us: mean {mean}, worst {worst} tokens/s"
        );
        assert!(worst >= 6_200 && mean >= 6_460, "{rates:?}");
    }
}

/// 16 clients that request one token each: whole steps while more prompts wait.
#[test]
fn prompts_fill_whole_steps_when_nothing_decodes() {
    let mut server = Server::new(Speed::Burst);
    server.closed_loop((16, 32), (4_096, 1), |_, _| ());
    let warm = server.steps.len();
    server.closed_loop((16, 128), (4_096, 1), |_, _| ());
    let prefills: Vec<_> = server.steps[warm..].iter().map(|s| s.prompt).collect();
    let end = prefills
        .iter()
        .rposition(|&tokens| tokens > PREFILL_SIZE)
        .unwrap();
    assert!(
        prefills[..end].iter().all(|&t| t >= STEP - 8),
        "{prefills:?}"
    );
    assert!(
        prefills[end + 1..].iter().all(|&t| t <= PREFILL_SIZE),
        "{prefills:?}"
    );
    let last: u32 = prefills[end + 1..].iter().sum();
    assert!((STEP..STEP * 3 / 2).contains(&last), "{prefills:?}");
}

/// Where a full step takes more than half a second, the next request would wait too long.
#[test]
fn slow_steps_are_not_filled_when_nothing_decodes() {
    let mut server = Server::new(Speed::Slow);
    server.closed_loop((16, 64), (4_096, 1), |_, _| ());
    let largest = server.steps.iter().map(|step| step.prompt).max();
    assert_eq!(largest, Some(PREFILL_SIZE));
}

/// The cost of a step is still unknown.
#[test]
fn right_after_a_start_prefills_do_not_fill_steps_with_decodes() {
    let mut server = Server::new(Speed::Burst);
    server.closed_loop((256, 256), (1_024, 256), |_, _| ());
    let beside = server.steps.iter().filter(|step| step.decodes > 0);
    let largest = beside.map(|step| step.decodes + step.prompt).max();
    assert!(largest <= Some(PREFILL_SIZE + 256), "{largest:?}");
}

/// Its decodes are in every other plan only.
#[test]
fn a_stream_that_waits_for_outcomes_is_not_slowed() {
    let mut server = Server::new(Speed::Burst);
    server.closed_loop((16, 32), (512, 16), |_, _| ());
    let warm = server.steps.len();
    server.arrive_as(Pipelining::Waits, 32, 400);
    server.until_all(|client| !client.tokens.is_empty());
    for _ in 0..32 {
        server.arrive(4_096, 1);
    }
    server.answer_all();
    let beside = server.steps[warm..].iter().filter(|step| step.decodes > 0);
    let largest = beside.map(|step| step.prompt).max();
    assert!(largest <= Some(2_048), "{largest:?}");
}

/// With few prompts, the first ones do not wait for all.
#[test]
fn with_nothing_running_a_few_prompts_are_prefilled_in_turns() {
    let mut server = Server::new(Speed::Burst);
    for _ in 0..6 {
        server.arrive(4_096, 1);
    }
    server.answer_all();
    let prefills: Vec<_> = server.steps.iter().map(|step| step.prompt).collect();
    assert!(
        prefills.len() == 3 && prefills.iter().all(|&t| t == PREFILL_SIZE),
        "{prefills:?}"
    );
}

/// 256 clients that send the next request when the last one ends.
#[test]
fn many_requests_keep_the_batch_full() {
    let mut server = Server::new(Speed::Burst);
    for _ in 0..32 {
        server.arrive(32, 32);
    }
    server.answer_all();
    let (began, warm, first) = (server.now, server.clients.len(), server.steps.len());
    let (mut filled, mut emptying) = (None, None);
    server.closed_loop((256, 768), (1_024, 256), |server, left| {
        let mut first = server.clients.values().skip(warm).take(256);
        if filled.is_none() && first.all(|client| !client.tokens.is_empty()) {
            filled = Some((server.now, server.steps.len()));
        }
        if emptying.is_none() && left == 0 {
            emptying = Some(server.steps.len());
        }
    });
    let (filled, from) = filled.unwrap();
    let full = &server.steps[from..emptying.unwrap()];
    let running = full.iter().map(|step| u64::from(step.decodes)).sum::<u64>() / full.len() as u64;
    let rate = 768 * 256 * SECOND / (server.now - began);
    println!(
        "256 prompts of 1,024 computed in {} us, then {running} decodes a step; {rate} tokens/s, \
         {} steps",
        filled - began,
        server.steps.len() - first
    );
    // The prefills alone would take 6.0 s; 768 steps of 256 decodes and all prefills 30 s: 6,560
    // tokens/s.
    assert!(filled - began < 8_500_000, "{}", filled - began);
    assert!(running >= 200 && rate >= 6_500, "{running}, {rate}");
}

/// 32 clients of 512 + 256 tokens: short prompts run beside streams that leave the device room.
#[test]
fn short_prompts_share_steps_with_decodes() {
    let mut server = Server::new(Speed::Burst);
    for _ in 0..32 {
        server.arrive(32, 16);
    }
    server.answer_all();
    let began = server.now;
    server.closed_loop((32, 128), (512, 256), |_, _| ());
    let rate = 128 * 256 * SECOND / (server.now - began);
    let waits: Vec<_> = server
        .clients
        .values()
        .skip(32)
        .filter_map(Client::waited)
        .collect();
    let (median, gap) = (
        percentile(&waits, 50),
        percentile(&server.gaps(512, began), 99),
    );
    println!(
        "{rate} tokens/s; first tokens median {median} p99 {} us; gaps p99 {gap} us",
        percentile(&waits, 99),
    );
    // A step of 32 decodes takes 5.1 ms, one of 256 tokens 8, one of 512 12.3.
    assert!(rate > 4_950, "{rate}");
    assert!(median < 100_000 && gap < 14_000, "{median}, {gap}");
}

/// Where a step takes the same time whatever its prompt tokens, it runs many.
#[test]
fn prompts_fill_steps_of_constant_cost() {
    let mut server = Server::new(Speed::Hosted);
    for _ in 0..32 {
        server.arrive(32, 16);
    }
    server.answer_all();
    let first = server.steps.len();
    server.closed_loop((32, 128), (512, 256), |_, _| ());
    let beside = server.steps[first..].iter();
    let prefills: Vec<_> = beside
        .filter(|step| step.decodes > 0 && step.prompt > 0)
        .map(|step| u64::from(step.prompt))
        .collect();
    let median = percentile(&prefills, 50);
    println!("{median} prompt tokens in {} steps", prefills.len());
    assert!(median > 400, "{median}");
}

/// The cost of the order of work under load, where a prompt token costs the same in every step:
/// streams of the first prompts and of the last answers decode in steps that are not full.
#[test]
fn scheduling_overhead_under_load_is_small() {
    for (streams, requests, shape) in [(256, 768, (1_024, 256)), (32, 128, (512, 256))] {
        let mut server = Server::new(Speed::Sustained);
        for _ in 0..32 {
            server.arrive(128, 16);
        }
        server.answer_all();
        let began = server.now;
        server.closed_loop((streams, requests), shape, |_, _| ());
        let took = (server.now - began) as f64;
        let least = least(streams, requests, shape);
        let rate = |micros: f64| f64::from(requests * shape.1) * 1e6 / micros;
        println!(
            "{streams} streams under load: {:.0} tokens/s, {:.0} with all steps full",
            rate(took),
            rate(least)
        );
        // 5.1 % with 256 streams; unpaced 0.2, with gaps of 350 ms.
        assert!(least <= took && took <= 1.06 * least, "{took} of {least}");
    }
}

/// A mixture of experts, whose small steps read nearly all weights: the order of work costs little.
#[test]
fn streams_of_experts_come_near_what_full_steps_give() {
    for (streams, requests, shape) in [(256, 768, (1_024, 256)), (32, 128, (512, 256))] {
        let mut server = Server::new(Speed::Experts);
        for _ in 0..32 {
            server.arrive(128, 16);
        }
        server.answer_all();
        let (began, warm) = (server.now, server.clients.len());
        server.closed_loop((streams, requests), shape, |_, _| ());
        let took = (server.now - began) as f64;
        let least = least_of_experts(streams, requests, shape);
        let rate = |micros: f64| f64::from(requests * shape.1) * 1e6 / micros;
        let waits = server.clients.values().skip(warm);
        let waits: Vec<_> = waits.filter_map(Client::waited).collect();
        println!(
            "{streams} streams of experts: {:.0} tokens/s, {:.0} with all steps full; first tokens \
             p50 {} p99 {} us; gaps p99 {} us",
            rate(took),
            rate(least),
            percentile(&waits, 50),
            percentile(&waits, 99),
            percentile(&server.gaps(shape.0, began), 99)
        );
        assert!(least <= took && took <= 1.1 * least, "{took} of {least}");
    }
}
