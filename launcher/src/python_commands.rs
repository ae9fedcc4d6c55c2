//! Commands that a Python module carries out: `penstock tune`, `quantize` and `convert`. The module
//! writes to the terminal itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::{ConvertArgs, QuantizeArgs, TuneArgs};
use crate::error::Outcome;
use crate::hub::ModelSource;
use crate::interpreter::Interpreter;

/// Measures which kernels are fastest for a model on this GPU, and writes a user table, which workers
/// prefer.
///
/// # Errors
/// If the model cannot be found or if measuring fails; Python has printed the reason then.
pub fn tune(args: &TuneArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(args.model.as_deref(), args.revision.as_deref())?;
    let (interpreter, directory) = fetched(&source, args.python.as_deref(), host)?;
    let mut command = Command::new(&interpreter.path);
    command
        .args(["-m", "penstock.tune", "--model"])
        .arg(&directory)
        .args(["--tp", &args.tp.to_string()])
        .args(["--seconds", &args.seconds.to_string()]);
    interpreter.run(command, "tuning")
}

/// Quantizes a model into a new directory.
///
/// # Errors
/// If the model cannot be found or if quantizing fails; Python has printed the reason then.
pub fn quantize(args: &QuantizeArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let (interpreter, directory) = fetched(&source, args.python.as_deref(), host)?;
    let mut command = Command::new(&interpreter.path);
    command
        .args(["-m", "penstock.quantize"])
        .arg(&directory)
        .arg(&args.out)
        .args(["--method", &args.method])
        .args(["--bits", &args.bits.to_string()])
        .args(["--group", &args.group.to_string()])
        .args(["--damp", &args.damp.to_string()])
        .args(["--samples", &args.samples.to_string()])
        .args(["--length", &args.length.to_string()]);
    if args.asymmetric {
        command.arg("--asymmetric");
    }
    if args.act_order {
        command.arg("--act-order");
    }
    if args.mse {
        command.arg("--mse");
    }
    if let Some(file) = &args.calibration {
        command.arg("--calibration").arg(file);
    }
    if args.cpu {
        command.args(["--device", "cpu"]);
    }
    interpreter.run(command, "quantizing")
}

/// Converts a checkpoint of another layout into a new directory.
///
/// # Errors
/// If the checkpoint cannot be found or if the conversion fails; Python has printed the reason then.
pub fn convert(args: &ConvertArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let directory = source.fetch_to_convert(&interpreter)?;
    let mut command = Command::new(&interpreter.path);
    command
        .args(["-m", "penstock.convert"])
        .arg(&directory)
        .arg(&args.out);
    interpreter.run(command, "converting")
}

/// Returns the interpreter, and the directory of the model's files.
fn fetched(
    source: &ModelSource,
    python: Option<&Path>,
    host: Option<&Interpreter>,
) -> Outcome<(Interpreter, PathBuf)> {
    let interpreter = Interpreter::find(python, host)?;
    let directory = source.fetch(|| Ok(interpreter.clone()), None)?;
    Ok((interpreter, directory))
}
