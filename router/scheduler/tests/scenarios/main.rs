//! Runs the scenario files in this folder: events, each followed by the expected results in lines
//! that begin with `>`. A mismatch prints the actual transcript. README.md explains the events.
#![cfg(test)]

mod script;

use script::Script;
use std::fmt::Write;

/// Runs one scenario. Returns the actual transcript as an error if it differs.
fn run(text: &str) -> Result<(), String> {
    let mut script = Script::default();
    let mut transcript = String::new();
    let mut expected: Vec<&str> = Vec::new();
    let mut came: Vec<String> = Vec::new();
    let mut equal = true;
    for line in text.lines().chain([""]) {
        if let Some(news) = line.strip_prefix("> ") {
            expected.push(news);
            continue;
        }
        equal &= expected == came;
        for news in &came {
            writeln!(transcript, "> {news}").unwrap();
        }
        writeln!(transcript, "{line}").unwrap();
        expected.clear();
        let event = line.split('#').next().unwrap_or_default().trim();
        came = if event.is_empty() {
            Vec::new()
        } else {
            script.event(event)
        };
    }
    if equal { Ok(()) } else { Err(transcript) }
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let text = include_str!(concat!(stringify!($name), ".txt"));
                if let Err(came) = run(text) {
                    panic!("{} went differently:\n{came}", stringify!($name));
                }
            }
        )*
    };
}

scenarios! {
    abort
    backlog
    blocks_longer_than_the_tail
    burst
    chunked_prompts
    contexts_lengthen_steps
    copy_on_write
    forks_keep_min_tokens
    forks_that_wait
    full_prompt_hit
    latency_target
    long_prompt_beside_window
    no_slot_no_forks
    one_step_ahead
    short_prompts_first
    passing_and_ageing
    preemption
    prepared_again
    prompt_prefilled_once
    reserve_to_finish
    several_tokens_per_run
    unprepared
    short_steps
    shared_prompt_in_flight
    sliding_window
    steered
    state_checkpoints
    state_shared_prefix
    states_are_the_limit
    stop_token
    two_groups
    waiting_for_outcomes
    window_shortens_hit
    workers_lost
    youngest_held_is_evicted
}

#[test]
fn a_wrong_expectation_fails() {
    let text = "config\nadd 1 prompt=5 max=2\nplan\n> step 0\n> run 0x4\n";
    assert!(run(text).is_err());
}
