"""The launcher's side of a fork server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

STDERR = 2
PYTHON = Path(__file__).resolve().parents[2] / "python"


@dataclass
class Forked:
    """A worker: its process id, the launcher's end of its lease, and the rest of its report."""

    pid: int
    lease: int
    report: Iterator[str]


@dataclass
class Launcher:
    """The launcher's side."""

    connection: socket.socket
    server: subprocess.Popen[bytes]

    def fork(self, path: Path, rank: int = 0) -> Forked:
        """A worker that serves on `path`; it writes to this process's standard error."""
        their_lease, lease = os.pipe()
        report, their_report = os.pipe()
        request = json.dumps({"socket": str(path), "rank": rank}).encode()
        socket.send_fds(self.connection, [request], [their_lease, STDERR, their_report])
        for descriptor in (their_lease, their_report):
            os.close(descriptor)
        lines = os.fdopen(report)
        return Forked(int(next(lines)), lease, lines)


def launcher() -> Launcher:
    """Starts a fork server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "penstock.worker.fork_server"]
    server = subprocess.Popen(command, stdin=theirs, cwd=PYTHON)
    theirs.close()
    return Launcher(ours, server)


@lru_cache(maxsize=1)
def shared_launcher() -> Launcher:
    """One for all tests of this process; the fork server ends with it."""
    return launcher()
