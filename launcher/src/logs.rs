//! Where log lines go and how they look.

use tracing_subscriber::EnvFilter;

use crate::cli::LogArgs;
use crate::progress::LogWriter;
use crate::values::LogFormat;

/// Starts logging. Libraries speak only when something is wrong with them.
pub fn start(args: &LogArgs) {
    let level = args.log_level.name();
    let quiet = if level == "error" { "error" } else { "warn" };
    let ours = ["penstock", "penstock_router", "worker"].map(|target| format!("{target}={level}"));
    let filter = EnvFilter::new(format!("{quiet},{}", ours.join(",")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogWriter::default);
    let started = match args.log_format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_target(false)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
    };
    // A second start in one process keeps the first one's lines.
    drop(started);
}
