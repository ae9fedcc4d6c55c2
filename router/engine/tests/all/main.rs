//! All engine tests in one program, which mutation testing builds and links once per mutant.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::duplicate_mod
)]

#[path = "engine_beam.rs"]
mod beam;
#[path = "engine_choices.rs"]
mod choices;
#[path = "engine_dropped_choices.rs"]
mod dropped_choices;
#[path = "engine_faults.rs"]
mod faults;
#[path = "engine_grammar_end.rs"]
mod grammar_end;
#[path = "engine_group.rs"]
mod group;
#[path = "engine_limits.rs"]
mod limits;
#[path = "engine_logprobs.rs"]
mod logprobs;
#[path = "engine_metrics.rs"]
mod metrics;
#[path = "engine_panics.rs"]
mod panics;
#[path = "engine_random_load.rs"]
mod random_load;
#[path = "engine_tokens.rs"]
mod tokens;

#[test]
fn engine_all_includes_every_engine_test_file() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let wanted = name.starts_with("engine_") && name != "engine_all.rs";
        let included = include_str!("engine_all.rs").contains(&format!("\"{name}\""));
        assert!(included || !wanted, "engine_all.rs lacks {name}");
    }
}
