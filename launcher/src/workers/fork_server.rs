//! The fork server (`--standby`): a process that imports the workers' modules once, and forks every
//! worker. `python/penstock/worker/fork_server.py` describes the protocol.

use std::io::{BufRead, BufReader, IoSlice, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use nix::unistd::Pid;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::process::{LISTEN_TIMEOUT, Process, WorkerProcess, name, thread};
use crate::error::{Failure, Outcome};
use crate::interpreter::Interpreter;

/// The running process. It ends once this is dropped and its workers have ended.
#[derive(Debug)]
pub(super) struct ForkServer {
    process: Process,
    requests: OwnedFd,
}

#[derive(Serialize)]
struct Request<'a> {
    socket: &'a Path,
    rank: u32,
}

impl ForkServer {
    /// Starts the process, which imports its modules then.
    pub(super) fn start(interpreter: &Interpreter) -> Outcome<Self> {
        let pair = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        );
        let (requests, theirs) =
            pair.map_err(|error| Failure::runtime(format!("no socket for workers: {error}")))?;
        let mut command = Command::new(&interpreter.path);
        command
            .args(["-m", "penstock.worker.fork_server"])
            .stdin(Stdio::from(theirs));
        let (process, _) = Process::spawn("fork server", &mut command)?;
        Ok(Self { process, requests })
    }

    /// Returns whether the process runs.
    pub(super) fn runs(&self) -> bool {
        self.process.exit_status().is_none()
    }

    /// Forks the worker of `rank`, which will listen on `socket`. Waits for the imports, if they are
    /// not done yet.
    pub(super) async fn fork(&self, socket: &Path, rank: u32) -> Outcome<WorkerProcess> {
        let (process, lease) = self.forked(socket, rank).await.map_err(|error| {
            let tail = self.process.stderr_tail();
            Failure::runtime(format!("cannot fork {}: {error}.{tail}", name(rank)))
        })?;
        Ok(WorkerProcess::new(rank, socket, process, Some(lease)))
    }

    async fn forked(&self, socket: &Path, rank: u32) -> Result<(Process, OwnedFd), String> {
        let pipes = || -> std::io::Result<_> { Ok((pipe()?, pipe()?, pipe()?)) };
        let ((their_lease, lease), (log, their_log), (report, their_report)) =
            pipes().map_err(|error| error.to_string())?;
        self.send(
            &Request { socket, rank },
            &their_lease,
            [&their_log, &their_report],
        )?;
        drop((their_lease, their_log, their_report));
        let (started, pid) = oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel();
        thread(format!("{} report", name(rank)), move || {
            // The receivers may be gone: nobody waits for this worker any more.
            let mut lines = BufReader::new(report).lines();
            let mut number = || lines.next()?.ok()?.parse().ok();
            if let Some(pid) = number() {
                let _ = started.send(Pid::from_raw(pid));
                // A report without an end: the system has killed the worker with its server.
                let _ = end.send(number().unwrap_or(Signal::SIGKILL as i32));
            }
        })
        .map_err(|failure| failure.message)?;
        let pid = match timeout(LISTEN_TIMEOUT, pid).await {
            Ok(Ok(pid)) => pid,
            Ok(Err(_)) => return Err("the process that forks workers has ended".to_owned()),
            Err(_) => return Err(format!("no answer within {} s", LISTEN_TIMEOUT.as_secs())),
        };
        let wait = move || ended.recv().ok().map(ExitStatus::from_raw);
        let process =
            Process::watch(&name(rank), pid, log, wait).map_err(|failure| failure.message)?;
        Ok((process, lease.into()))
    }

    /// Sends a request with its descriptors. The socket has room for it: one is under way at a time.
    fn send(
        &self,
        request: &Request<'_>,
        lease: &PipeReader,
        [log, report]: [&PipeWriter; 2],
    ) -> Result<(), String> {
        let text = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let descriptors = [lease.as_raw_fd(), log.as_raw_fd(), report.as_raw_fd()];
        sendmsg::<()>(
            self.requests.as_raw_fd(),
            &[IoSlice::new(&text)],
            &[ControlMessage::ScmRights(&descriptors)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        )
        .map(drop)
        .map_err(|error| error.to_string())
    }
}
