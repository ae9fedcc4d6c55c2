"""What a server outlives: a log that nobody can write, too many connections, a tidy neighbour."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from serving import Server, children, metric_value

SECONDS = 60


@dataclass
class Mute(Server):
    """A server whose stdout and stderr go to `sink`."""

    sink: int = -1

    def start(self) -> Mute:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            self.command,
            stdout=self.sink,
            stderr=self.sink,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        return self

    def output(self) -> str:
        return "nobody can read it"


@pytest.fixture(params=["full disk", "unread pipe"])
def sink(request: pytest.FixtureRequest) -> Iterator[int]:
    """A file descriptor that cannot be written: each write fails, or waits for ever."""
    if request.param == "full disk":
        full = os.open("/dev/full", os.O_WRONLY)
        yield full
        os.close(full)
        return
    read, write = os.pipe()
    flags = fcntl.fcntl(write, fcntl.F_GETFL)
    fcntl.fcntl(write, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while os.write(write, b"x" * 4096):
            pass
    except BlockingIOError:
        pass
    # The flag is of the pipe's end, which the server shares.
    fcntl.fcntl(write, fcntl.F_SETFL, flags)
    yield write
    os.close(read)
    os.close(write)


def generate(server: Server) -> httpx.Response:
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 4}}
    return httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS)


def wait_answers(server: Server) -> None:
    """Returns when requests are answered."""
    deadline = time.monotonic() + SECONDS
    while generate(server).status_code != 200:
        assert time.monotonic() < deadline
        assert server.process.poll() is None
        time.sleep(0.1)


def test_unwritable_log_does_not_stop_the_server(tmp_path: Path, sink: int) -> None:
    with Mute(tmp_path / "none", sink=sink) as server:
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while children(server.process.pid) in ([], [worker]):
            assert time.monotonic() < deadline, "the worker is not replaced"
            time.sleep(0.05)
        wait_answers(server)
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert metric_value(server, "penstock_worker_losses") == 1
        assert metric_value(server, "penstock_panics") == 0
        if os.readlink(f"/proc/self/fd/{sink}") == "/dev/full":
            assert metric_value(server, "penstock_log_lines_dropped") > 0
        assert server.stop() == 0


def test_errors_reveal_no_paths_and_no_worker_messages(tmp_path: Path) -> None:
    """Also those of a server that gives up while a stream runs."""
    options = ["--exit-after-losses", "1"]
    with Server(tmp_path / "serve.log", options) as server:
        (worker,) = children(server.process.pid)
        body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 2000}}
        with httpx.stream("POST", f"{server.url}/generate_stream", json=body, timeout=SECONDS) as s:
            lines = s.iter_lines()
            next(lines)
            os.kill(worker, signal.SIGKILL)
            last = [line for line in lines if line.startswith("data:")][-1]
        assert server.process.wait(timeout=SECONDS) == 1
        assert "the server's log says why" in last
        assert all(word not in last for word in ("worker 0", "/tmp", ".sock"))
        log = server.output()
        assert "the workers were lost once" in log and "worker 0 was lost" in log


@dataclass
class Limited(Server):
    """A server that may have as many open files as `files` says: (soft, hard)."""

    files: tuple[int, int] = (1024, 1024)

    def start(self) -> Limited:
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                ["prlimit", "--nofile={}:{}".format(*self.files), *self.command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        return self


def soft_limit(pid: int) -> int:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Max open files")).split()[3])


def test_idle_connections_do_not_block_others(tmp_path: Path) -> None:
    with Limited(tmp_path / "serve.log", files=(256, 256)) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
        try:
            for route in ("health", "ready", "metrics"):
                assert httpx.get(f"{server.url}/{route}", timeout=SECONDS).status_code == 200
            wait_answers(server)
            (worker,) = children(server.process.pid)
            os.kill(worker, signal.SIGKILL)
            deadline = time.monotonic() + SECONDS
            while children(server.process.pid) in ([], [worker]):
                assert time.monotonic() < deadline, server.output()
                time.sleep(0.05)
            wait_answers(server)
        finally:
            for connection in silent:
                connection.close()
        assert "at most 128 connections: the limit of open files is 256" in server.output()
        assert "Too many open files" not in server.output()
        assert server.stop() == 0


def test_open_file_limit_is_raised(tmp_path: Path) -> None:
    with Limited(tmp_path / "serve.log", files=(256, 2048)) as server:
        assert soft_limit(server.process.pid) == 2048
    explained = subprocess.run(
        ["prlimit", "--nofile=256:2048", *server.command, "--explain"],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in explained.stdout.splitlines() if "connections" in line)
    words = line.split(maxsplit=2)
    assert words[:2] == ["connections", str(2048 - 256 - 8)]
    assert words[2].startswith("the limit of open files was raised from 256 to 2048, minus 264")


def directories(pid: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"penstock-{pid}-*"))


def test_removed_socket_directory_is_recreated_and_cleaned_up(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log") as server:
        (directory,) = directories(server.process.pid)
        shutil.rmtree(directory)
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while children(server.process.pid) in ([], [worker]):
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
        wait_answers(server)
        assert [path.name for path in directory.glob("*.sock")] == ["2-0.sock"]
        server.process.kill()
        server.process.wait()
    assert directory.is_dir()
    with Server(tmp_path / "serve.log") as server:
        assert not directory.exists()
        (directory,) = directories(server.process.pid)
    assert not directory.exists()
