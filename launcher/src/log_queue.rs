//! The queue of stderr lines. A full disk or an unread pipe can block a write, so a separate thread
//! writes. The server's threads only append to a bounded queue and never wait.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;

/// The maximum total size of queued lines. A line that would exceed it is dropped.
const MAX_BYTES: usize = 1 << 20;
/// The maximum number of queued lines, which bounds the overhead per line.
const MAX_LINES: usize = 8192;

/// A bounded queue of lines with one writer thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LogQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    dropped: Counter,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Box<[u8]>>,
    /// The total size of `lines`.
    bytes: usize,
    /// Whether the writer is writing a line that is no longer in `lines`.
    writing: bool,
}

impl LogQueue {
    /// Starts the writer thread. It passes each line to `sink` and, once writes succeed again, the
    /// number of dropped lines to `on_dropped`. If the thread cannot be started, the queue fills
    /// and drops lines.
    pub fn start(
        sink: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        on_dropped: impl FnMut(u64) + Send + 'static,
    ) -> Self {
        let queue = Self::default();
        let shared = Arc::clone(&queue.0);
        let thread = thread::Builder::new().name("log".into());
        // Without this thread there is no way to report the error.
        let _ = thread.spawn(move || shared.write(sink, on_dropped));
        queue
    }

    /// Queues a line, or drops and counts it if the queue is full.
    pub fn push(&self, line: &[u8]) {
        let mut waiting = self.0.lock();
        if waiting.lines.len() >= MAX_LINES || waiting.bytes + line.len() > MAX_BYTES {
            self.0.dropped.inc();
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.into());
        drop(waiting);
        self.0.changed.notify_all();
    }

    /// Waits until all lines are written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut waiting = self.0.lock();
        while waiting.writing || !waiting.lines.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.0.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the number of lines dropped because the queue was full or a write failed.
    pub fn dropped(&self) -> Counter {
        self.0.dropped.clone()
    }
}

impl Shared {
    fn write(
        &self,
        mut sink: impl FnMut(&[u8]) -> io::Result<()>,
        mut on_dropped: impl FnMut(u64),
    ) -> ! {
        let mut known = 0;
        loop {
            let line = self.next();
            let written = sink(&line);
            if written.is_err() {
                self.dropped.inc();
            }
            // Report only after a successful write, because `on_dropped` queues a line itself.
            let dropped = self.dropped.get();
            if written.is_ok() && dropped > known {
                on_dropped(dropped - known);
                known = dropped;
            }
        }
    }

    /// Returns the next line. The previous one counts as written.
    fn next(&self) -> Box<[u8]> {
        let mut waiting = self.lock();
        waiting.writing = false;
        self.changed.notify_all();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.writing = true;
                return line;
            }
            let woken = self.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Locks the state. A panic cannot leave it inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A queue whose writes each wait for a signal, the lines written and the reported drops.
    struct Slow {
        queue: LogQueue,
        go: std::sync::mpsc::Sender<io::Result<()>>,
        written: Receiver<Vec<u8>>,
        reports: Receiver<u64>,
    }

    fn slow() -> Slow {
        let ((go, gate), (out, written), (report, reports)) = (channel(), channel(), channel());
        let sink = move |line: &[u8]| {
            out.send(line.to_vec()).unwrap();
            gate.recv().unwrap()
        };
        let queue = LogQueue::start(sink, move |lines| report.send(lines).unwrap());
        Slow {
            queue,
            go,
            written,
            reports,
        }
    }

    #[test]
    fn a_blocked_sink_never_blocks_writers_and_drops_are_counted() {
        let slow = slow();
        slow.queue.push(b"first");
        assert_eq!(slow.written.recv_timeout(TIMEOUT).unwrap(), b"first");
        // The sink blocks from here on, and yet every call returns.
        let line = vec![b'x'; 1 << 10];
        let fits = MAX_BYTES / line.len();
        for _ in 0..fits + 7 {
            slow.queue.push(&line);
        }
        assert_eq!(slow.queue.dropped().get(), 7);
        slow.queue.flush(Duration::from_millis(10));
        for _ in 0..=fits {
            slow.go.send(Ok(())).unwrap();
        }
        slow.queue.flush(TIMEOUT);
        assert_eq!(slow.written.try_iter().count(), fits);
        assert_eq!(slow.reports.try_iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn many_short_lines_are_bounded_too() {
        let slow = slow();
        slow.queue.push(b"first");
        slow.written.recv_timeout(TIMEOUT).unwrap();
        for _ in 0..=MAX_LINES {
            slow.queue.push(b"");
        }
        assert_eq!(slow.queue.dropped().get(), 1);
    }

    #[test]
    fn failed_writes_are_counted_and_reported_after_recovery() {
        let slow = slow();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        slow.queue.push(b"a");
        slow.queue.push(b"b");
        slow.go.send(Err(full())).unwrap();
        slow.go.send(Err(full())).unwrap();
        slow.queue.flush(TIMEOUT);
        assert_eq!(slow.queue.dropped().get(), 2);
        assert!(slow.reports.try_recv().is_err());
        slow.queue.push(b"c");
        slow.go.send(Ok(())).unwrap();
        slow.queue.flush(TIMEOUT);
        assert_eq!(slow.reports.try_iter().collect::<Vec<_>>(), [2]);
        let lines: Vec<_> = slow.written.try_iter().collect();
        assert_eq!(lines, [b"a", b"b", b"c"]);
    }
}
