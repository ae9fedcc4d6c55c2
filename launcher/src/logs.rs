//! Where log lines go and how they look.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::terminal::{self, LogWriter};
use crate::values::{LogFormat, LogLevel};

/// Starts logging. Libraries speak only when something is wrong with them.
pub fn start(format: LogFormat, level: LogLevel) {
    let quiet = if level == LogLevel::Error {
        "error"
    } else {
        "warn"
    };
    let level = level.name();
    let ours = ["penstock", "penstock_router", "worker"].map(|target| format!("{target}={level}"));
    let filter = EnvFilter::new(format!("{quiet},{}", ours.join(",")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogWriter::default);
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_target(false)
            .with_ansi(stderr().is_terminal())
            .try_init(),
    };
    // A second start in one process keeps the first one's lines.
    drop(started);
    terminal::speak(format);
}
