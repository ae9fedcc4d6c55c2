use super::*;

fn load(decodes: u32, context: u64, position: u32, prompt: u32) -> StepLoad {
    let mut load = StepLoad {
        decodes,
        context,
        ..StepLoad::default()
    };
    if prompt > 0 {
        load.add_prompt(position, prompt);
    }
    load
}

fn took(load: StepLoad) -> u64 {
    let decode = 5_000 + 30 * u64::from(load.decodes) + load.context / 50;
    let prefill = 4 * u64::from(load.prompt) + load.pairs / 2_000;
    decode + prefill
}

/// Decodes with and without prompts, of all depths.
fn fitted() -> StepCost {
    let mut cost = StepCost::default();
    for step in 0..2_000_u32 {
        let context = u64::from(step % 37) * 2_000;
        let prompt = (step % 3) * (step % 7) * 100;
        let load = load(step % 61, context, step % 11 * 1_000, prompt);
        cost.observe(load, took(load), Micros(0));
    }
    cost
}

#[test]
fn the_fit_recovers_known_costs() {
    let cost = fitted();
    for seen in [
        load(100, 50_000, 0, 0),
        load(10, 5_000, 8_000, 1_000),
        load(0, 0, 0, 4_000),
    ] {
        let (is, predicted) = (took(seen) as f64, cost.predict(seen).unwrap());
        assert!((predicted / is - 1.0).abs() < 0.02, "{predicted} for {is}");
    }
}

/// 32 streams whose contexts grow by a token a step, on a device that slows by as much as their
/// attention grows. Attention then seems to take that share of a step.
fn warming(decode_reads: DecodeReads) -> f64 {
    let mut cost = StepCost::new(&[], decode_reads);
    for step in 0..600 {
        let load = load(32, 20_000 + 32 * step, 0, 0);
        let took = 5_000.0 + load.context as f64 * 0.03 + step as f64 * 32.0 * 0.03;
        cost.observe(load, took as u64, Micros(0));
    }
    let seen = load(32, 40_000, 0, 0);
    cost.attention(seen) / cost.predict(seen).unwrap()
}

#[test]
fn device_slowdown_is_not_attributed_to_attention() {
    // 1.2 of 6.8 milliseconds, and as much again since the start.
    let (weights, token) = (16_000_000_000, 96_000);
    let known = warming(DecodeReads { weights, token });
    let unknown = warming(DecodeReads::default());
    assert!((0.15..0.22).contains(&known), "{known}");
    assert!(unknown > 0.3, "{unknown}");
}

/// A small model: launches take longer than weights, and a token's keys and values are large beside
/// the weights.
#[test]
fn observations_outweigh_the_attention_prior() {
    let (weights, token) = (23_080_000, 4_096);
    let mut cost = StepCost::new(&[], DecodeReads { weights, token });
    let took = |load: StepLoad| 400.0 + 0.3 * f64::from(load.decodes) + load.context as f64 / 1e3;
    let step = |step: u32| {
        let decodes = [256, 8][(step / 100 % 2) as usize];
        load(decodes, u64::from(decodes * (100 + step % 400)), 0, 0)
    };
    for seen in (0..4_000).map(step) {
        cost.observe(seen, took(seen) as u64, Micros(0));
    }
    for seen in (0..400).map(step) {
        let share = cost.predict(seen).unwrap() / took(seen);
        assert!((0.85..1.15).contains(&share), "{share} of {seen:?}");
    }
}

#[test]
fn a_chunk_shrinks_with_the_depth_of_its_prompt() {
    let cost = fitted();
    let beside = load(32, 20_000, 0, 0);
    let target = 2 * took(beside);
    let chunks = [0, 16_000, 32_000].map(|position| {
        let tokens = cost.prompt_tokens(beside, position, target as f64).unwrap();
        let chunk = took(load(32, 20_000, position, tokens)) as f64;
        assert!((chunk / target as f64 - 1.0).abs() < 0.02, "{chunk}");
        tokens
    });
    assert!(chunks.is_sorted_by(|a, b| a > b), "{chunks:?}");
}

/// The weights are read once: a short chunk beside decodes costs less than alone.
#[test]
fn a_chunk_beside_decodes_costs_less_than_alone() {
    let hidden = |load: StepLoad| 3_000 + 25 * u64::from(load.decodes + load.prompt).max(200);
    let mut cost = StepCost::default();
    for step in 0..500_u32 {
        let load = load(32, 0, 0, if step % 3 == 0 { 0 } else { 200 + step % 100 });
        cost.observe(load, hidden(load), Micros(0));
    }
    let tokens = cost.prompt_tokens(load(32, 0, 0, 0), 0, 12_000.0).unwrap();
    assert!((310..350).contains(&tokens), "{tokens}");
}

/// A quiet night: few streams, now and then a prompt. The fit neither drifts nor diverges.
#[test]
fn the_fit_is_stable_under_steady_traffic() {
    let mut cost = StepCost::default();
    for step in 0..1_000_000_u32 {
        let prompt = if step % 1_000 == 0 { 500 } else { 0 };
        let load = load(5 + step / 100 % 3, 4_000, 0, prompt);
        cost.observe(load, took(load), Micros(0));
    }
    let beside = load(6, 4_000, 0, 0);
    let target = took(load(6, 4_000, 0, 500));
    let tokens = cost.prompt_tokens(beside, 0, target as f64).unwrap();
    assert!((450..550).contains(&tokens), "{tokens}");
}

/// A large step that compiled a kernel does not predict later steps.
#[test]
fn a_single_outlier_step_is_ignored() {
    let (mut cost, large) = (fitted(), load(32, 9_000, 0, 8_000));
    let before = cost.predict(large).unwrap();
    cost.observe(large, 1_600_000, Micros(0));
    let after = cost.predict(large).unwrap();
    assert!(
        (after / before - 1.0).abs() < 1e-6,
        "{after} after {before}"
    );
}

#[test]
fn persistently_slow_steps_are_learnt() {
    let (mut cost, beside) = (fitted(), load(32, 9_000, 0, 0));
    for _ in 0..1_000 {
        cost.observe(beside, 10 * took(beside), Micros(0));
    }
    let ratio = cost.predict(beside).unwrap() / took(beside) as f64;
    assert!((9.0..11.0).contains(&ratio), "{ratio}");
}

#[test]
fn slow_first_steps_are_forgotten() {
    let mut cost = StepCost::default();
    let [decode, prefill] = [load(32, 9_000, 0, 0), load(32, 9_000, 0, 512)];
    for step in 0..40 {
        let compiling = if step < 2 { 3_000_000 } else { 0 };
        cost.observe(decode, took(decode) + compiling, Micros(0));
        cost.observe(prefill, took(prefill) + compiling, Micros(0));
    }
    let ratio = cost.predict(prefill).unwrap() / took(prefill) as f64;
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
}

/// The costs of sizes stay known, so no step is a surprise.
#[test]
fn a_fit_learnt_from_an_outlier_is_discarded() {
    let mut cost = StepCost::new(&[128, 256, 1_024], DecodeReads::default());
    let [decode, prefill] = [load(32, 9_000, 0, 0), load(32, 9_000, 0, 200)];
    for step in 0..60 {
        let compiling = if step == 5 { 3_000_000 } else { 0 };
        cost.observe(decode, took(decode), Micros(step));
        // A kernel is compiled when the first prompts run.
        if step >= 5 {
            cost.observe(prefill, took(prefill) + compiling, Micros(step));
        }
        if let Some(least) = cost.least(decode) {
            assert!(
                least < 2.0 * took(prefill) as f64,
                "{least} us at step {step}"
            );
        }
    }
    let other = load(32, 9_000, 0, 900);
    let ratio = cost.predict(other).unwrap() / took(other) as f64;
    assert!((0.5..2.0).contains(&ratio), "{ratio}");
}

/// Disturbed decodes, and then none alone, because prompts keep coming.
#[test]
fn decodes_take_no_longer_than_with_a_chunk_beside_them() {
    let mut cost = StepCost::new(&[64, 256], DecodeReads::default());
    let decode = load(32, 9_000, 0, 0);
    let prefill = load(32, 9_000, 0, 32);
    for step in 0..200 {
        if step < 8 {
            cost.observe(decode, 2 * took(decode), Micros(step));
        }
        cost.observe(prefill, took(prefill), Micros(step));
    }
    assert!(cost.predict(decode).unwrap() > 1.5 * took(prefill) as f64);
    let alone = cost.alone(decode).unwrap();
    assert!(alone < 1.05 * took(prefill) as f64, "{alone}");
}

/// A size whose step was disturbed seems too long for any pace; only a retry corrects that.
#[test]
fn a_size_that_was_slow_long_ago_is_tried_again() {
    let mut cost = StepCost::new(&[256, 512, 1_024], DecodeReads::default());
    let [decode, short, prefill, large] =
        [0, 200, 480, 900].map(|prompt| load(32, 9_000, 0, prompt));
    for step in 0..100 {
        for seen in [decode, short, prefill] {
            cost.observe(seen, took(seen), Micros(step));
        }
        if step == 20 {
            cost.observe(large, took(large) * 3 / 2, Micros(step));
        }
    }
    let target = 1.2 * took(large) as f64;
    assert!(cost.predict(large).unwrap() > target);
    cost.observe(prefill, took(prefill), Micros(20_000_000));
    let again = cost.predict(large).unwrap();
    assert!(again < target, "{again}");
    assert_eq!(cost.tokens_that_fit(decode, 0, 900, target), Some(900));
}

/// Long-running streams whose contexts seem free at times: predictions for other contexts do not
/// jump from step to step.
#[test]
fn cheap_contexts_do_not_make_predictions_jump() {
    let mut cost = StepCost::default();
    let longer = load(32, 64_000, 0, 0);
    let mut last = None;
    for step in 0..600_u64 {
        let decodes = 20 + (step / 7 % 13) as u32;
        let now = load(decodes, u64::from(decodes) * (600 + step), 0, 0);
        let tremor = 970 + step * 7_919 % 61;
        cost.observe(now, took(now) * tremor / 1_000, Micros(step));
        let predicted = cost.predict(longer);
        if let (Some(before), Some(after)) = (last, predicted)
            && step > 60
        {
            let jump: f64 = after / before;
            assert!((0.85..1.15).contains(&jump), "{jump} at step {step}");
        }
        last = predicted;
    }
}

/// A step that compiled a kernel, among the first steps with prompts, all of them short.
#[test]
fn deep_prompts_are_never_predicted_free() {
    let beside = load(32, 16_000, 0, 0);
    for disturbed in 0..8 {
        let mut cost = StepCost::default();
        for step in 0..16 {
            cost.observe(beside, took(beside), Micros(step));
            let prefill = load(32, 16_000, 0, 512 - 16 * (step as u32 % 3));
            let compiling = if step == disturbed { 300_000 } else { 0 };
            cost.observe(prefill, took(prefill) + compiling, Micros(step));
            let fits = |position, target| cost.tokens_that_fit(beside, position, 8_160, target);
            let long = took(load(32, 16_000, 0, 4_000)) as f64;
            let fitting = fits(24_000, long).unwrap_or(0);
            assert!(fitting < 8_160, "{disturbed}, {step}: {fitting}");
        }
    }
}

/// The first step of an unknown size was disturbed.
#[test]
fn a_size_cost_learnt_from_an_outlier_is_discarded() {
    let mut cost = StepCost::new(&[256, 768], DecodeReads::default());
    let [decode, short] = [load(32, 9_000, 0, 0), load(32, 9_000, 0, 200)];
    for step in 0..8 {
        cost.observe(decode, took(decode), Micros(step));
    }
    // Four disturbed steps in a row leave nothing better to learn from.
    let other = load(32, 9_000, 0, 700);
    for _ in 0..4 {
        cost.observe(other, took(other) + 1_000_000, Micros(8));
    }
    for step in 9..20 {
        cost.observe(other, took(other), Micros(step));
        cost.observe(short, took(short), Micros(step));
    }
    for load in [other, short] {
        let ratio = cost.predict(load).unwrap() / took(load) as f64;
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
    }
}

#[test]
fn predicts_nothing_before_enough_observations() {
    let mut cost = StepCost::default();
    cost.observe(load(1, 0, 0, 0), 10, Micros(0));
    cost.observe(load(1, 0, 0, 0), 0, Micros(0));
    assert_eq!(cost.predict(load(1, 0, 0, 0)), None);
    assert_eq!(cost.prompt_tokens(load(1, 0, 0, 0), 0, 1_000.0), None);
}

/// Chunks that cost nothing beside decodes, and now and then a large one that takes more than twice
/// as long: not every surprise is a disturbance.
#[test]
fn a_repeatedly_underestimated_size_is_learnt() {
    let mut cost = StepCost::new(&[128, 512], DecodeReads::default());
    let [decode, short, large] = [0, 90, 480].map(|prompt| load(29, 9_000, 0, prompt));
    for step in 0..900 {
        let (seen, took) = match step % 15 {
            0 if step > 300 => (large, 2_150),
            1..8 => (short, 750),
            _ => (decode, 740),
        };
        cost.observe(seen, took, Micros(step));
    }
    let predicted = cost.predict(large).unwrap();
    assert!((1_900.0..2_400.0).contains(&predicted), "{predicted}");
}

/// The time of decodes was learnt wrongly, and prompts keep coming: the pace still holds.
#[test]
fn halved_decode_times_keep_the_prompt_budget_limited() {
    let mut cost = StepCost::new(&[128, 512], DecodeReads::default());
    let [decode, prefill] = [0, 400].map(|prompt| load(32, 9_000, 0, prompt));
    for step in 0..40 {
        cost.observe(decode, 8_000, Micros(step));
        cost.observe(prefill, 9_000, Micros(step));
    }
    cost.observe(decode, 3_000, Micros(40));
    let alone = cost.alone(decode).unwrap();
    assert!((2_900.0..3_100.0).contains(&alone), "{alone}");
    for step in 41..60 {
        cost.observe(prefill, 4_000, Micros(step));
    }
    let least = cost.least(decode).unwrap();
    assert!((2_900.0..4_100.0).contains(&least), "{least}");
}
