//! What goes to stdout and stderr. One place, so that log lines and bars do not tear each other
//! apart, and who asked for JSON lines on stderr gets nothing else.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::MultiProgress;
use prometheus_client::metrics::counter::Counter;

use crate::error::{Failure, Outcome};
use crate::log_queue::LogQueue;
use crate::values::LogFormat;

/// How long a command that ends waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What stderr speaks; text until somebody says otherwise.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// A writer for log lines that keeps clear of the bars. It never fails and never waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

/// Says once and for all what stderr speaks. With JSON, logging must have been started.
pub fn set_format(format: LogFormat) {
    // A second server in one process keeps the first one's format, as it keeps its log.
    let _ = FORMAT.set(format);
}

fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Words for the person who started the command; on stderr, so that stdout stays for answers.
pub fn print_note(words: &str) {
    if is_json() {
        tracing::info!("{words}");
        return;
    }
    lines().push(format!("{words}\n").as_bytes());
}

/// Waits a moment for lines that are not written yet: for the end of a command.
pub fn flush() {
    lines().flush(LAST_LINES);
}

/// How many lines of the log could not be written.
pub fn dropped_lines() -> Counter {
    lines().dropped()
}

/// Tells the person what went wrong.
pub fn print_error(failure: &Failure) {
    if is_json() {
        tracing::error!("{failure}");
    } else {
        print_note(&format!("error: {failure}"));
    }
}

/// Writes to stdout, where answers go.
///
/// # Errors
/// When nobody reads it any more.
pub fn print(text: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::runtime(format!("cannot write to stdout: {error}")))
}

/// Where progress is drawn; none where only lines can be read.
pub fn bars() -> Option<&'static MultiProgress> {
    (io::stderr().is_terminal() && !is_json()).then(all_bars)
}

/// All that goes to stderr as lines.
fn lines() -> &'static LogQueue {
    static LINES: OnceLock<LogQueue> = OnceLock::new();
    let write = |line: &[u8]| all_bars().suspend(|| io::stderr().lock().write_all(line));
    let on_dropped = |lines| {
        tracing::warn!(
            lines,
            "the log could not be written: lines are missing here"
        );
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
