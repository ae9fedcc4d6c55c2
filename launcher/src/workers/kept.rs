//! Workers that an earlier launcher started and left running, to attach to.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, Uid};
use tokio::time::{Instant, sleep};

use super::log::{self, Growing};
use super::process::{name, thread};
use crate::error::Outcome;

/// Time for a worker's end after each signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
const LOG_POLL: Duration = Duration::from_millis(100);

/// A running worker that is not a child of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptWorker {
    pid: Pid,
    /// Ticks from the system's start to the process's. An id alone may belong to another process
    /// later.
    started: u64,
    socket: PathBuf,
}

impl KeptWorker {
    /// Finds the worker that listens on `socket`; `None` if none does, or if it is another user's.
    /// Needs a tokio runtime.
    pub fn find(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_nonblocking(true).ok()?;
        let peer = tokio::net::UnixStream::from_std(stream)
            .ok()?
            .peer_cred()
            .ok()?;
        let ours = peer.uid() == Uid::effective().as_raw();
        let pid = Pid::from_raw(peer.pid().filter(|_| ours)?);
        Some(Self {
            pid,
            started: started(pid)?,
            socket: socket.to_owned(),
        })
    }

    /// Copies what the worker of `rank` logs from now on to this process's log. What it logged while
    /// no server ran stays in the file.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn forward_log(&self, rank: u32) -> Outcome<()> {
        let path = self.log();
        let begin = std::fs::metadata(&path).map_or(0, |file| file.len());
        let worker = self.clone();
        thread(format!("worker {rank} log"), move || {
            // The worker creates it once it has noticed that its launcher is gone.
            while worker.runs() {
                let Ok(mut file) = File::open(&path) else {
                    std::thread::sleep(LOG_POLL);
                    continue;
                };
                if file.seek(SeekFrom::Start(begin)).is_ok() {
                    let alive = || worker.runs();
                    log::forward(Growing { file, alive }, &name(rank), drop);
                }
                return;
            }
        })
    }

    /// The file that the worker logs to once its launcher is gone.
    fn log(&self) -> PathBuf {
        let mut path = self.socket.clone().into_os_string();
        path.push(".log");
        path.into()
    }

    /// Stops the worker's process group: SIGTERM, then SIGKILL.
    pub async fn stop(&self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if !self.runs() {
                return;
            }
            // It may end at this moment, so an error is fine.
            let _ = killpg(self.pid, signal);
            let deadline = Instant::now() + STOP_TIMEOUT;
            while self.runs() && Instant::now() < deadline {
                sleep(POLL).await;
            }
        }
    }

    fn runs(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// Returns when a process began, in ticks since the system's start; `None` if it has ended.
fn started(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything. Fields 3 (state) and 22 (start) follow it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    (state != "Z").then_some(())?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_process_that_has_the_id_of_an_ended_worker_is_not_stopped() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(other.id()).unwrap());
        let kept = KeptWorker {
            pid,
            started: started(pid).unwrap() - 1,
            socket: "/nowhere/1-0.sock".into(),
        };
        kept.stop().await;
        assert!(
            other.try_wait().unwrap().is_none(),
            "another process was stopped"
        );
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(started(pid), None);
    }

    #[tokio::test]
    async fn a_socket_without_a_listener_has_no_worker() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("1-0.sock");
        assert_eq!(KeptWorker::find(&socket), None);
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let found = KeptWorker::find(&socket).unwrap();
        assert_eq!(found.pid, Pid::this());
        drop(listener);
        assert_eq!(KeptWorker::find(&socket), None);
    }
}
