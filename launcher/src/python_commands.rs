//! Commands that a Python module carries out: `penstock tune`, `quantize` and `convert`. The module
//! writes to the terminal itself.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::runtime::Builder;

use crate::cli::{ConvertArgs, QuantizeArgs, TuneArgs};
use crate::error::{Failure, FailureKind, Outcome};
use crate::hub::ModelSource;
use crate::interpreter::Interpreter;
use crate::signals::SignalStreams;

/// Measures which kernels are fastest for a model on this GPU, and writes a user table, which workers
/// prefer.
///
/// # Errors
/// If the model cannot be found or if measuring fails; Python has printed the reason then.
pub fn tune(args: &TuneArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(args.model.as_deref(), args.revision.as_deref())?;
    let (interpreter, directory) = fetched(&source, args.python.as_deref(), host)?;
    let mut command = interpreter.leased("penstock.tune");
    command
        .arg("--model")
        .arg(&directory)
        .args(["--tp", &args.tp.to_string()])
        .args(["--seconds", &args.seconds.to_string()]);
    run(command, "tuning")
}

/// Quantizes a model into a new directory.
///
/// # Errors
/// If the model cannot be found or if quantizing fails; Python has printed the reason then.
pub fn quantize(args: &QuantizeArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let (interpreter, directory) = fetched(&source, args.python.as_deref(), host)?;
    let mut command = interpreter.leased("penstock.quantize");
    command
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
    run(command, "quantizing")
}

/// Converts a checkpoint of another layout into a new directory.
///
/// # Errors
/// If the checkpoint cannot be found or if the conversion fails; Python has printed the reason then.
pub fn convert(args: &ConvertArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let mut command = interpreter.leased("penstock.convert");
    command.arg(&args.model).arg(&args.out);
    run(command, "converting")
}

/// Runs a leased command that writes to the terminal itself, until it ends. SIGTERM and SIGINT of
/// this process reach the command; other ends of this process end it by the lease. `work` names it
/// in messages.
///
/// # Errors
/// If it cannot start or fails; it has printed the reason then.
fn run(command: Command, work: &str) -> Outcome<()> {
    let shown = command.get_program().display().to_string();
    let runtime = Builder::new_current_thread().enable_all().build();
    let status = runtime.and_then(|runtime| runtime.block_on(ended(command)));
    let status =
        status.map_err(|error| Failure::runtime(format!("cannot start {shown}: {error}")))?;
    if status.success() {
        return Ok(());
    }
    let signal = status.signal().map(|number| 128 + number);
    let code = status.code().or(signal);
    let code = code.and_then(|code| u8::try_from(code).ok());
    Err(Failure {
        kind: FailureKind::Command(code.unwrap_or(1)),
        message: format!("{work} failed ({status})."),
    })
}

/// Starts a leased command, passes signals on to it, and returns how it ended.
async fn ended(command: Command) -> io::Result<ExitStatus> {
    let mut signals = SignalStreams::listen()?;
    let mut child = tokio::process::Command::from(command).spawn()?;
    let _lease = child.stdin.take();
    loop {
        let kind = tokio::select! {
            status = child.wait() => return status,
            kind = signals.next() => kind,
        };
        let signal = Signal::try_from(kind.as_raw_value())?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id {
            // It has not been waited for, so the id is still its own.
            kill(Pid::from_raw(id), signal)?;
        }
    }
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
