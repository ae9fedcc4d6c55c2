"""Workers that a standby process forks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from serving import Server, children, parent, worker_sockets

SECONDS = 60


def wait_for(condition: Callable[[], object], server: Server) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, server.output()
        time.sleep(0.02)


def gone(pids: list[int]) -> bool:
    return all(parent(pid) is None for pid in pids)


def text(server: Server) -> str:
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}}
    reply = httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["generated_text"])


def test_lost_workers_are_forked_again(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log", ["--standby", "--tp", "2"]) as server:
        expected = text(server)
        (fork_server,) = children(server.process.pid)
        workers = list(worker_sockets(server.process.pid))
        assert sorted(workers) == sorted(children(fork_server)) and len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        wait_for(lambda: gone(workers), server)
        assert text(server) == expected
        assert children(server.process.pid) == [fork_server]
        workers = children(fork_server)
        server.process.kill()
        server.process.wait()
        wait_for(lambda: gone([fork_server, *workers]), server)


def test_a_fork_server_that_is_killed_ends_its_workers_and_is_replaced(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log", ["--standby"]) as server:
        expected = text(server)
        (fork_server,) = children(server.process.pid)
        workers = children(fork_server)
        os.kill(fork_server, signal.SIGKILL)
        wait_for(lambda: gone(workers), server)
        assert text(server) == expected
        assert children(server.process.pid) != [fork_server]


def test_forked_workers_outlive_their_launcher_with_keep_workers(tmp_path: Path) -> None:
    with Server(tmp_path / "first.log", ["--standby", "--keep-workers", "10m"]) as first:
        expected = text(first)
        (fork_server,) = children(first.process.pid)
        (worker, socket), *_ = worker_sockets(first.process.pid).items()
        first.process.kill()
        first.process.wait()
    with Server(tmp_path / "next.log", ["--attach", str(socket.parent), "--standby"]) as following:
        assert text(following) == expected
        assert parent(worker) == fork_server
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: gone([worker, fork_server]), following)
        assert text(following) == expected
