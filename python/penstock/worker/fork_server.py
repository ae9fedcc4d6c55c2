"""`python -m penstock.worker.fork_server`: forks workers that have imported their modules.

Imports are most of a worker's start, so this process does them once. It loads no model, uses no
device and starts no thread of its own, so that a fork is safe.

Its standard input is a socket (SOCK_SEQPACKET) whose other end the launcher holds. A request is one
packet of JSON, {"socket": PATH, "rank": R}, with three descriptors: the pipe that becomes the
worker's standard input and is its lease (`penstock.worker.lease`), its standard error, and a pipe
for its report. The report has two lines: the worker's process id, and, once the worker has ended,
its wait status as waitpid returns it.

This process ends when the launcher has closed the socket and all workers have ended; with
`--keep-workers`, workers outlive the launcher. If this process is killed, the system kills the
workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import warnings
from dataclasses import dataclass

if __name__ == "__main__":
    gc.disable()  # workers enable it

from penstock.worker import __main__ as worker

REQUEST_BYTES = 64 << 10
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
STDIN, STDERR = 0, 2


def main() -> None:
    """Serves until the launcher and the workers have ended; in a child, is a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.warm_imports()
    # OpenBLAS has a thread. It is idle, and the library handles forks.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    gc.freeze()  # keeps these pages shared: the collector does not write to them
    arguments = ForkServer(socket.socket(fileno=STDIN)).run()
    if arguments is not None:
        worker.main(arguments)


@dataclass(frozen=True)
class Child:
    """A worker that runs, and the pipe for its report."""

    process: int
    report: int

    def tell(self, number: int) -> None:
        """Adds a line to the report. The launcher may be gone."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.report, b"%d\n" % number)


class ForkServer:
    """Forks a worker for each request, and reports how workers end."""

    def __init__(self, launcher: socket.socket) -> None:
        self.launcher = launcher
        self.children: dict[int, Child] = {}  # by pidfd, which is ready when the child has ended
        self.poll = select.poll()

    def run(self) -> list[str] | None:
        """Returns the arguments of the worker in a child, None once nothing is left to serve."""
        serving = self.launcher.fileno()
        self.poll.register(serving, select.POLLIN)
        launched = True
        while launched or self.children:
            for ready, _ in self.poll.poll():
                if ready != serving:
                    self._reap(ready)
                    continue
                data, descriptors, _, _ = socket.recv_fds(self.launcher, REQUEST_BYTES, 3)
                if not data:
                    self.poll.unregister(serving)
                    launched = False
                    continue
                request = json.loads(data)
                if self._fork(*descriptors):
                    return ["--socket", request["socket"], "--rank", str(request["rank"])]
        return None

    def _fork(self, lease: int, log: int, report: int) -> bool:
        """Returns True in the child."""
        server = os.getpid()
        process = os.fork()
        if process == 0:
            os.close(report)
            self._leave(server)
            for descriptor, standard in ((lease, STDIN), (log, STDERR)):
                os.dup2(descriptor, standard)
                os.close(descriptor)
            return True
        os.close(lease)
        os.close(log)
        # A kill of the group ends the worker's own children as well.
        os.setpgid(process, process)
        child = Child(process, report)
        descriptor = os.pidfd_open(process)
        self.children[descriptor] = child
        self.poll.register(descriptor, select.POLLIN)
        child.tell(process)
        return False

    def _leave(self, server: int) -> None:
        """Closes what belongs to the fork server, in a child, and ends the child with it."""
        self.launcher.close()
        for descriptor, child in self.children.items():
            os.close(descriptor)
            os.close(child.report)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)

    def _reap(self, descriptor: int) -> None:
        child = self.children.pop(descriptor)
        self.poll.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(child.process, 0)
        child.tell(status)
        os.close(child.report)


if __name__ == "__main__":
    main()
