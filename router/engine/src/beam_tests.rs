use std::collections::HashMap;

use penstock_request::sampling_params::SamplingParams;
use penstock_scheduler::ids::RequestId;

use super::*;

fn id(choice: u32) -> SequenceId {
    SequenceId {
        request: RequestId(1),
        index: choice,
    }
}

fn request(beam: BeamParameters, max_new_tokens: u32) -> EngineRequest {
    EngineRequest {
        cache_salt: Box::default(),
        priority: 0,
        prompt: vec![1],
        sampling: SamplingParams::default(),
        grammar: None,
        stopping: Stopping {
            max_new_tokens,
            min_new_tokens: 0,
            stop_token_ids: vec![0],
        },
        choices: 1,
        beam: Some(beam),
    }
}

/// The test's model: the same logprobs at every position.
fn next(logprobs: &[(u32, f32)]) -> Vec<Candidate> {
    let candidate = |&(id, logprob)| Candidate { id, logprob };
    logprobs.iter().map(candidate).collect()
}

fn run(beam: BeamParameters, steps: u32, model: &[(u32, f32)]) -> (Vec<Vec<u32>>, u32) {
    let mut search = BeamSearch::new(&request(beam, steps), id(0)).unwrap();
    let (mut last_fork, mut steps_taken) = (0, 0);
    let mut live = vec![id(0)];
    loop {
        steps_taken += 1;
        let mut then = Vec::new();
        for sequence in std::mem::take(&mut live) {
            let found = search.take(sequence, next(model), |sequence, tokens| {
                let others = tokens.len().saturating_sub(1) as u32;
                let forks: Vec<_> = (last_fork + 1..=last_fork + others).map(id).collect();
                last_fork += others;
                then.extend((!tokens.is_empty()).then_some(sequence));
                then.extend(&forks);
                forks
            });
            if let Some(found) = found {
                let ids = |f: &BeamOutput| f.tokens.iter().map(|t| t.id).collect();
                return (found.iter().map(ids).collect(), steps_taken);
            }
        }
        live = then;
        assert!(live.len() <= beam.width as usize);
    }
}

const MODEL: &[(u32, f32)] = &[(5, -0.5), (6, -1.0), (0, -3.0), (7, -4.0)];

#[test]
fn the_best_hypotheses_win_at_max_new_tokens() {
    let beam = BeamParameters {
        width: 2,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Never,
    };
    let (found, steps_taken) = run(beam, 3, MODEL);
    assert_eq!((found[0].clone(), steps_taken), (vec![5, 5, 5], 3));
    assert_eq!(found.len(), 2);
    assert_eq!(found[1].iter().filter(|&&id| id == 6).count(), 1);
}

/// Ended sequences free their blocks before the scheduler copies those of the others.
#[test]
fn sequences_without_continuation_end_before_others_fork() {
    let beam = BeamParameters {
        width: 2,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Never,
    };
    let mut search = BeamSearch::new(&request(beam, 9), id(0)).unwrap();
    let far_apart = next(&[(5, -0.1), (6, -9.0)]);
    assert_eq!(search.take(id(0), far_apart, |_, _| vec![id(1)]), None);
    let mut steered = Vec::new();
    for sequence in [id(0), id(1)] {
        let both_of_the_first = next(&[(5, -0.1), (6, -0.2)]);
        let found = search.take(sequence, both_of_the_first, |sequence, tokens| {
            steered.push((sequence, tokens.len()));
            vec![id(2); tokens.len().saturating_sub(1)]
        });
        assert_eq!(found, None);
    }
    assert_eq!(steered, [(id(1), 0), (id(0), 2)]);
}

#[test]
fn pruning_keeps_the_tokens_of_all_hypotheses() {
    let beam = BeamParameters {
        width: 8,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Never,
    };
    let mut wanted = request(beam, 6_000);
    wanted.sampling.top_logprobs = 1;
    let mut search = BeamSearch::new(&wanted, id(0)).unwrap();
    let (mut live, mut newest) = (vec![id(0)], 0);
    let mut hashes = HashMap::from([(id(0), 0)]);
    for step in 0..5_000_u32 {
        let mut then = Vec::new();
        for sequence in std::mem::take(&mut live) {
            // The best hypothesis changes at every step.
            let lead = ((step * 7 + sequence.index) % 11) as f32 / 10.0;
            let model = [(5, -0.5 - lead), (6, -1.0 - lead), (7, -4.0)];
            let found = search.take(sequence, next(&model), |sequence, tokens| {
                let first = newest + 1;
                newest += tokens.len().saturating_sub(1) as u32;
                let forks: Vec<_> = (first..=newest).map(id).collect();
                let before = hashes.remove(&sequence).unwrap();
                let going = std::iter::once(sequence).chain(forks.iter().copied());
                hashes.extend(
                    going
                        .clone()
                        .zip(tokens)
                        .map(|(id, t)| (id, hash(before, t.0))),
                );
                then.extend(going.take(tokens.len()));
                forks
            });
            assert_eq!(found, None);
        }
        live = then;
    }
    for line in &search.hypotheses {
        let (tokens, top_logprobs) = search.token_tree.path_to(line.last.unwrap());
        assert_eq!((tokens.len(), top_logprobs.len()), (5_000, 5_000));
        let folded = tokens.iter().fold(0, |before, t| hash(before, t.id));
        assert_eq!(Some(&folded), hashes.get(&line.sequence));
    }
    assert!(
        search.token_tree.len() < 12_000,
        "{}",
        search.token_tree.len()
    );
}

#[test]
fn early_stopping_ends_at_width_finished_hypotheses() {
    let ends = &[(0, -0.1), (5, -2.0), (6, -3.0), (7, -4.0)];
    let beam = |early_stopping| BeamParameters {
        width: 2,
        length_penalty: 5.0,
        early_stopping,
    };
    let (found, steps_taken) = run(beam(EarlyStopping::WhenFull), 9, ends);
    assert_eq!((found.len(), steps_taken), (2, 2));
    // With a large length penalty, longer hypotheses may always be better.
    assert_eq!(run(beam(EarlyStopping::Never), 9, ends).1, 9);
}

fn hash(before: u64, token: u32) -> u64 {
    let word = before.rotate_left(7) ^ u64::from(token);
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A model whose logprobs depend on all preceding tokens: the end token and three others.
fn model(history: &[u32]) -> Vec<Candidate> {
    let before = history.iter().fold(1, |before, &token| hash(before, token));
    let mut candidates: Vec<_> = [0, 5, 6, 7]
        .map(|token| Candidate {
            id: token,
            logprob: -((hash(before, token) >> 40) as f32) / (1 << 22) as f32,
        })
        .to_vec();
    candidates.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    candidates
}

/// All sequences of at most `most` tokens, best first.
fn all_answers(most: usize, length_penalty: f32) -> Vec<(Vec<u32>, f32)> {
    let mut answers = Vec::new();
    let mut going = vec![(Vec::new(), 0.0)];
    while let Some((tokens, score)) = going.pop() {
        for Candidate { id, logprob } in model(&tokens) {
            let longer = [&tokens[..], &[id]].concat();
            let score: f32 = score + logprob;
            if id == 0 || longer.len() == most {
                let length = longer.len() as f32;
                answers.push((longer, score / length.powf(length_penalty)));
            } else {
                going.push((longer, score));
            }
        }
    }
    answers.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    answers
}

/// A search wide enough to keep everything finds all sequences in order of their score, with the
/// right logprobs and the top logprobs at each position.
#[test]
fn a_wide_search_finds_the_best_of_all_sequences() {
    for length_penalty in [-0.5, 0.0, 1.0, 2.5] {
        let beam = BeamParameters {
            width: 200,
            length_penalty,
            early_stopping: EarlyStopping::Never,
        };
        let found = search_with(beam, 4);
        let expected = all_answers(4, length_penalty);
        assert_eq!(found.len(), expected.len());
        for (found, (tokens, rating)) in found.iter().zip(&expected) {
            let ids: Vec<_> = found.tokens.iter().map(|token| token.id).collect();
            assert_eq!(&ids, tokens);
            let sum: f32 = found.tokens.iter().map(|token| token.logprob).sum();
            let length = (tokens.len() as f32).powf(length_penalty);
            assert!((sum / length - rating).abs() < 1e-5);
            let stopped = tokens.last() == Some(&0);
            let end = [End::Length, End::StopToken][usize::from(stopped)].clone();
            assert_eq!(found.end, end);
            for (at, top_logprobs) in found.top_logprobs.iter().enumerate() {
                assert_eq!(top_logprobs[..], model(&tokens[..at])[..2], "position {at}");
            }
            assert_eq!(found.top_logprobs.len(), tokens.len());
        }
    }
}

fn search_with(beam: BeamParameters, most: u32) -> Vec<BeamOutput> {
    let mut wanted = request(beam, most);
    wanted.sampling.top_logprobs = 2;
    let mut search = BeamSearch::new(&wanted, id(0)).unwrap();
    let mut histories = HashMap::from([(id(0), Vec::new())]);
    let mut newest = 0;
    loop {
        let mut longer = HashMap::new();
        for sequence in histories.keys().copied().collect::<Vec<_>>() {
            let next = model(&histories[&sequence]);
            let found = search.take(sequence, next, |sequence, tokens| {
                let first = newest + 1;
                newest += tokens.len().saturating_sub(1) as u32;
                let forks: Vec<_> = (first..=newest).map(id).collect();
                let going = std::iter::once(sequence).chain(forks.iter().copied());
                for (id, token) in going.zip(tokens) {
                    longer.insert(id, [&histories[&sequence][..], &[token.0]].concat());
                }
                forks
            });
            if let Some(found) = found {
                return found;
            }
        }
        histories = longer;
    }
}

/// Whether a search continues once it has `width` finished hypotheses: here two, after two steps,
/// with and without length penalty.
#[test]
fn a_beam_search_ends_when_no_better_hypothesis_is_possible() {
    use EarlyStopping::{Heuristic, Never, WhenFull};
    // Running hypotheses score at most -0.2 per token, finished ones -0.1 and -0.3.
    let hopeless: &[_] = &[(0, -0.1), (5, -0.2), (6, -3.0), (7, -4.0)];
    // Running hypotheses score -0.1 per token, finished ones -0.5 and -0.6.
    let hopeful: &[_] = &[(5, -0.1), (0, -0.5), (6, -3.0), (7, -4.0)];
    let rows = [
        (hopeless, Heuristic, 1.0, 2),
        (hopeless, WhenFull, 1.0, 2),
        (hopeless, Never, 1.0, 5),
        (hopeless, Never, 0.0, 2),
        (hopeless, Never, -1.0, 2),
        (hopeful, WhenFull, 1.0, 2),
        (hopeful, Heuristic, 1.0, 6),
        (hopeful, Heuristic, 0.0, 6),
        (hopeful, Never, -1.0, 4),
    ];
    for (model, early_stopping, length_penalty, expected_steps) in rows {
        let beam = BeamParameters {
            width: 2,
            length_penalty,
            early_stopping,
        };
        let row = (early_stopping, length_penalty, model[0].0);
        assert_eq!(run(beam, 6, model).1, expected_steps, "{row:?}");
    }
}

#[test]
fn impossible_or_low_ranked_continuations_are_not_results() {
    let beam = BeamParameters {
        width: 2,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Never,
    };
    // The end token ranks third, below the best two, until the last step.
    let low: &[_] = &[(5, -1.0), (6, -1.5), (0, -2.0), (7, f32::NEG_INFINITY)];
    assert_eq!(run(beam, 2, low), (vec![vec![5, 5], vec![5, 6]], 2));
    let nothing: &[_] = &[(5, f32::NEG_INFINITY), (0, f32::NEG_INFINITY)];
    assert_eq!(run(beam, 2, nothing), (vec![], 1));
    // Had the end token counted in second place, one result would have been enough.
    let greedy = BeamParameters {
        width: 1,
        early_stopping: EarlyStopping::WhenFull,
        ..beam
    };
    let close = &[(5, -1.0), (0, -1.1)];
    assert_eq!(run(greedy, 3, close), (vec![vec![5, 5, 5]], 3));
}

#[test]
fn results_have_top_logprobs_only_on_request() {
    for (count, expected) in [(0, vec![]), (1, vec![next(&MODEL[..1])])] {
        let beam = BeamParameters {
            width: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Never,
        };
        let mut request = request(beam, 1);
        request.sampling.top_logprobs = count;
        let mut search = BeamSearch::new(&request, id(0)).unwrap();
        let found = search.take(id(0), next(MODEL), |_, _| vec![]).unwrap();
        assert_eq!(found[0].top_logprobs, expected);
    }
}

#[test]
fn candidate_count_is_width_plus_end_tokens() {
    let beam = BeamParameters {
        width: 3,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Never,
    };
    assert_eq!([0, 2].map(|ends| beam.candidate_count(ends)), [3, 5]);
}
