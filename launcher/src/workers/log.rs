//! Copies the logs of workers to the launcher's.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::thread::sleep;
use std::time::Duration;

const LINE_BYTES: u64 = 8 << 10;
/// How often a file is read again at its end.
const POLL: Duration = Duration::from_millis(100);

/// A file that a process writes, read until the process has ended.
pub(super) struct Growing<A> {
    pub(super) file: File,
    /// Whether the process runs.
    pub(super) alive: A,
}

impl<A: Fn() -> bool> Read for Growing<A> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Asked before the read: what an ended process wrote is read first.
            let alive = (self.alive)();
            let bytes = self.file.read(buffer)?;
            if bytes > 0 || !alive {
                return Ok(bytes);
            }
            sleep(POLL);
        }
    }
}

/// Copies the log of the process `name` until it ends, and passes each line to `keep`.
pub(super) fn forward(log: impl Read, name: &str, mut keep: impl FnMut(String)) {
    let mut reader = BufReader::new(log);
    let mut line = Vec::new();
    while matches!(
        reader
            .by_ref()
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line),
        Ok(1..)
    ) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            continue;
        }
        write(name, &text);
        keep(text);
    }
}

/// Logs a line of a process. Lines without a level, such as those of a traceback, are logged as
/// well.
fn write(name: &str, line: &str) {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("DEBUG", text) => tracing::debug!(target: "worker", "[{name}] {text}"),
        ("INFO", text) => tracing::info!(target: "worker", "[{name}] {text}"),
        ("WARNING", text) => tracing::warn!(target: "worker", "[{name}] {text}"),
        ("ERROR" | "CRITICAL", text) => {
            tracing::error!(target: "worker", "[{name}] {text}");
        }
        _ => tracing::info!(target: "worker", "[{name}] {line}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_file_is_read_until_its_writer_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"INFO first\nWARN").unwrap();
        let runs = AtomicBool::new(true);
        let growing = Growing {
            file: File::open(&path).unwrap(),
            alive: || runs.load(Ordering::SeqCst),
        };
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| forward(growing, "worker 0", move |line| send.send(line).unwrap()));
            assert_eq!(lines.recv().unwrap(), "INFO first");
            writer.write_all(b"ING second\nthe end").unwrap();
            assert_eq!(lines.recv().unwrap(), "WARNING second");
            runs.store(false, Ordering::SeqCst);
            assert_eq!(lines.recv().unwrap(), "the end");
            assert!(lines.recv().is_err(), "the thread goes on");
        });
    }
}
