//! All output to stdout and stderr. One module writes both, so that log lines and progress bars do
//! not interleave and stderr contains only JSON if the user selects it.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::MultiProgress;
use prometheus_client::metrics::counter::Counter;

use crate::error::{Failure, Outcome};
use crate::log_queue::LogQueue;
use crate::values::LogFormat;

/// The maximum wait at exit for lines that are not yet written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The format of stderr; text until `set_format`.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// A writer of log lines that does not overwrite the bars. It never fails and never blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

/// Sets the format of stderr once. For JSON, logging must have been started.
pub fn set_format(format: LogFormat) {
    // A second server in the process keeps the format of the first, as it keeps its log.
    let _ = FORMAT.set(format);
}

fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Prints a note for the user on stderr, because stdout is for answers.
pub fn print_note(words: &str) {
    if is_json() {
        tracing::info!("{words}");
        return;
    }
    lines().push(format!("{words}\n").as_bytes());
}

/// Waits briefly until queued lines are written. Called before a command ends.
pub fn flush() {
    lines().flush(LAST_LINES);
}

/// Returns the number of log lines that could not be written.
pub fn dropped_lines() -> Counter {
    lines().dropped()
}

/// Prints an error for the user.
pub fn print_error(failure: &Failure) {
    if is_json() {
        tracing::error!("{failure}");
    } else {
        print_note(&format!("error: {failure}"));
    }
}

/// Writes to stdout, the stream for answers.
///
/// # Errors
/// If the reader is gone.
pub fn print(text: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::runtime(format!("cannot write to stdout: {error}")))
}

/// Returns the progress bars; `None` unless stderr is a terminal with text output.
pub fn bars() -> Option<&'static MultiProgress> {
    (io::stderr().is_terminal() && !is_json()).then(all_bars)
}

/// Returns the queue of all stderr lines.
fn lines() -> &'static LogQueue {
    static LINES: OnceLock<LogQueue> = OnceLock::new();
    let write = |line: &[u8]| all_bars().suspend(|| io::stderr().lock().write_all(line));
    let on_dropped = |lines| {
        tracing::warn!(lines, "failed to write to the log: lines are missing here");
    };
    LINES.get_or_init(|| LogQueue::start(write, on_dropped))
}

fn all_bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(MultiProgress::new)
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lines().push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
