//! What goes to stdout and stderr. One place, so that log lines and bars do not tear each other
//! apart, and who asked for JSON lines on stderr gets nothing else.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use indicatif::MultiProgress;

use crate::error::{Failure, Outcome};
use crate::values::LogFormat;

/// What stderr speaks; text until somebody says otherwise.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// A writer for log lines that keeps clear of the bars.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

/// Says once and for all what stderr speaks. With JSON, logging must have been started.
pub fn speak(format: LogFormat) {
    // A second server in one process keeps the first one's format, as it keeps its log.
    let _ = FORMAT.set(format);
}

fn speaks_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Words for the person who started the command; on stderr, so that stdout stays for answers.
pub fn say(words: &str) {
    if speaks_json() {
        tracing::info!("{words}");
        return;
    }
    all_bars().suspend(|| {
        // Nobody is left to tell when stderr is closed.
        let _ = writeln!(io::stderr().lock(), "{words}");
    });
}

/// Tells the person what went wrong.
pub fn complain(failure: &Failure) {
    if speaks_json() {
        tracing::error!("{failure}");
    } else {
        say(&format!("error: {failure}"));
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
    (io::stderr().is_terminal() && !speaks_json()).then(all_bars)
}

fn all_bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(MultiProgress::new)
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        all_bars().suspend(|| io::stderr().lock().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
