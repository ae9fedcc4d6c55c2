use penstock_request::types::{Candidate, PromptToken, Stopping};
use penstock_scheduler::{
    ids::GroupId,
    plan::{Run, SteeredToken},
};

use super::*;

fn request() -> EngineRequest {
    EngineRequest {
        prompt: vec![8],
        sampling: SamplingParams {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.9,
            seed: 11,
            top_logprobs: 2,
            prompt_logprobs: Some(3),
            logprob_token_ids: vec![8, 5],
            ..SamplingParams::default()
        },
        grammar: None,
        stopping: Stopping {
            max_new_tokens: 9,
            min_new_tokens: 2,
            stop_token_ids: vec![5, 4],
        },
        choices: 1,
        beam: None,
        cache_salt: Box::default(),
        priority: 0,
    }
}

fn sequence(request: u64, choice: u32) -> SequenceId {
    SequenceId {
        request: RequestId(request),
        index: choice,
    }
}

fn table(blocks: &[u32]) -> Vec<Table> {
    vec![Table {
        group: GroupId(0),
        blocks: blocks.iter().copied().map(BlockId).collect(),
    }]
}

fn copy(group: u32, source: u32) -> BlockCopy {
    let destination = BlockId(source + 100);
    BlockCopy {
        group: GroupId(group),
        source: BlockId(source),
        destination,
    }
}

fn plan() -> StepPlan {
    StepPlan {
        epoch: Epoch(2),
        step: StepId(7),
        finished: vec![Slot(1)],
        new: vec![NewSequence {
            sequence: sequence(40, 0),
            slot: Slot(3),
            token_ids: vec![TokenId(8), TokenId(9)],
            generated: 1,
            computed: 0,
            tables: table(&[6]),
        }],
        forks: vec![Fork {
            sequence: sequence(40, 1),
            source: Slot(3),
            destination: Slot(4),
            tables: table(&[6, 7]),
        }],
        copies: vec![copy(0, 1), copy(0, 2), copy(1, 3)],
        steered: vec![SteeredToken {
            slot: Slot(4),
            token: TokenId(12),
        }],
        growth: vec![Growth {
            group: GroupId(0),
            counts: vec![1],
            blocks: vec![BlockId(9)],
        }],
        runs: vec![Run {
            slot: Slot(3),
            tokens: 2,
        }],
    }
}

#[test]
fn a_plan_becomes_a_message_with_the_parameters_of_its_requests() {
    let known = request();
    let requests = |id| (id == RequestId(40)).then_some(&known);
    let request = step_request(&plan(), requests).expect("the request is known");
    assert_eq!(
        (request.epoch, request.step, &request.finished[..]),
        (2, 7, &[1][..])
    );
    let new = &request.new[0];
    assert_eq!((new.slot, new.request_id, new.generated), (3, 40, 1));
    assert_eq!(new.token_ids, [8, 9]);
    assert_eq!(
        new.tables,
        [v1::BlockTable {
            group: 0,
            blocks: vec![6]
        }]
    );
    let sent = new.sampling.clone().expect("a sequence has parameters");
    assert_eq!(
        (sent.temperature, sent.top_k, sent.top_p, sent.seed),
        (0.5, 3, 0.9, 11)
    );
    assert_eq!(
        (sent.min_tokens, &sent.stop_token_ids[..]),
        (2, &[5, 4][..])
    );
    assert_eq!((sent.top_logprobs, sent.prompt_logprobs), (2, Some(3)));
    assert_eq!(sent.logprob_token_ids, [8, 5]);
    assert_eq!(
        (&request.run_slots[..], &request.run_tokens[..]),
        (&[3][..], &[2][..])
    );
    assert_eq!(request.growth[0].blocks, [9]);
    assert_eq!(
        (&request.steered_slots[..], &request.steered_tokens[..]),
        (&[4][..], &[12][..])
    );
    assert_ne!(request.forks[0].seed, 11, "a fork draws independent noise");
}

#[test]
fn copies_are_gathered_by_group() {
    let known = request();
    let request = step_request(&plan(), |_| Some(&known)).expect("known");
    let copies = |group, sources: &[u32], destinations: &[u32]| v1::BlockCopies {
        group,
        sources: sources.to_vec(),
        destinations: destinations.to_vec(),
    };
    assert_eq!(
        request.copies,
        [copies(0, &[1, 2], &[101, 102]), copies(1, &[3], &[103])]
    );
}

#[test]
fn an_unknown_request_is_named() {
    assert_eq!(step_request(&plan(), |_| None), Err(RequestId(40)));
}

#[test]
fn replies_whose_arrays_do_not_fit_are_refused() {
    let reply = v1::StepReply {
        slots: vec![1, 2],
        counts: vec![2, 1],
        token_ids: vec![7, 8, 9],
        logprobs: vec![0.0; 3],
        ..Default::default()
    };
    assert!(step_answer(reply.clone()).is_ok());
    let mut short = reply.clone();
    short.counts.pop();
    assert_eq!(
        step_answer(short),
        Err("a StepReply has 2 slots, but 1 counts".into())
    );
    let mut silent = reply;
    silent.logprobs.pop();
    let message = step_answer(silent).expect_err("a logprob is missing");
    assert!(
        message.contains("sum to 3") && message.contains("2 logprobs"),
        "{message}"
    );
}

#[test]
fn errors_name_their_slots() {
    let error = v1::SlotError {
        slot: 4,
        error: None,
    };
    let reply = v1::StepReply {
        errors: vec![error],
        ..Default::default()
    };
    let answer = step_answer(reply).expect("a right reply");
    assert_eq!(answer.outcome.failed, [Slot(4)]);
    assert!(
        !answer.errors[0].message.is_empty(),
        "an error without a message gets one"
    );
}

#[test]
fn an_unprepared_slot_is_not_a_failed_one() {
    let error = |slot, kind: v1::request_error::Kind| v1::SlotError {
        slot,
        error: Some(v1::RequestError {
            kind: kind.into(),
            message: "why".into(),
        }),
    };
    let kinds = [
        v1::request_error::Kind::Unprepared,
        v1::request_error::Kind::Internal,
        v1::request_error::Kind::Invalid,
    ];
    let reply = v1::StepReply {
        errors: (3..)
            .zip(kinds)
            .map(|(slot, kind)| error(slot, kind))
            .collect(),
        ..Default::default()
    };
    let answer = step_answer(reply).expect("a right reply");
    assert_eq!(answer.outcome.unprepared, [Slot(3)]);
    assert_eq!(answer.outcome.failed, [Slot(4), Slot(5)]);
    // Only messages of invalid requests are for the client.
    let invalid: Vec<_> = answer.errors.iter().map(|error| error.invalid).collect();
    assert_eq!(invalid, [false, true]);
}

fn reply_with_logprobs() -> v1::StepReply {
    v1::StepReply {
        slots: vec![1, 2],
        counts: vec![2, 1],
        token_ids: vec![7, 8, 9],
        logprobs: vec![-1.0; 3],
        top_counts: vec![2, 0, 1],
        top_token_ids: vec![7, 3, 4],
        top_logprobs: vec![-1.0, -2.0, f32::NEG_INFINITY],
        prompt_logprobs: vec![v1::PromptLogprobs {
            request_id: 40,
            start: 1,
            logprobs: vec![-3.0, -4.0],
            ranks: vec![5, 6],
            top: 1,
            top_token_ids: vec![2, 6],
            top_logprobs: vec![-0.5, -0.25],
        }],
        ..Default::default()
    }
}

#[test]
fn step_logprobs_are_split_by_token() {
    let answer = step_answer(reply_with_logprobs()).expect("a right reply");
    let step_logprobs = answer.step_logprobs.expect("the reply has logprobs");
    let of = |id, logprob| Candidate { id, logprob };
    let first = vec![of(7, -1.0), of(3, -2.0)];
    assert_eq!(
        step_logprobs.top_logprobs.for_tokens(0..2, &[]),
        Some(vec![first, vec![]])
    );
    assert_eq!(
        step_logprobs.top_logprobs.for_tokens(1..2, &[]),
        None,
        "not requested"
    );
    assert_eq!(
        step_logprobs.top_logprobs.for_tokens(2..3, &[5]),
        Some(vec![vec![]]),
        "impossible"
    );
    let named = of(4, f32::NEG_INFINITY);
    assert_eq!(
        step_logprobs.top_logprobs.for_tokens(2..3, &[5, 4]),
        Some(vec![vec![named]])
    );
    let part = &step_logprobs.prompts[0];
    assert_eq!((part.request, part.start), (RequestId(40), 1));
    let second = PromptToken {
        logprob: -4.0,
        rank: 6,
        top: vec![of(6, -0.25)],
    };
    assert_eq!(part.tokens[1], second);
}

#[test]
fn logprobs_in_arrays_of_unequal_length_are_refused() {
    let broken: [fn(&mut v1::StepReply); 5] = [
        |reply| {
            reply.top_counts.pop();
        },
        |reply| {
            reply.top_logprobs.pop();
        },
        |reply| reply.top_counts[1] = 1,
        |reply| {
            reply.prompt_logprobs[0].ranks.pop();
        },
        |reply| reply.prompt_logprobs[0].top = 2,
    ];
    for (number, spoil) in broken.into_iter().enumerate() {
        let mut reply = reply_with_logprobs();
        spoil(&mut reply);
        assert!(step_answer(reply).is_err(), "{number}");
    }
}
