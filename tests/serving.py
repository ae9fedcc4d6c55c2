"""A Penstock server as a child process, for every test that talks HTTP."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

T = TypeVar("T")

READY_SECONDS = 120
SECONDS = 60
# `make client-test` sets it: the environments of large clients are without Penstock.
PYTHON = os.environ.get("SERVER_PYTHON", sys.executable)
WORKER_SOCKET = re.compile(r"\d+-\d+\.sock")  # generation and rank


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Server:
    """`penstock serve` with `options`, on a free port of 127.0.0.1; use as a context manager."""

    log: Path
    options: list[str] = field(default_factory=list)
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        serve = [PYTHON, "-m", "penstock", "serve", "--port", str(self.port)]
        dtype = [] if "--dtype" in self.options else ["--dtype", "float32"]
        return [*serve, "--device", "cpu", *dtype, "--threads", "1", *self.options]

    def start(self) -> Server:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        return self

    def wait_ready(self) -> Server:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"exit code {self.process.returncode}:\n{self.output()}")
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"not ready after {READY_SECONDS} s:\n{self.output()}")

    def stop(self, seconds: float = 30) -> int:
        """Sends SIGTERM and returns the exit code; a server that hangs is killed and fails."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Server:
        self.start()
        try:
            return self.wait_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_for(found: Callable[[], T]) -> T:
    """Returns what is found, once it is true."""
    until = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < until, "never"
        time.sleep(0.02)
    return value


def story(server: Server) -> str:
    """The text of a greedy answer, always the same."""
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}}
    reply = httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["generated_text"])


def metrics(server: Server) -> str:
    """All of them, as Prometheus reads them."""
    return httpx.get(f"{server.url}/metrics").text


def metric_value(server: Server, name: str) -> float:
    text = metrics(server)
    values = re.findall(rf"^{name}(?:_total)?(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.M)
    assert values, f"no metric {name}"
    return sum(map(float, values))


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and parent(int(entry.name)) == pid:
            found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """The children of `pid`, and theirs."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def worker_sockets(pid: int) -> dict[int, Path]:
    """Process id -> socket of the workers that run among the descendants of `pid`."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = {f"socket:[{row[6]}]": Path(row[7]) for row in rows if len(row) > 7}
    return {
        process: paths[file]
        for process in descendants(pid)
        for file in open_files(process)
        if file in paths and WORKER_SOCKET.fullmatch(paths[file].name)
    }


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process stand for; none if it has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(descriptor.readlink()))
    return found


def parent(pid: int) -> int | None:
    """The parent of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])


def wait_gone(pids: list[int]) -> None:
    """Waits until these processes have ended."""
    deadline = time.monotonic() + SECONDS
    while any(parent(pid) is not None for pid in pids):
        assert time.monotonic() < deadline, f"still alive: {pids}"
        time.sleep(0.05)
