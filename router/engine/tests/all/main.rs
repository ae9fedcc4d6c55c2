//! All tests of the engine in one program, which is linked once.

mod beam;
mod choices;
mod deadlines;
mod dropped_choices;
mod faults;
mod golden;
mod grammar_end;
mod group;
mod kv_groups;
mod limits;
mod logprobs;
mod metrics;
mod panics;
mod poison;
mod random_load;
mod support;
mod tokens;
