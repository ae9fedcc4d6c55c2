"""Workers that the fork server (`--standby`) forks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from serving import Server, children, parent, story, wait_gone, worker_sockets


def test_lost_workers_are_forked_again(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log", ["--standby", "--tp", "2"]) as server:
        expected = story(server)
        (fork_server,) = children(server.process.pid)
        workers = list(worker_sockets(server.process.pid))
        assert sorted(workers) == sorted(children(fork_server)) and len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        wait_gone(workers)
        assert story(server) == expected
        assert children(server.process.pid) == [fork_server]
        workers = children(fork_server)
        server.process.kill()
        server.process.wait()
        wait_gone([fork_server, *workers])


def test_a_fork_server_that_is_killed_ends_its_workers_and_is_replaced(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log", ["--standby"]) as server:
        expected = story(server)
        (fork_server,) = children(server.process.pid)
        workers = children(fork_server)
        os.kill(fork_server, signal.SIGKILL)
        wait_gone(workers)
        assert story(server) == expected
        assert children(server.process.pid) != [fork_server]


def test_forked_workers_outlive_their_launcher_with_keep_workers(tmp_path: Path) -> None:
    with Server(tmp_path / "first.log", ["--standby", "--keep-workers", "10m"]) as first:
        expected = story(first)
        (fork_server,) = children(first.process.pid)
        (worker, socket), *_ = worker_sockets(first.process.pid).items()
        first.process.kill()
        first.process.wait()
    with Server(tmp_path / "next.log", ["--attach", str(socket.parent), "--standby"]) as following:
        assert story(following) == expected
        assert parent(worker) == fork_server
        os.kill(worker, signal.SIGKILL)
        wait_gone([worker, fork_server])
        assert story(following) == expected
