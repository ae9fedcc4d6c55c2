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
use crate::values::QuantizeMethod;

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
/// If the method does not have an option, the model cannot be found or quantizing fails; Python has
/// printed the reason then.
pub fn quantize(args: &QuantizeArgs, host: Option<&Interpreter>) -> Outcome<()> {
    check_options(args)?;
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let (interpreter, directory) = fetched(&source, args.python.as_deref(), host)?;
    let mut command = interpreter.leased("penstock.quantize");
    command
        .arg(&directory)
        .arg(&args.out)
        .args(["--method", args.method.name()])
        .args(["--samples", &args.samples.to_string()])
        .args(["--length", &args.length.to_string()]);
    for (option, value) in [
        ("--bits", args.bits.map(|bits| bits.to_string())),
        ("--group", args.group.map(|group| group.to_string())),
        ("--damp", args.damp.map(|damp| damp.to_string())),
    ] {
        if let Some(value) = value {
            command.args([option, &value]);
        }
    }
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

/// Refuses options that the method would ignore, before a model is fetched.
fn check_options(args: &QuantizeArgs) -> Outcome<()> {
    use QuantizeMethod::{Awq, Gptq, Rtn};
    let options: [(&str, bool, &[QuantizeMethod]); 6] = [
        ("--bits", args.bits.is_some(), &[Gptq, Rtn]),
        ("--group", args.group.is_some(), &[Gptq, Awq, Rtn]),
        ("--asymmetric", args.asymmetric, &[Gptq, Rtn]),
        ("--act-order", args.act_order, &[Gptq]),
        ("--mse", args.mse, &[Gptq, Rtn]),
        ("--damp", args.damp.is_some(), &[Gptq]),
    ];
    for (option, given, methods) in options {
        if given && !methods.contains(&args.method) {
            let names: Vec<_> = methods.iter().map(|method| method.name()).collect();
            return Err(Failure::usage(format!(
                "{option} does not apply to --method {}; it applies to {}. Leave it out.",
                args.method.name(),
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// Converts a checkpoint of another layout into a new directory.
///
/// # Errors
/// If the checkpoint cannot be found or if the conversion fails; Python has printed the reason then.
pub fn convert(args: &ConvertArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(Some(args.model.as_str()), args.revision.as_deref())?;
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let directory = source.fetch_to_convert(&interpreter)?;
    let mut command = interpreter.leased("penstock.convert");
    command.arg(&directory).arg(&args.out);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Subcommand};
    use clap::Parser as _;

    fn parsed(options: &str) -> Result<QuantizeArgs, String> {
        let words = ["penstock", "quantize", "MODEL", "OUT", "--method"];
        let words = words.into_iter().chain(options.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Subcommand::Quantize(args) = cli.command else {
            panic!("not quantize: {:?}", cli.command);
        };
        check_options(&args).map_err(|failure| {
            assert_eq!(failure.kind, FailureKind::Usage);
            failure.message
        })?;
        Ok(args)
    }

    #[test]
    fn options_that_a_method_would_ignore_are_refused_by_name() {
        for (options, refused, applies) in [
            ("fp8 --bits 4", "--bits", "gptq, rtn"),
            ("fp8 --group 64", "--group", "gptq, awq, rtn"),
            ("fp8 --group 128", "--group", "gptq, awq, rtn"),
            ("fp8 --asymmetric", "--asymmetric", "gptq, rtn"),
            ("awq --asymmetric", "--asymmetric", "gptq, rtn"),
            ("awq --bits 4", "--bits", "gptq, rtn"),
            ("awq --mse", "--mse", "gptq, rtn"),
            ("rtn --act-order", "--act-order", "gptq"),
            ("rtn --damp 0.5", "--damp", "gptq"),
            ("awq --damp 0.01", "--damp", "gptq"),
        ] {
            let method = options.split(' ').next().unwrap_or_default();
            let expected = format!(
                "{refused} does not apply to --method {method}; it applies to {applies}. Leave it \
                 out."
            );
            assert_eq!(parsed(options).map(|_| ()), Err(expected), "{options}");
        }
        for options in [
            "fp8",
            "awq --group 64",
            "rtn --bits 8 --group 32 --asymmetric --mse",
            "gptq --bits 4 --group 128 --asymmetric --act-order --mse --damp 0.1",
        ] {
            assert!(parsed(options).is_ok(), "{options}");
        }
    }

    #[test]
    fn a_group_of_minus_one_is_all_of_a_row() {
        let group = |options| parsed(options).map(|args| args.group);
        assert_eq!(group("gptq"), Ok(None));
        assert_eq!(group("gptq --group 64"), Ok(Some(64)));
        assert_eq!(group("gptq --group -1"), Ok(Some(0)));
        assert_eq!(group("rtn --group=-1"), Ok(Some(0)));
        assert_eq!(group("awq --group 0"), Ok(Some(0)));
    }

    #[test]
    fn wrong_values_are_refused_with_rule_and_value() {
        for (options, rule) in [
            (
                "gptq --group -2",
                "'-2' for '--group <N>': not a multiple of 16",
            ),
            (
                "gptq --group 20",
                "'20' for '--group <N>': not a multiple of 16",
            ),
            ("gptq --bits 5", "'5' for '--bits <N>': not 4 or 8"),
            (
                "gptq --damp 1",
                "'1' for '--damp <SHARE>': not a number above 0",
            ),
            ("hqq", "[possible values: gptq, awq, rtn, fp8]"),
        ] {
            let found = parsed(options).unwrap_err();
            assert!(found.contains(rule), "{found}");
        }
    }
}
