//! `penstock quantize`: writes a quantized checkpoint. `python -m penstock.quantize` does the work
//! and writes to the terminal itself.

use std::process::Command;

use crate::cli::QuantizeArgs;
use crate::error::Outcome;
use crate::hub::ModelSource;
use crate::interpreter::Interpreter;

/// Quantizes a model into a new directory.
///
/// # Errors
/// If the model cannot be found or if quantizing fails; Python has printed the reason then.
pub fn quantize(args: &QuantizeArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let directory = source.fetch(|| Ok(interpreter.clone()), None)?;
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
    if let Some(file) = &args.calibration {
        command.arg("--calibration").arg(file);
    }
    if args.cpu {
        command.args(["--device", "cpu"]);
    }
    interpreter.run(command, "quantizing")
}
