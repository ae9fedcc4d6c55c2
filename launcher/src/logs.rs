//! The destination and format of log lines.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal, stderr};
use std::panic::{self, PanicHookInfo};
use std::sync::LazyLock;
use std::thread;

use penstock_request::panic_message;
use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::EnvFilter;

use crate::terminal::{self, LogWriter};
use crate::values::{LogFormat, LogLevel};

/// Starts logging. Libraries log warnings and errors only.
pub fn start(format: LogFormat, level: LogLevel) {
    let quiet = if level == LogLevel::Error {
        "error"
    } else {
        "warn"
    };
    let level = level.name();
    // A target covers all targets that begin with it: `penstock` stands for all our crates.
    let ours = ["penstock", "worker"].map(|target| format!("{target}={level}"));
    let filter = EnvFilter::new(format!("{quiet},{}", ours.join(",")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would report them with `eprintln`, which panics if stderr cannot be written.
        .log_internal_errors(false)
        .with_writer(LogWriter::default);
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_target(false)
            .with_ansi(stderr().is_terminal())
            .try_init(),
    };
    // A second start in one process keeps the first configuration.
    drop(started);
    terminal::set_format(format);
}

/// The number of panics since `log_panics`.
static PANICS: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Logs panics. Rust's default hook writes to stderr directly, which blocks for ever on an unread
/// pipe. The hook applies to the whole process, so only Penstock's own programs call this.
pub fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        PANICS.inc();
        log_panic(panic);
    }));
}

/// Returns the number of panics.
pub fn panics() -> Counter {
    PANICS.clone()
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let words = panic_message(panic.payload());
    let location = panic.location().map(ToString::to_string);
    let location = location.as_deref().unwrap_or("an unknown place");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => {
            tracing::error!("thread {name} panicked at {location}: {words}\n{backtrace}");
        }
        _ => tracing::error!("thread {name} panicked at {location}: {words}"),
    }
}
