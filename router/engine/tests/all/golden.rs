//! The golden messages: the other half of this test is `tests/contract/test_golden.py`.
#![allow(clippy::expect_used)]

use std::{collections::BTreeSet, fs, path::PathBuf};

use penstock_engine::generated::v1::load_progress::Event;
use penstock_engine::generated::v1::request_error::Kind;
use penstock_engine::generated::v1::{
    BadWord, BlockCopies, BlockGrowth, BlockTable, Grammar, KvGroup, LoadProgress, LoadRequest,
    Loaded, LogitBias, MemoryReport, NewSequence, Penalties, PrepareReply, PrepareRequest,
    Progress, PromptLogprobs, Reasoning, RequestError, Sampling, SlotError, SlotFork, StepReply,
    StepRequest, StepTiming, TokenSet, Watermark, grammar,
};
use prost::Message;

#[test]
fn load() {
    check(
        "load_request",
        &LoadRequest {
            protocol_version: 1,
            model_path: "/models/brook".into(),
            device: "cuda".into(),
            dtype: "bfloat16".into(),
            rank: 1,
            world_size: 2,
            rendezvous: "file:///tmp/group".into(),
            max_sequence_tokens: 2048,
            max_slots: 256,
            max_step_tokens: 8192,
            kv_memory_bytes: 8 << 30,
            memory_fraction: 0.9,
            block_tokens: 16,
            threads: 4,
            kv_dtype: "int8".into(),
            quantize: "int4".into(),
            expert_parallel: true,
            model_backend: "transformers".into(),
            keep_seconds: 30,
        },
    );
    let progress = Progress {
        phase: "weights".into(),
        done: 10 << 20,
        total: 20 << 20,
    };
    check(
        "load_progress",
        &LoadProgress {
            event: Some(Event::Progress(progress)),
        },
    );
}

#[test]
fn loaded() {
    let group = KvGroup {
        block_tokens: 16,
        blocks: 4096,
        block_bytes: 131_072,
        window: 1024,
        recurrent: false,
    };
    let states = KvGroup {
        block_tokens: 16,
        blocks: 512,
        block_bytes: 4 << 20,
        window: 0,
        recurrent: true,
    };
    let memory = MemoryReport {
        total: 150_754_820_096,
        weights: 20 << 20,
        activations: 256 << 20,
        graphs: 512 << 20,
        slots: 4 << 20,
        kv: 512 << 20,
    };
    let loaded = Loaded {
        kv_groups: vec![group, states],
        max_slots: 256,
        max_step_tokens: 8192,
        max_sequence_tokens: 2048,
        max_tokens_per_run: 1,
        vocab_size: 4096,
        device_name: "NVIDIA H200".into(),
        memory: Some(memory),
        step_sizes: vec![64, 128, 256],
        model_backend: "transformers".into(),
        limitations: vec!["slower".into(), "no --ep".into()],
    };
    check(
        "loaded",
        &LoadProgress {
            event: Some(Event::Loaded(loaded)),
        },
    );
}

#[test]
fn prepare() {
    let sampling = Sampling {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.95,
        seed: u64::MAX,
        min_tokens: 3,
        stop_token_ids: vec![2, 300],
        min_p: 0.05,
        typical_p: 0.9,
        penalties: Some(Penalties {
            repetition: 1.3,
            frequency: -0.5,
            presence: 2.0,
        }),
        logit_bias: Some(LogitBias {
            token_ids: vec![5, 4095],
            values: vec![-100.0, 2.5],
        }),
        allowed: Some(TokenSet {
            token_ids: vec![5, 6, 4095],
        }),
        banned_token_ids: vec![6, 300],
        bad_words: vec![BadWord {
            token_ids: vec![300, 7],
        }],
        watermark: Some(Watermark {
            gamma: 0.25,
            delta: 2.0,
            key: 15_485_863,
        }),
        top_logprobs: 5,
        prompt_logprobs: Some(0),
        logprob_token_ids: vec![7, 4095],
    };
    check(
        "prepare_request",
        &PrepareRequest {
            request_id: 17,
            sampling: Some(sampling),
            grammar: Some(Grammar {
                kind: grammar::Kind::JsonSchema.into(),
                text: r#"{"type":"integer"}"#.into(),
                complete: true,
                max_new_tokens: 200,
                end_token_ids: vec![2, 300],
                reasoning: Some(Reasoning {
                    open: "<think>".into(),
                    close: "</think>".into(),
                    started: true,
                    budget: Some(64),
                    header: "<|start|>assistant".into(),
                }),
            }),
        },
    );
    let error = error(Kind::Invalid, "top_k must be at most 4096, found 5000");
    check("prepare_reply", &PrepareReply { error });
}

#[test]
fn step_request() {
    let new = NewSequence {
        slot: 5,
        request_id: 17,
        token_ids: [1, 300, 4095].into_iter().chain(7..=21).collect(),
        generated: 1,
        computed: 16,
        tables: table(vec![40, 41]),
        sampling: Some(Sampling {
            temperature: 0.5,
            top_p: 1.0,
            seed: 9,
            stop_token_ids: vec![2],
            ..Default::default()
        }),
        grammar: Some(Grammar {
            kind: grammar::Kind::Regex.into(),
            text: "[0-9]+".into(),
            max_new_tokens: 10,
            end_token_ids: vec![2],
            ..Default::default()
        }),
    };
    let fork = SlotFork {
        source: 3,
        destination: 6,
        request_id: 16,
        tables: table(vec![7, 300]),
        seed: 12_345_678_901_234_567_890,
    };
    check(
        "step_request",
        &StepRequest {
            epoch: 2,
            step: 1_000_000,
            finished: vec![4],
            new: vec![new],
            forks: vec![fork],
            copies: vec![BlockCopies {
                group: 0,
                sources: vec![8],
                destinations: vec![300],
            }],
            growth: vec![BlockGrowth {
                group: 0,
                counts: vec![1, 0, 1],
                blocks: vec![42, 43],
            }],
            run_slots: vec![3, 6, 5],
            run_tokens: vec![1, 1, 2],
            steered_slots: vec![6],
            steered_tokens: vec![4000],
        },
    );
}

#[test]
fn step_reply() {
    let error = error(Kind::Internal, "the logits are not finite");
    check(
        "step_reply",
        &StepReply {
            epoch: 2,
            step: 1_000_000,
            slots: vec![3, 5],
            counts: vec![2, 1],
            token_ids: vec![128, 70_000, 2],
            logprobs: vec![-0.25, -1.5, 0.0],
            errors: vec![SlotError { slot: 6, error }],
            timing: Some(StepTiming {
                host: 180,
                device: 20_400,
            }),
            closing: vec![5],
            top_counts: vec![1, 0, 2],
            top_token_ids: vec![128, 2, 300],
            top_logprobs: vec![-0.25, 0.0, -8.0],
            prompt_logprobs: vec![PromptLogprobs {
                request_id: 17,
                start: 1,
                logprobs: vec![-0.5, -2.0],
                ranks: vec![1, 400],
                top: 1,
                top_token_ids: vec![300, 7],
                top_logprobs: vec![-0.5, -0.125],
            }],
        },
    );
}

#[test]
fn every_golden_message_is_checked() {
    let names = fs::read_dir(folder())
        .expect("the folder exists")
        .map(|entry| {
            let path = entry.expect("a readable entry").path();
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        });
    let known = [
        "load_progress",
        "load_request",
        "loaded",
        "prepare_reply",
        "prepare_request",
        "step_reply",
        "step_request",
    ];
    assert_eq!(
        names.collect::<BTreeSet<_>>(),
        known.map(String::from).into()
    );
}

/// Decodes to the value expected, and encodes to the same bytes again.
fn check<M: Message + Default + PartialEq + std::fmt::Debug>(name: &str, expected: &M) {
    let bytes = fs::read(folder().join(name).with_extension("bin")).expect("the message exists");
    let decoded = M::decode(bytes.as_slice()).expect("the message decodes");
    assert_eq!(&decoded, expected, "{name}");
    assert_eq!(decoded.encode_to_vec(), bytes, "{name} encodes differently");
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../proto/golden")
}

fn table(blocks: Vec<u32>) -> Vec<BlockTable> {
    vec![BlockTable { group: 0, blocks }]
}

fn error(kind: Kind, message: &str) -> Option<RequestError> {
    Some(RequestError {
        kind: kind.into(),
        message: message.into(),
    })
}
