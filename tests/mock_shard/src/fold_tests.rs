use penstock_engine::generated::v1::{
    BlockCopies, BlockGrowth, BlockTable, LoadRequest, NewSequence, SlotFork, StepRequest,
};

use super::State;
use crate::{Check, Eos, Geometry, MockConfig, SlidingGroup};

/// A worker of 4 slots and 8 blocks of 4 tokens, with slot 0 halfway through a prompt of 6.
fn worker() -> State {
    let geometry = Geometry {
        blocks: 8,
        block_tokens: 4,
        slots: 4,
        ..Geometry::default()
    };
    let config = MockConfig {
        geometry,
        check: Check::Full,
        ..MockConfig::default()
    };
    let loaded = config.geometry.loaded(&LoadRequest::default());
    let mut state = State::new(config, loaded);
    let mut first = StepRequest {
        new: vec![sequence(0, 6, &[0, 1])],
        ..StepRequest::default()
    };
    (first.run_slots, first.run_tokens) = (vec![0], vec![3]);
    let reply = state.apply(first).expect("the first step is right");
    assert!(
        reply.slots.is_empty(),
        "a prompt that is not read to its end yields nothing"
    );
    state
}

fn sequence(slot: u32, tokens: u32, blocks: &[u32]) -> NewSequence {
    let tables = vec![BlockTable {
        group: 0,
        blocks: blocks.to_vec(),
    }];
    let token_ids = (10..10 + tokens).collect();
    NewSequence {
        slot,
        token_ids,
        tables,
        ..NewSequence::default()
    }
}

/// The next step: slot 0 reads the rest of its prompt, and what `change` adds.
fn next(change: impl FnOnce(&mut StepRequest)) -> Result<(), String> {
    let mut step = StepRequest {
        step: 1,
        ..StepRequest::default()
    };
    (step.run_slots, step.run_tokens) = (vec![0], vec![3]);
    change(&mut step);
    worker().apply(step).map(|_| ())
}

fn run(step: &mut StepRequest, slot: u32, tokens: u32) {
    step.run_slots.push(slot);
    step.run_tokens.push(tokens);
}

fn growth(counts: &[u32], blocks: &[u32]) -> BlockGrowth {
    BlockGrowth {
        group: 0,
        counts: counts.to_vec(),
        blocks: blocks.to_vec(),
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut StepRequest), rule: &str) {
    let message = next(change).expect_err("the step breaks a rule");
    assert!(message.contains(rule), "{message}");
}

#[test]
fn valid_steps_are_accepted() {
    assert_eq!(next(|_| ()), Ok(()));
    assert_eq!(next(|step| step.growth.push(growth(&[1], &[5]))), Ok(()));
    assert_eq!(
        next(|step| {
            step.new.push(sequence(2, 3, &[6]));
            run(step, 2, 3);
        }),
        Ok(())
    );
}

#[test]
fn step_and_epoch_numbers_must_be_consecutive() {
    refused(|step| step.step = 2, "step 2 of epoch 0: step 1 is due");
    refused(|step| step.epoch = 1, "the worker is in epoch 0");
}

#[test]
fn slots_must_exist_and_be_held_once() {
    refused(
        |step| step.finished.push(1),
        "finished names slot 1, which is empty",
    );
    refused(
        |step| step.new.push(sequence(0, 3, &[6])),
        "slot 0, which is taken",
    );
    refused(
        |step| step.new.push(sequence(4, 3, &[6])),
        "new names slot 4 of 4",
    );
    refused(|step| run(step, 3, 1), "run names slot 3, which is empty");
    refused(|step| run(step, 0, 1), "slot 0 runs twice");
}

#[test]
fn run_and_growth_counts_must_match() {
    refused(
        |step| step.run_tokens.push(1),
        "1 run_slots, but 2 run_tokens",
    );
    refused(
        |step| step.growth.push(growth(&[1, 1], &[5, 6])),
        "2 counts for 1 runs",
    );
    refused(
        |step| step.growth.push(growth(&[2], &[5])),
        "sum to 2, but it has 1 blocks",
    );
    refused(
        |step| step.run_tokens = vec![4],
        "to run 4 tokens, but 3 of 6 are computed",
    );
    refused(|step| step.run_tokens = vec![0], "to run 0 tokens");
    refused(|step| step.new.push(sequence(1, 0, &[5])), "given 0 tokens");
}

#[test]
fn blocks_must_exist_and_appear_once_per_table() {
    refused(
        |step| step.growth.push(growth(&[1], &[8])),
        "block 8 is outside the pool of 8",
    );
    refused(
        |step| step.growth.push(growth(&[1], &[1])),
        "block 1 is twice in one table",
    );
    refused(
        |step| step.new.push(sequence(1, 3, &[6, 6])),
        "block 6 is twice",
    );
    let copies = BlockCopies {
        group: 0,
        sources: vec![1, 2],
        destinations: vec![5],
    };
    refused(
        |step| step.copies.push(copies),
        "2 sources, but 1 destinations",
    );
    refused(
        |step| {
            step.new.push(sequence(1, 6, &[6]));
            run(step, 1, 6);
        },
        "to run up to token 6, but its blocks hold 4",
    );
}

#[test]
fn two_sequences_must_not_write_to_one_block() {
    refused(
        |step| {
            let mut other = sequence(1, 6, &[1, 2]);
            other.token_ids[0] = 99;
            step.new.push(other);
            run(step, 1, 6);
        },
        "holds another history",
    );
}

#[test]
fn computed_positions_must_have_been_written() {
    let shared = |computed, first| {
        move |step: &mut StepRequest| {
            let mut other = sequence(1, 6, &[0, 2]);
            (other.computed, other.token_ids[0]) = (computed, first);
            step.new.push(other);
            run(step, 1, 6 - computed);
        }
    };
    assert_eq!(
        next(shared(3, 10)),
        Ok(()),
        "three tokens of a shared block were computed"
    );
    refused(shared(4, 10), "position 3 in block 0 was never written");
    refused(shared(3, 99), "holds another history");
}

#[test]
fn fork_continues_from_its_own_block_copy() {
    let fork = |copied: bool| {
        move |step: &mut StepRequest| {
            let tables = vec![BlockTable {
                group: 0,
                blocks: vec![4, 5],
            }];
            let fork = SlotFork {
                source: 0,
                destination: 1,
                tables,
                ..SlotFork::default()
            };
            step.forks.push(fork);
            if copied {
                let (sources, destinations) = (vec![0], vec![4]);
                step.copies.push(BlockCopies {
                    group: 0,
                    sources,
                    destinations,
                });
            }
            run(step, 1, 3);
        }
    };
    assert_eq!(next(fork(true)), Ok(()));
    refused(fork(false), "position 0 in block 4 was never written");
}

/// What slot 0 of two blocks, all of them filled, yields when it runs its last known token.
fn without_room(tokens_per_run: u32) -> Result<Vec<u32>, String> {
    let mut state = worker();
    state.config.geometry.tokens_per_run = tokens_per_run;
    // The prompt of six, then two tokens at least: eight are known, nine at most.
    let mut step = 1;
    let mut known = 6;
    loop {
        let mut request = StepRequest {
            step,
            ..StepRequest::default()
        };
        let tokens = if step == 1 { 3 } else { 1 };
        (request.run_slots, request.run_tokens) = (vec![0], vec![tokens]);
        let reply = state.apply(request)?;
        if known == 9 {
            return Ok(reply.slots);
        }
        known += reply.counts[0];
        step += 1;
    }
}

#[test]
fn run_without_room_yields_nothing_with_several_tokens_per_run() {
    for tokens_per_run in 2..=4 {
        assert_eq!(without_room(tokens_per_run), Ok(Vec::new()));
    }
    let error = without_room(1).unwrap_err();
    assert!(error.contains("its blocks hold 8"), "{error}");
}

#[test]
fn stop_tokens_are_masked_before_min_tokens() {
    let eos = Eos { id: 3, every: 1 };
    let config = MockConfig {
        eos,
        ..MockConfig::default()
    };
    let loaded = config.geometry.loaded(&LoadRequest::default());
    let mut state = State::new(config, loaded);
    let mut new = sequence(0, 1, &[0, 1]);
    let sampling = new.sampling.get_or_insert_default();
    (sampling.stop_token_ids, sampling.min_tokens) = (vec![3], 2);
    let mut step = StepRequest {
        new: vec![new],
        ..StepRequest::default()
    };
    run(&mut step, 0, 1);
    let mut stops = Vec::new();
    for number in 0..4 {
        let reply = state.apply(step).expect("a right step");
        stops.push(reply.token_ids == [3]);
        step = StepRequest {
            step: number + 1,
            ..StepRequest::default()
        };
        run(&mut step, 0, 1);
    }
    assert_eq!(
        stops,
        [false, false, true, true],
        "without the minimum all would be"
    );
}

/// The first step of a worker with a second group, whose window is 3 tokens: a sequence of 9 tokens,
/// 8 of them computed according to the router.
fn two_groups(tables: &[(u32, &[u32])]) -> Result<(), String> {
    let geometry = Geometry {
        blocks: 8,
        block_tokens: 4,
        sliding: Some(SlidingGroup {
            blocks: 3,
            window: 3,
        }),
        ..Geometry::default()
    };
    let config = MockConfig {
        geometry,
        check: Check::Full,
        ..MockConfig::default()
    };
    let loaded = config.geometry.loaded(&LoadRequest::default());
    let mut state = State::new(config, loaded);
    let mut first = StepRequest {
        new: vec![NewSequence {
            tables: two_tables(&[(0, &[0, 1]), (1, &[0, 1])]),
            ..sequence(0, 8, &[])
        }],
        ..StepRequest::default()
    };
    run(&mut first, 0, 8);
    state.apply(first)?;
    let mut second = StepRequest {
        step: 1,
        new: vec![NewSequence {
            computed: 8,
            tables: two_tables(tables),
            ..sequence(1, 9, &[])
        }],
        ..StepRequest::default()
    };
    run(&mut second, 1, 1);
    state.apply(second).map(|_| ())
}

fn two_tables(tables: &[(u32, &[u32])]) -> Vec<BlockTable> {
    let table = |(group, blocks): &(u32, &[u32])| BlockTable {
        group: *group,
        blocks: blocks.to_vec(),
    };
    tables.iter().map(table).collect()
}

#[test]
fn every_group_has_a_table_and_any_block_stands_behind_the_window() {
    let full: (u32, &[u32]) = (0, &[0, 1, 2]);
    assert_eq!(two_groups(&[full, (1, &[0, 1, 2])]), Ok(()));
    assert_eq!(two_groups(&[full, (1, &[2, 1, 2])]), Ok(()));
    for (tables, rule) in [
        (vec![full], "groups [0] instead of [0, 1]"),
        (
            vec![full, (1, &[0, 1, 3])],
            "block 3 is outside the pool of 3",
        ),
        (vec![full, (1, &[0, 1, 1])], "block 1 is twice in one table"),
        (
            vec![full, (1, &[1, 0, 2])],
            "block 0 of group 1 holds another history",
        ),
    ] {
        let error = two_groups(&tables).expect_err("the step breaks a rule");
        assert!(error.contains(rule), "{error}");
    }
}
