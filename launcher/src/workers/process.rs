//! One worker process, spawned here or by the fork server, and its log. The worker ends with the
//! launcher, unless its Load asked to keep it (`--keep-workers`).
//!
//! The worker's stdin is the read end of a pipe; this process holds the write end. If this process
//! ends, by any signal, the pipe closes and the worker's lease ends. No signal handler is installed
//! (threads wait instead), so the code also works inside another program's Python process.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::log;
use crate::error::{Failure, Outcome};
use crate::interpreter::Interpreter;

/// Importing torch from a cold disk takes a minute; a longer start counts as a hang.
pub(super) const LISTEN_TIMEOUT: Duration = Duration::from_secs(300);
/// The wait after closing the pipe, and again after SIGTERM, before SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
/// Log lines that an error message quotes.
const TAIL_LINES: usize = 12;

/// A running worker.
#[derive(Debug)]
pub struct WorkerProcess {
    rank: u32,
    socket: PathBuf,
    process: Process,
    lease: Option<OwnedFd>,
    /// Whether the worker outlives this process.
    released: bool,
}

/// A process and its process group, whose log is copied to this process's.
#[derive(Debug)]
pub(super) struct Process {
    pid: Pid,
    ended: watch::Receiver<Option<ExitStatus>>,
    log_tail: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts to copy the log of a process, each line after `[name]`, and to wait for its end: `wait`
    /// returns then.
    pub(super) fn watch(
        name: &str,
        pid: Pid,
        log: impl Read + Send + 'static,
        wait: impl FnOnce() -> Option<ExitStatus> + Send + 'static,
    ) -> Outcome<Self> {
        let log_tail = Arc::new(Mutex::new(VecDeque::new()));
        let (report, ended) = watch::channel(None);
        let (copy, title) = (Arc::clone(&log_tail), name.to_owned());
        thread(format!("{name} log"), move || {
            forward_log(log, &title, &copy);
        })?;
        thread(format!("{name} wait"), move || {
            if let Some(status) = wait() {
                report.send_replace(Some(status));
            }
        })?;
        Ok(Self {
            pid,
            ended,
            log_tail,
        })
    }

    /// Starts a command as a child with a process group of its own: Ctrl-C in the terminal reaches
    /// only the launcher. Returns the write end of its standard input, if that is a pipe.
    pub(super) fn spawn(name: &str, command: &mut Command) -> Outcome<(Self, Option<OwnedFd>)> {
        let spawned = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = spawned.map_err(|error| {
            let shown = command.get_program().display();
            Failure::runtime(format!("cannot start {name} with {shown}: {error}"))
        })?;
        let stdin = child.stdin.take().map(OwnedFd::from);
        let log = child.stderr.take();
        let log = log.ok_or_else(|| Failure::runtime(format!("{name} has no standard error")))?;
        let pid = pid_of(&child);
        let process = Self::watch(name, pid, log, move || child.wait().ok())?;
        Ok((process, stdin))
    }

    /// Returns the exit status once the process has ended.
    pub(super) fn exit_status(&self) -> Option<ExitStatus> {
        *self.ended.borrow()
    }

    /// Returns the last lines of the process's log, with an introduction for an error message; empty
    /// if there are none.
    pub(super) fn stderr_tail(&self) -> String {
        let log_tail = self.log_tail.lock().unwrap_or_else(PoisonError::into_inner);
        if log_tail.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = log_tail.iter().map(String::as_str).collect();
        format!(" The last lines of its log:\n  {}", lines.join("\n  "))
    }

    /// Returns whether the process ended in time.
    async fn ends(&self) -> bool {
        let mut ended = self.ended.clone();
        timeout(STOP_TIMEOUT, ended.wait_for(Option::is_some))
            .await
            .is_ok()
    }

    fn signal(&self, signal: Signal) {
        // Once the process was reaped, the id may belong to another process.
        if self.exit_status().is_none() {
            // The process may end at this moment, so an error is fine.
            let _ = killpg(self.pid, signal);
        }
    }
}

impl WorkerProcess {
    /// Starts the worker of `rank`, which will listen on `socket`.
    ///
    /// # Errors
    /// If the operating system cannot start it.
    pub fn spawn(interpreter: &Interpreter, socket: &Path, rank: u32) -> Outcome<Self> {
        let mut command = Command::new(&interpreter.path);
        command
            .args(["-m", "penstock.worker", "--socket"])
            .arg(socket)
            .args(["--rank", &rank.to_string()])
            .stdin(Stdio::piped());
        let (process, lease) = Process::spawn(&name(rank), &mut command)?;
        Ok(Self::new(rank, socket, process, lease))
    }

    pub(super) fn new(rank: u32, socket: &Path, process: Process, lease: Option<OwnedFd>) -> Self {
        Self {
            rank,
            socket: socket.to_owned(),
            process,
            lease,
            released: false,
        }
    }

    /// Waits until the worker listens.
    ///
    /// # Errors
    /// If it ends first or takes longer than `LISTEN_TIMEOUT`.
    pub async fn listening(&self) -> Outcome<()> {
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        while Instant::now() < deadline {
            // The file alone is not enough: between bind and listen, connections are refused.
            if tokio::net::UnixStream::connect(&self.socket).await.is_ok() {
                return Ok(());
            }
            if let Some(status) = self.exit_status() {
                // The thread that reads the worker's log may be slightly behind.
                sleep(POLL).await;
                return Err(Failure::runtime(format!(
                    "worker {} ended before it was ready ({status}).{}",
                    self.rank,
                    self.stderr_tail()
                )));
            }
            sleep(POLL).await;
        }
        let seconds = LISTEN_TIMEOUT.as_secs();
        Err(Failure::runtime(format!(
            "worker {} is not listening after {seconds} s.{}",
            self.rank,
            self.stderr_tail()
        )))
    }

    /// Returns the process id, for logs and tests.
    pub fn pid(&self) -> i32 {
        self.process.pid.as_raw()
    }

    /// Returns the exit status once the worker has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Returns the last lines of the worker's log, with an introduction for an error message; empty
    /// if there are none.
    pub fn stderr_tail(&self) -> String {
        self.process.stderr_tail()
    }

    /// Stops the worker: closes the pipe, then sends SIGTERM, then SIGKILL to its process group.
    pub async fn stop(&mut self) {
        drop(self.lease.take());
        for signal in [None, Some(Signal::SIGTERM)] {
            if let Some(signal) = signal {
                self.process.signal(signal);
            }
            if self.process.ends().await {
                return;
            }
        }
        tracing::warn!(rank = self.rank, "the worker ignored SIGTERM; sent SIGKILL");
        self.process.signal(Signal::SIGKILL);
    }

    /// Kills the worker and its process group, and waits for the end: for a worker that is lost.
    pub async fn kill(&mut self) {
        self.process.signal(Signal::SIGKILL);
        // A process that the kernel cannot end yet must not delay the next one.
        self.process.ends().await;
    }

    /// Leaves the worker to the next launcher: it lives on for as long as its Load asked for.
    pub fn release(mut self) {
        self.released = true;
        drop(self.lease.take());
    }

    /// Makes the worker write the stacks of its threads to its log.
    pub fn dump_stacks(&self) {
        if self.exit_status().is_none() {
            // Its children would end by this signal. A stopped process must continue to handle it.
            // It may end at this moment, so an error is fine.
            let _ = kill(self.process.pid, Signal::SIGUSR1);
            let _ = kill(self.process.pid, Signal::SIGCONT);
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if !self.released {
            self.process.signal(Signal::SIGKILL);
        }
    }
}

pub(super) fn thread(name: String, body: impl FnOnce() + Send + 'static) -> Outcome<()> {
    let spawned = std::thread::Builder::new().name(name).spawn(body);
    spawned
        .map(drop)
        .map_err(|error| Failure::runtime(format!("cannot start a thread: {error}")))
}

/// Returns what the worker of a rank is called in logs.
pub(super) fn name(rank: u32) -> String {
    format!("worker {rank}")
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// Copies the log of a process to the launcher's, and the last lines to `log_tail`.
fn forward_log(log: impl Read, name: &str, log_tail: &Mutex<VecDeque<String>>) {
    log::forward(log, name, |line| {
        let mut log_tail = log_tail.lock().unwrap_or_else(PoisonError::into_inner);
        if log_tail.len() == TAIL_LINES {
            log_tail.pop_front();
        }
        log_tail.push_back(line);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a fake interpreter: a shell script that ignores its arguments.
    fn script(directory: &Path, body: &str) -> Interpreter {
        let path = directory.join("python");
        // Written by another process: a child that another test forks would inherit a descriptor
        // that this process has open for writing, and the script could not be executed then
        // (ETXTBSY).
        let text = format!("#!/bin/sh\n{body}\n");
        let written = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""])
            .args([path.as_os_str(), text.as_ref()])
            .status();
        assert!(written.unwrap().success());
        Interpreter {
            path,
            package: directory.to_owned(),
        }
    }

    #[tokio::test]
    async fn stderr_of_a_worker_that_exits_at_once_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let interpreter = script(directory.path(), "echo no torch here >&2; exit 3");
        let worker = WorkerProcess::spawn(&interpreter, Path::new("/nowhere"), 0).unwrap();
        let failure = worker.listening().await.unwrap_err();
        assert!(failure.message.contains("exit status: 3"), "{failure}");
        assert!(failure.message.contains("no torch here"), "{failure}");
    }

    #[tokio::test]
    async fn a_worker_stops_when_its_stdin_closes() {
        let directory = tempfile::tempdir().unwrap();
        let interpreter = script(directory.path(), "cat >/dev/null; exit 7");
        let mut worker = WorkerProcess::spawn(&interpreter, Path::new("/nowhere"), 0).unwrap();
        assert_eq!(worker.exit_status(), None);
        worker.stop().await;
        assert_eq!(
            worker.exit_status().and_then(|status| status.code()),
            Some(7)
        );
    }

    #[tokio::test]
    async fn a_worker_that_ignores_sigterm_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let body = "trap '' TERM; sleep 60 & echo $! > \"$0.child\"; wait; sleep 60";
        let interpreter = script(directory.path(), body);
        let mut worker = WorkerProcess::spawn(&interpreter, Path::new("/nowhere"), 0).unwrap();
        let file = directory.path().join("python.child");
        while std::fs::read_to_string(&file)
            .unwrap_or_default()
            .is_empty()
        {
            sleep(POLL).await;
        }
        worker.stop().await;
        let child = std::fs::read_to_string(&file).unwrap();
        let child = Pid::from_raw(child.trim().parse().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while nix::sys::signal::kill(child, None).is_ok() && !is_zombie(child) {
            assert!(Instant::now() < deadline, "the worker's child still runs");
            sleep(POLL).await;
        }
    }

    fn is_zombie(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") Z ") || stat.is_empty()
    }
}
