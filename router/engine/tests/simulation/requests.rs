//! The requests of all episodes, and their answers on an undisturbed engine.

use std::sync::LazyLock;

use futures_util::future::join_all;
use penstock_engine::Engine;
use penstock_mock_shard::Geometry;
use penstock_request::{
    grammar_spec::{GrammarFormat, GrammarSpec, OutputConstraint},
    sampling_params::SamplingParams,
    types::{BeamParameters, EarlyStopping, EngineRequest, Stopping},
};

use crate::clients::{Answer, collect};
use crate::episode::undisturbed;

/// Different requests.
pub(crate) const REQUESTS: u32 = 96;
/// The token that ends some answers.
pub(crate) const END: u32 = 2;
/// The token of a poisoned prompt. No answer has it by chance.
pub(crate) const POISON: u32 = 31_999;

/// The answers to all requests: of each, one per choice.
pub(crate) static ANSWERS: LazyLock<Vec<Vec<Answer>>> = LazyLock::new(|| {
    let geometry = Geometry {
        blocks: 256,
        ..Geometry::default()
    };
    undisturbed(geometry, |engine: Engine| async move {
        let answers = (0..REQUESTS).map(|number| {
            let engine = &engine;
            async move {
                let streams = engine.submit_all(wanted(number)).await.expect("accepted");
                join_all(streams.into_iter().map(collect)).await
            }
        });
        join_all(answers).await
    })
});

/// Prompts of many lengths; some share their beginning.
fn prompt(number: u32) -> Vec<u32> {
    let shared = (number % 3) * 12;
    let own = 1 + (number * 7) % 30;
    (0..shared)
        .map(|i| 5 + i)
        .chain((0..own).map(|i| 100 + number * 50 + i))
        .collect()
}

pub(crate) fn wanted(number: u32) -> EngineRequest {
    let mut wanted = EngineRequest {
        cache_salt: Box::default(),
        priority: 0,
        prompt: prompt(number),
        sampling: SamplingParams {
            temperature: if number.is_multiple_of(2) { 0.0 } else { 1.0 },
            seed: u64::from(number) * 31,
            top_logprobs: if number.is_multiple_of(7) { 2 } else { 0 },
            prompt_logprobs: number.is_multiple_of(11).then_some(1),
            ..SamplingParams::default()
        },
        grammar: (number % 6 == 5).then(grammar),
        stopping: Stopping {
            max_new_tokens: 1 + (number * 5) % 25,
            min_new_tokens: number % 4,
            stop_token_ids: vec![END],
        },
        choices: 1,
        beam: None,
    };
    match number % 8 {
        1 | 6 => wanted.choices = 1 + number % 4,
        4 => {
            let width = 1 + number % 3;
            wanted.choices = width.min(2);
            wanted.sampling.temperature = 0.0;
            wanted.beam = Some(BeamParameters {
                width,
                length_penalty: 1.0,
                early_stopping: EarlyStopping::Heuristic,
            });
        }
        _ => {}
    }
    wanted
}

/// A request that ends the workers.
pub(crate) fn poison(number: u32) -> EngineRequest {
    let mut request = wanted(number);
    request.prompt.push(POISON);
    request
}

/// The mock worker only prepares it.
fn grammar() -> Box<GrammarSpec> {
    Box::new(GrammarSpec {
        constraint: OutputConstraint {
            kind: GrammarFormat::Regex,
            field: "regex",
            text: ".*".into(),
            complete: false,
        },
        end_token_ids: vec![END],
        reasoning: None,
    })
}
