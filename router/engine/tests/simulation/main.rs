//! Random episodes of the engine against mock workers inside the process, in virtual time. `faults`
//! says what goes wrong, `clients` what the clients do, `episode` what must hold. A failure prints the
//! command that repeats its episode.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clients;
mod episode;
mod faults;
mod panics;
#[path = "../../../scheduler/tests/simulation/random.rs"]
mod random;
mod requests;
mod workers;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use episode::{Episode, Summary};

const EPISODES: u64 = 6_000;
const PARTS: u64 = 4;
/// One of this many episodes runs twice.
const REPEATED: u64 = 100;

fn run(seed: u64) -> Summary {
    panics::watch();
    match catch_unwind(AssertUnwindSafe(|| Episode::new(seed).run())) {
        Ok(summary) => summary,
        Err(_) => panic!(
            "episode {seed} failed, see above; to repeat it: \
             SEED={seed} cargo test -p penstock-engine --test simulation one_episode"
        ),
    }
}

/// Runs every `PARTS`-th episode; runs some twice, which must give equal events at equal times.
fn part(part: u64) {
    let mut total = Summary::default();
    for seed in (part..EPISODES).step_by(PARTS as usize) {
        let summary = run(seed);
        if seed % REPEATED < PARTS {
            assert_eq!(run(seed), summary, "episode {seed} is not deterministic");
        }
        total.add(&summary);
    }
    println!("{total:?}");
    // The episodes must have exercised what they are meant to test.
    let kinds = total.faults.len();
    assert_eq!(kinds, faults::KINDS, "{total:?}");
    let often = total.faults.values().all(|&times| times >= 30);
    assert!(often && total.losses > 1_800, "{total:?}");
    assert!(total.served > 4_800 && total.poison > 120, "{total:?}");
    assert!(total.late > 30 && total.gone > 300, "{total:?}");
}

#[test]
fn first_quarter() {
    part(0);
}

#[test]
fn second_quarter() {
    part(1);
}

#[test]
fn third_quarter() {
    part(2);
}

#[test]
fn fourth_quarter() {
    part(3);
}

/// Repeats the episode of the variable `SEED`, which is read when this is compiled.
#[test]
fn one_episode() {
    let seed = option_env!("SEED").map_or(7, |seed| seed.parse().expect("a number"));
    println!("{:?}", run(seed));
}
