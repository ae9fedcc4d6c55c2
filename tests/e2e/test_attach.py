"""Workers that outlive their launcher."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import SECONDS, Server, children, parent, story, wait_gone

KEEP = ["--keep-workers", "10m"]


def directory(server: Server) -> Path:
    found = re.search(r"attach with --attach (\S+)", server.output())
    assert found, server.output()
    return Path(found[1])


def kill(server: Server) -> None:
    server.process.kill()
    server.process.wait()


@pytest.fixture
def leftover() -> Iterator[list[int]]:
    """Processes to end after the test: kept workers have no parent that would."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if parent(pid) is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("options", [[], ["--tp", "2"]], ids=["one", "two"])
def test_next_server_attaches_to_the_workers_of_a_killed_one(
    tmp_path: Path, options: list[str], leftover: list[int]
) -> None:
    with Server(tmp_path / "first.log", [*KEEP, *options]) as first:
        workers = children(first.process.pid)
        leftover += workers
        expected, sockets = story(first), directory(first)
        kill(first)
    with Server(tmp_path / "next.log", [*options, "--attach", str(sockets)]) as following:
        assert children(following.process.pid) == []
        assert all(parent(pid) is not None for pid in workers)
        assert story(following) == expected
        assert following.stop() == 0
        # This server keeps nothing.
        wait_gone(workers)
        assert not sockets.exists()


def test_an_attached_server_logs_what_its_workers_log(tmp_path: Path, leftover: list[int]) -> None:
    with Server(tmp_path / "first.log", KEEP) as first:
        (worker,) = children(first.process.pid)
        leftover.append(worker)
        sockets = directory(first)
        kill(first)
    with Server(tmp_path / "next.log", ["--attach", str(sockets)]) as following:
        os.kill(worker, signal.SIGUSR1)  # it logs its stacks
        deadline = time.monotonic() + SECONDS
        while not re.search(r"\[worker 0\] .*penstock/worker/__main__.py", following.output()):
            assert time.monotonic() < deadline, following.output()
            time.sleep(0.05)


def test_an_attached_worker_that_is_lost_is_replaced(tmp_path: Path, leftover: list[int]) -> None:
    with Server(tmp_path / "first.log", KEEP) as first:
        (worker,) = children(first.process.pid)
        leftover.append(worker)
        sockets = directory(first)
        # A signal keeps the workers, too.
        assert first.stop() == 0
        assert parent(worker) is not None
    with Server(tmp_path / "next.log", ["--attach", str(sockets)]) as following:
        expected = story(following)
        os.kill(worker, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while not children(following.process.pid):
            assert time.monotonic() < deadline, following.output()
            time.sleep(0.05)
        following.wait_ready()
        assert story(following) == expected


def test_other_settings_are_refused_and_the_workers_wait_on(
    tmp_path: Path, leftover: list[int]
) -> None:
    with Server(tmp_path / "first.log", KEEP) as first:
        (worker,) = children(first.process.pid)
        leftover.append(worker)
        sockets = directory(first)
        used = Server(tmp_path / "early.log", ["--attach", str(sockets)]).start()
        assert used.process.wait(SECONDS) == 1
        assert "another server uses these workers" in used.output()
        kill(first)
    other = ["--dtype", "float64", "--attach", str(sockets)]
    refused = Server(tmp_path / "other.log", other).start()
    assert refused.process.wait(SECONDS) == 1
    assert "dtype is 'float32', not 'float64'" in refused.output()
    assert parent(worker) is not None
    with Server(tmp_path / "next.log", ["--attach", str(sockets)]) as following:
        assert story(following)
        assert children(following.process.pid) == []


def test_kept_workers_end_when_no_server_attaches_in_time(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log", ["--keep-workers", "1s"]) as server:
        workers, sockets = children(server.process.pid), directory(server)
        kill(server)
        wait_gone(workers)
    late = Server(tmp_path / "late.log", ["--attach", str(sockets)]).start()
    assert late.process.wait(SECONDS) == 1
    assert "they may have ended" in late.output()
