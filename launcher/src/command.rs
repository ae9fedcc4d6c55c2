//! Dispatch of the parsed command line.

use std::ffi::OsString;

use crate::cli::{Command, DownloadArgs, ServeArgs};
use crate::error::{Failure, Outcome};
use crate::explain::explain;
use crate::hardware;
use crate::hub::{self, ModelSource, Purpose};
use crate::interpreter::Interpreter;
use crate::launch::Launch;
use crate::python_commands;
use crate::resolve::{resolve_http, resolve_life};
use crate::serve;
use crate::settings::{self, Settings, SettingsError, Sources, Variables};
use crate::terminal::{flush, print, print_error, print_note};
use crate::tgi;
use crate::values::Device;
use crate::watermark;

/// Runs `penstock` with these arguments (including the program's name) and returns its exit code.
/// `host` is the Python interpreter that runs the launcher, if any.
pub fn run(argv: &[OsString], host: Option<&Interpreter>) -> u8 {
    let code = execute(argv, host);
    flush();
    code
}

fn execute(argv: &[OsString], host: Option<&Interpreter>) -> u8 {
    let settings = match read(argv, &std::env::vars_os().collect()) {
        Ok(settings) => settings,
        Err(SettingsError::Parser(error)) => {
            // Printing fails only if the reader is gone.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
        Err(SettingsError::Failure(failure)) => return report(&failure),
    };
    let sources = &settings.sources;
    let outcome = match &settings.cli.command {
        Command::Serve(args) if args.explain => explain_serve(args, sources, host),
        Command::Serve(args) => serve::run(args, sources, host),
        Command::Download(args) => download(args, host),
        Command::Chat(args) => serve::run_chat(args, sources, host),
        Command::WatermarkDetect(args) => watermark::detect(args, host),
        Command::Quantize(args) => python_commands::quantize(args, host),
        Command::Convert(args) => python_commands::convert(args, host),
        Command::Tune(args) => python_commands::tune(args, host),
        // `read` replaced it with `serve`.
        Command::Tgi(_) => Ok(()),
    };
    outcome.map_or_else(|failure| report(&failure), |()| 0)
}

/// Parses the command line. Translates one of TGI's launcher to `penstock serve`.
fn read(argv: &[OsString], variables: &Variables) -> Result<Settings, SettingsError> {
    let settings = settings::read(argv, variables)?;
    let Command::Tgi(args) = &settings.cli.command else {
        return Ok(settings);
    };
    let translation = tgi::translate(&args.arguments, variables)?;
    for note in &translation.notes {
        print_note(&format!("note: {note}"));
    }
    let mut settings = settings::read(&translation.argv, variables)?;
    if let Command::Serve(args) = &mut settings.cli.command {
        args.http.limits = translation.limits;
    }
    Ok(settings)
}

fn report(failure: &Failure) -> u8 {
    print_error(failure);
    failure.exit_code()
}

fn explain_serve(args: &ServeArgs, sources: &Sources, host: Option<&Interpreter>) -> Outcome<()> {
    let launch = Launch::prepare(&args.engine, sources, host)?;
    let plan = launch.plan;
    let devices = match plan.device.value {
        Device::Cuda => hardware::cuda_devices(),
        Device::Cpu => Vec::new(),
    };
    let bounds = resolve_http(&args.http, sources, plan.tp.value);
    let life = resolve_life(&args.life, sources);
    print(&explain(&plan, &bounds, &life, &devices, &launch.defaults))
}

fn download(args: &DownloadArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let revision = args.revision.as_deref();
    let ModelSource::Hub { id, revision } = ModelSource::parse(Some(&args.id), revision)? else {
        return Err(Failure::usage(format!(
            "{} is already on this host.",
            args.id
        )));
    };
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let path = hub::download(
        &interpreter,
        (&id, &revision),
        Purpose::Serving,
        args.hub_cache.as_deref(),
    )?;
    print(&format!("{}\n", path.display()))
}
