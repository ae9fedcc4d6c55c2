//! Rules of promises, and a simulation of an overloaded queue in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

const PACE: u64 = SECOND / 6;

fn arrival(tenant: u64, request: u64) -> Arrival {
    Arrival {
        tenant,
        weight: 1,
        request,
    }
}

/// Refuses a newcomer; returns the microseconds until its promise is due.
fn refuse(promises: &mut Promises, who: Arrival, now: u64) -> u64 {
    assert_eq!(promises.claim(who, Micros(now)), Claim::Newcomer);
    promises.promise(who, Claim::Newcomer, PACE, now)
}

#[test]
fn later_refusals_get_later_places() {
    let mut promises = Promises::default();
    let mut last = 0;
    for request in 0..100 {
        let ahead = refuse(&mut promises, arrival(1, request), 0);
        assert!(ahead >= LEAST && ahead >= last && (request < 20 || ahead > last));
        last = ahead;
    }
    // Half of the promises are expected to be kept.
    let expected = LEAST as f64 + 99.0 * PACE as f64 * SLACK / 2.0;
    assert!((last as f64 - expected).abs() < 1e3, "{last} {expected}");
}

#[test]
fn a_promise_is_kept_from_its_time_on_and_once() {
    let mut promises = Promises::default();
    let who = arrival(1, 1);
    let due = refuse(&mut promises, who, 0);
    assert_eq!(
        promises.claim(who, Micros(due)),
        Claim::Due { again: false }
    );
    assert_eq!(promises.claim(who, Micros(due)), Claim::Newcomer);
    let due = due + refuse(&mut promises, who, due);
    let expired = due + WINDOW + (due - LEAST) / 4;
    assert_eq!(promises.claim(who, Micros(expired)), Claim::Newcomer);
    assert!(promises.is_empty() && promises.lines.is_empty() && promises.by_expiry.is_empty());
}

#[test]
fn returning_early_gains_nothing() {
    let mut promises = Promises::default();
    for request in 0..50 {
        refuse(&mut promises, arrival(1, request), 0);
    }
    let who = arrival(1, 50);
    let due = refuse(&mut promises, who, 0);
    let before = promises.lines[&1];
    for early in (0..due).step_by(100_000) {
        assert_eq!(promises.claim(who, Micros(early)), Claim::Newcomer);
        assert_eq!(
            promises.promise(who, Claim::Newcomer, PACE, early),
            due - early
        );
    }
    assert_eq!(promises.lines[&1], before);
}

#[test]
fn a_tenant_with_many_refusals_waits_in_its_own_line() {
    let mut promises = Promises::default();
    let greedy = (0..1_000)
        .map(|request| refuse(&mut promises, arrival(1, request), 0))
        .max();
    let polite = refuse(&mut promises, arrival(2, 0), 0);
    assert_eq!(polite, LEAST);
    assert!(greedy > Some(60 * SECOND), "{greedy:?}");
}

#[test]
fn the_table_is_bounded_in_number_and_time() {
    let mut promises = Promises::default();
    let mut most = 0;
    for request in 0..3 * MAX_PROMISES as u64 {
        most = most.max(refuse(&mut promises, arrival(request % 100, request), 0));
    }
    assert_eq!(most, HORIZON);
    assert!(promises.open.len() <= MAX_PROMISES);
    promises.expire(2 * HORIZON);
    assert!(promises.is_empty() && promises.lines.is_empty());
}

#[test]
fn newcomers_leave_places_free_only_while_promises_are_open() {
    let mut promises = Promises::default();
    assert_eq!(promises.kept_free(Claim::Newcomer, 64), 0);
    refuse(&mut promises, arrival(1, 1), 0);
    let free = [1, 3, 4, 32, 4096].map(|places| promises.kept_free(Claim::Newcomer, places));
    assert_eq!(free, [0, 0, 1, 8, MAX_FREE]);
    let of_others = [false, true].map(|again| promises.kept_free(Claim::Due { again }, 32));
    assert_eq!(of_others, [4, 0]);
}

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    /// Uniform in 0..1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.next()).ln()) as u64 + 1
    }
}

/// A request on its way to the server: when it arrives, its number and its try.
type Coming = Reverse<(u64, u64, u32)>;

/// A queue of `PLACES` whose requests start at random times, `PACE` apart on average.
struct Server {
    queue: usize,
    promises: Promises,
    /// Whether it promises places; else `Retry-After` is the time that the queue takes.
    promising: bool,
    started: u64,
    idle: u64,
}

#[derive(Debug, Default)]
struct Report {
    /// Clients that obey.
    obeying: u64,
    /// Those of them that were served, by their number of tries.
    tries: BTreeMap<u32, u64>,
    /// Starts per possible start.
    busy: f64,
    longest: u64,
}

const PLACES: usize = 32;
const MAX_TRIES: u32 = 10;

impl Server {
    /// Takes a request or returns how many microseconds later it should return.
    fn arrive(&mut self, request: u64, now: u64) -> Result<(), u64> {
        let who = arrival(1, request);
        let claim = self.promises.claim(who, Micros(now));
        let free = self.promises.kept_free(claim, PLACES);
        if self.queue + free < PLACES {
            self.queue += 1;
            self.promises.forget(who);
            return Ok(());
        }
        Err(match self.promising {
            true => self
                .promises
                .give(who, claim, PACE, Micros(now))
                .as_micros() as u64,
            false => (self.queue as u64 * PACE).div_ceil(SECOND) * SECOND,
        })
    }

    fn start(&mut self) {
        match self.queue.checked_sub(1) {
            Some(left) => {
                self.queue = left;
                self.started += 1;
            }
            None => self.idle += 1,
        }
    }
}

impl Report {
    fn served_within(&self, tries: u32) -> f64 {
        let served: u64 = self.tries.range(..=tries).map(|(_, count)| count).sum();
        served as f64 / self.obeying as f64
    }
}

/// Requests come for `seconds`, `factor` times as fast as they can start. `obeying` of their clients
/// return when they were told to.
fn overload(promising: bool, factor: f64, obeying: f64, seconds: u64) -> Report {
    let mut random = Random(7);
    let mut coming: BinaryHeap<Coming> = BinaryHeap::new();
    let (mut at, mut number) = (0, 0);
    while at < seconds * SECOND {
        at += random.exponential(PACE as f64 / factor);
        number += 1;
        coming.push(Reverse((at, number, 1)));
    }
    let mut server = Server {
        queue: 0,
        promises: Promises::default(),
        promising,
        started: 0,
        idle: 0,
    };
    let mut report = Report::default();
    let mut next_start = PACE;
    while let Some(Reverse((now, request, attempt))) = coming.pop() {
        while next_start <= now {
            server.start();
            if next_start > seconds * SECOND {
                server.idle = 0;
            }
            next_start += random.exponential(PACE as f64);
        }
        let obeys = arrival_obeys(request, obeying);
        report.obeying += u64::from(obeys && attempt == 1);
        match server.arrive(request, now) {
            Ok(()) if obeys => *report.tries.entry(attempt).or_default() += 1,
            Err(wait) if obeys && attempt < MAX_TRIES => {
                report.longest = report.longest.max(wait / SECOND);
                // A client needs some time.
                let delay = random.exponential(0.05 * SECOND as f64);
                coming.push(Reverse((now + wait + delay, request, attempt + 1)));
            }
            _ => {}
        }
        if now < seconds * SECOND {
            report.busy = server.started as f64 / (server.started + server.idle).max(1) as f64;
        }
    }
    report
}

fn arrival_obeys(request: u64, share: f64) -> bool {
    Random(request ^ 0x0b_e7).next() < share
}

/// Most clients leave: the places of those that return are free.
#[test]
fn clients_that_obey_are_served_at_four_times_the_rate() {
    for (obeying, seconds) in [(0.1, 600), (0.5, 300), (1.0, 120)] {
        let [before, after] =
            [false, true].map(|promising| overload(promising, 4.0, obeying, seconds));
        println!("{obeying}: before {before:?}\n  after {after:?}");
        assert!(before.served_within(3) < 0.75, "{before:?}");
        assert!(after.served_within(3) >= 0.99, "{after:?}");
        assert!(after.busy > 0.98, "{after:?}");
    }
}

/// Promises that nobody claims keep nobody out.
#[test]
fn the_server_is_busy_when_nobody_returns() {
    let report = overload(true, 1.5, 0.0, 600);
    assert!(report.busy > 0.98, "{report:?}");
}
