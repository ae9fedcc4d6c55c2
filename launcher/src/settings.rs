//! Settings from flags, PENSTOCK_X variables, the TOML file and defaults, in this order of
//! precedence. The flags in `cli` are the only list of settings. Variables and file keys follow
//! from their names and become the flags' defaults, so every setting is declared and parsed once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches};

use crate::cli::{Cli, EngineArgs};
use crate::error::{Failure, Outcome};

const PREFIX: &str = "PENSTOCK_";

/// The source of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// A PENSTOCK_X variable.
    Variable,
    /// The file of --config.
    File,
    /// The default.
    Default,
}

/// The source of every setting of the chosen command, by flag name without dashes.
#[derive(Clone, Debug, Default)]
pub struct Sources(BTreeMap<String, Source>);

/// The parsed settings.
#[derive(Debug)]
pub struct Settings {
    /// The values of the command that runs.
    pub cli: Cli,
    /// The sources of the values, for the reasons in `--explain`.
    pub sources: Sources,
}

/// The reason why there are no settings.
#[derive(Debug)]
pub enum SettingsError {
    /// Output of clap: help, version, or an error in the arguments.
    Parser(clap::Error),
    /// An invalid variable or configuration file.
    Failure(Failure),
}

/// Environment variables by name.
pub type Variables = BTreeMap<OsString, OsString>;

/// Values below the command line in their command-line form, by flag name without dashes.
type Layer = BTreeMap<String, (Vec<OsString>, Source)>;

impl Source {
    /// Returns a description for `--explain`.
    pub fn description(self) -> &'static str {
        match self {
            Self::Flag => "typed",
            Self::Variable => "from the environment",
            Self::File => "from the configuration file",
            Self::Default => "default",
        }
    }
}

impl Sources {
    /// Returns the source of the setting `name`.
    pub fn get(&self, name: &str) -> Source {
        self.0.get(name).copied().unwrap_or(Source::Default)
    }
}

impl From<clap::Error> for SettingsError {
    fn from(error: clap::Error) -> Self {
        Self::Parser(error)
    }
}

impl From<Failure> for SettingsError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Parses arguments (including the program's name), the environment, and the file that they name.
///
/// # Errors
/// An error in any of them, or a request for help.
pub fn read(argv: &[OsString], variables: &Variables) -> Result<Settings, SettingsError> {
    let (matches, sources) = layered(Cli::command(), argv, variables)?;
    Ok(Settings {
        cli: Cli::from_arg_matches(&matches)?,
        sources,
    })
}

/// Parses the settings of an engine, for callers without a command line.
///
/// # Errors
/// An error in the flags or the environment.
pub fn read_engine(flags: Vec<String>, variables: &Variables) -> Outcome<(EngineArgs, Sources)> {
    let engine = EngineArgs::augment_args(clap::Command::new("engine"));
    let root = clap::Command::new("penstock")
        .subcommand(engine)
        .disable_help_flag(true);
    let flags = flags.into_iter().map(OsString::from);
    let argv: Vec<OsString> = ["penstock".into(), "engine".into()]
        .into_iter()
        .chain(flags)
        .collect();
    let read = || {
        let (matches, sources) = layered(root, &argv, variables)?;
        let typed = matches
            .subcommand_matches("engine")
            .map(EngineArgs::from_arg_matches);
        Ok((typed.transpose()?, sources))
    };
    match read() {
        Ok((Some(typed), sources)) => Ok((typed, sources)),
        Ok((None, _)) => Err(Failure::usage("no settings")),
        Err(SettingsError::Failure(failure)) => Err(failure),
        Err(SettingsError::Parser(error)) => Err(Failure::usage(without_usage(&error.to_string()))),
    }
}

/// Returns clap's message without the parts that help only at a command line.
fn without_usage(text: &str) -> String {
    let message = text.split("\n\nUsage:").next().unwrap_or(text);
    let message = message
        .split("\n\nFor more information")
        .next()
        .unwrap_or(message);
    message.trim_start_matches("error: ").trim().to_owned()
}

fn layered(
    command: clap::Command,
    argv: &[OsString],
    variables: &Variables,
) -> Result<(ArgMatches, Sources), SettingsError> {
    reject_unknown_variables(&Cli::command(), variables)?;
    let mut layer = Layer::new();
    let (name, config) = first_pass(command.clone(), argv, variables)?;
    let sub = command.find_subcommand(&name).cloned().unwrap_or_default();
    if let Some(path) = config {
        layer.extend(file_layer(&sub, &path)?);
    }
    layer.extend(variable_layer(&sub, variables));
    let command = command.mut_subcommand(&name, |sub| with_layer(sub, &layer));
    let matches = command.try_get_matches_from(argv)?;
    let sources = sources(&matches, &layer);
    Ok((matches, sources))
}

/// Returns the chosen command and its configuration file. The file must be known before its values
/// can become defaults.
fn first_pass(
    command: clap::Command,
    argv: &[OsString],
    variables: &Variables,
) -> Result<(String, Option<PathBuf>), SettingsError> {
    let matches = command.try_get_matches_from(argv)?;
    let Some((name, matches)) = matches.subcommand() else {
        return Ok((String::new(), None));
    };
    let config = match matches.try_get_one::<PathBuf>("config") {
        Ok(typed) => typed.cloned().or_else(|| {
            variables
                .get(&OsString::from(variable("config")))
                .map(PathBuf::from)
        }),
        // The command has no --config.
        Err(_) => None,
    };
    Ok((name.to_owned(), config))
}

fn flags(command: &clap::Command) -> impl Iterator<Item = &str> {
    let longs = command.get_arguments().filter_map(Arg::get_long);
    longs.filter(|long| !["help", "version"].contains(long))
}

fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"))
}

fn reject_unknown_variables(command: &clap::Command, variables: &Variables) -> Outcome<()> {
    let known: Vec<String> = command
        .get_subcommands()
        .flat_map(flags)
        .map(variable)
        .collect();
    for name in variables.keys() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with(PREFIX) && !known.contains(&name) {
            return Err(Failure::usage(format!(
                "the environment variable {name} is not a setting (flag --x is {PREFIX}X; --help \
                 lists the flags). Unset it; if Kubernetes made it for a service named penstock, \
                 set enableServiceLinks: false in the pod."
            )));
        }
    }
    Ok(())
}

fn variable_layer(command: &clap::Command, variables: &Variables) -> Layer {
    let appends = |long: &str| {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(long));
        arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append))
    };
    let set = flags(command).filter_map(|long| {
        let value = variables.get(&OsString::from(variable(long)))?;
        let values = match value.to_str().filter(|_| appends(long)) {
            Some(list) => list.split(',').map(OsString::from).collect(),
            None => vec![value.clone()],
        };
        Some((long.to_owned(), (values, Source::Variable)))
    });
    set.collect()
}

fn file_layer(command: &clap::Command, path: &Path) -> Outcome<Layer> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read --config {shown}: {error}")))?;
    let table: toml::Table = text
        .parse()
        .map_err(|error| Failure::usage(format!("--config {shown} is not TOML: {error}")))?;
    let known: Vec<&str> = flags(command).filter(|long| *long != "config").collect();
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(Failure::usage(format!(
            "--config {shown}: {key:?} is not a setting of `penstock {}`; it knows {}.",
            command.get_name(),
            known.join(", ")
        )));
    }
    Ok(table
        .into_iter()
        .map(|(key, value)| (key, (words(&value), Source::File)))
        .collect())
}

/// Returns a TOML value in its command-line form.
fn words(value: &toml::Value) -> Vec<OsString> {
    match value {
        toml::Value::String(text) => vec![text.into()],
        toml::Value::Array(items) => items.iter().flat_map(words).collect(),
        other => vec![other.to_string().into()],
    }
}

/// Turns the layer into defaults, which the command line overrides.
fn with_layer(command: clap::Command, layer: &Layer) -> clap::Command {
    command.mut_args(|arg| {
        let Some((values, _)) = arg.get_long().and_then(|long| layer.get(long)) else {
            return arg;
        };
        let switch = matches!(arg.get_action(), ArgAction::SetTrue);
        let arg = if switch {
            arg.value_parser(BoolishValueParser::new())
        } else {
            arg
        };
        arg.default_values_os(values.clone())
    })
}

fn sources(matches: &ArgMatches, layer: &Layer) -> Sources {
    let Some((_, matches)) = matches.subcommand() else {
        return Sources::default();
    };
    let source = |id: &str| {
        let long = id.replace('_', "-");
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => Source::Flag,
            _ => layer
                .get(&long)
                .map_or(Source::Default, |(_, source)| *source),
        };
        (long, source)
    };
    Sources(matches.ids().map(|id| source(id.as_str())).collect())
}
