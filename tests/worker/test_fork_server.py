"""The fork server's protocol, without a launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import forks
import pytest
from forks import Launcher


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = forks.launcher()
    with launcher.connection:
        yield launcher
    assert launcher.server.wait(30) == 0


def test_a_worker_ends_with_its_lease_and_its_status_is_reported(
    launcher: Launcher, tmp_path: Path
) -> None:
    workers = [launcher.fork(tmp_path / f"1-{n}.sock") for n in range(2)]
    os.close(workers[0].lease)
    assert [int(line) for line in workers[0].report] == [0]
    os.kill(workers[1].pid, signal.SIGKILL)
    assert [int(line) for line in workers[1].report] == [signal.SIGKILL]


def test_a_worker_is_the_leader_of_its_process_group(launcher: Launcher, tmp_path: Path) -> None:
    worker = launcher.fork(tmp_path / "1-0.sock")
    assert os.getpgid(worker.pid) == worker.pid
    os.killpg(worker.pid, signal.SIGTERM)
    assert [int(line) for line in worker.report] == [signal.SIGTERM]


def test_an_unusable_socket_ends_the_worker_alone(launcher: Launcher, tmp_path: Path) -> None:
    worker = launcher.fork(tmp_path / "missing" / "1-0.sock")
    (status,) = worker.report
    assert os.waitstatus_to_exitcode(int(status)) == 1
    other = launcher.fork(tmp_path / "1-0.sock")
    os.close(other.lease)
    assert [int(line) for line in other.report] == [0]
