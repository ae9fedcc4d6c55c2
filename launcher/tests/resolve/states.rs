//! Models with recurrent layers, beside attention and alone.

use super::*;
use penstock::states::States;

#[test]
fn states_take_memory_beside_keys_and_values() {
    let config = serde_json::json!({
        "model_type": "qwen3_next", "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    });
    let states = States::of(&config, 8).unwrap();
    let plan = |hardware: &Hardware, flags: &[&str]| {
        let settings = settings(flags, &[]).unwrap();
        let model = ModelFacts {
            states: Some(states),
            ..model()
        };
        resolve(engine(&settings), &settings.sources, &model, hardware)
    };
    let found = plan(&host(0), &["--max-slots", "2"]).unwrap();
    let bytes = states.bytes(Dtype::Float32, 1);
    assert_eq!(found.memory.state_bytes, bytes);
    let one = found.memory.block_bytes * 2048 / 16;
    assert_eq!(found.memory.kv_bytes.value, Some(2 * one + 4 * bytes));
    let error = plan(&host(8), &["--tp", "8"]).unwrap_err().to_string();
    assert!(error.contains("linear_num_key_heads 4"), "{error}");
}

/// The page of a plan, with defaults of all that is not in it.
fn explained(plan: &Plan) -> String {
    let Settings { cli, sources } = settings(&[], &[]).unwrap();
    let Command::Serve(args) = cli.command else {
        panic!("not serve")
    };
    let bounds = resolve_http(&args.http, &sources, 1);
    let life = resolve_life(&args.life, &sources);
    explain(plan, &bounds, &life, &[], &GenerationDefaults::default())
}

#[test]
fn models_without_attention_have_states_alone() {
    let config = serde_json::json!({
        "model_type": "falcon_mamba", "hidden_size": 512, "intermediate_size": 1024,
    });
    let states = States::of(&config, 4).unwrap();
    let found = |flags: &[&str]| {
        let settings = settings(flags, &[]).unwrap();
        let model = ModelFacts {
            layers: 0,
            heads: 0,
            kv_heads: 0,
            head_dim: 0,
            states: Some(states),
            ..model()
        };
        let found = resolve(engine(&settings), &settings.sources, &model, &host(0));
        found.map_err(|error| error.to_string())
    };
    let plan = found(&["--max-slots", "2"]).unwrap();
    let bytes = states.bytes(Dtype::Float32, 1);
    assert_eq!(
        (plan.memory.block_bytes, plan.memory.state_bytes),
        (0, bytes)
    );
    assert_eq!(plan.memory.kv_bytes.value, Some(4 * bytes));
    let page = explained(&plan);
    for words in [
        "no layer has attention",
        "nothing in the model limits it",
        "4              states",
    ] {
        assert!(page.contains(words), "{page}");
    }
    assert!(!page.contains("kv-dtype"), "{page}");
    assert_eq!(found(&["--tp", "8"]).unwrap().tp.value, 8);
    for (flags, words) in [
        (
            ["--tp", "3"],
            "(the number of Mamba channels 1024): use one of 1, 2, 4",
        ),
        (["--kv-memory", "1KiB"], "whose 3 states need"),
        (
            ["--kv-dtype", "int8"],
            "has no keys and values: leave it out",
        ),
        (["--max-len", "1048577"], "exceeds 1048576 tokens"),
    ] {
        let error = found(&flags).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    // Longer than the default, which nothing in the model asks for.
    let plan = found(&["--max-len", "1048576"]).unwrap();
    assert_eq!(plan.limits.max_sequence_tokens.value, 1 << 20);
}
