//! `penstock tune`: measures which kernels are fastest for a model on this GPU. `python -m
//! penstock.tune` measures and writes to the terminal itself.

use std::process::Command;

use crate::cli::TuneArgs;
use crate::error::Outcome;
use crate::hub::ModelSource;
use crate::interpreter::Interpreter;

/// Measures kernels and writes a user table, which workers prefer.
///
/// # Errors
/// If the model cannot be found or if measuring fails; Python has printed the reason then.
pub fn tune(args: &TuneArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(args.model.as_deref(), args.revision.as_deref())?;
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let directory = source.fetch(|| Ok(interpreter.clone()), None)?;
    let mut command = Command::new(&interpreter.path);
    command
        .args(["-m", "penstock.tune", "--model"])
        .arg(&directory)
        .args(["--tp", &args.tp.to_string()])
        .args(["--seconds", &args.seconds.to_string()]);
    interpreter.run(command, "tuning")
}
