"""When a worker ends: with its launcher, or later if it is kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from penstock.worker.lease import Lease

SECONDS = 60.0
LONG = 10_000.0  # longer than any test


@dataclass
class Watched:
    """A lease and the pipe that its launcher holds."""

    ended: threading.Event = field(default_factory=threading.Event)
    orphaned: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.lease = Lease(self.ended.set, self.orphaned.set)
        reading, self.launcher = os.pipe()
        self.thread = threading.Thread(target=self.lease.watch, args=(reading,), daemon=True)
        self.thread.start()

    def kill_launcher(self) -> None:
        os.close(self.launcher)


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.lease.keep(0)


def test_a_worker_ends_with_its_launcher_even_during_a_step_stream(watched: Watched) -> None:
    watched.lease.hold()
    os.write(watched.launcher, b"still here")
    assert not watched.ended.wait(0.1)
    watched.kill_launcher()
    assert watched.ended.wait(SECONDS)
    assert not watched.orphaned.is_set()


def test_a_kept_worker_ends_when_its_time_is_over(watched: Watched) -> None:
    watched.lease.keep(0.05)
    watched.kill_launcher()
    assert watched.ended.wait(SECONDS)
    assert watched.orphaned.is_set()


def test_a_kept_worker_waits_for_the_end_of_the_step_stream(watched: Watched) -> None:
    watched.lease.keep(0.01)
    release = watched.lease.hold()
    watched.kill_launcher()
    assert watched.orphaned.wait(SECONDS)
    assert not watched.ended.wait(0.1)
    release()
    assert watched.ended.wait(SECONDS)


def test_a_router_that_keeps_nothing_ends_a_kept_worker_when_it_leaves(watched: Watched) -> None:
    watched.lease.keep(LONG)
    watched.kill_launcher()
    assert watched.orphaned.wait(SECONDS)
    loaded = watched.lease.hold(handover=LONG)
    watched.lease.keep(0)
    loaded()
    # The handover lasts until the router's step stream, and ends with it.
    stepping = watched.lease.hold()
    assert not watched.ended.wait(0.1)
    stepping()
    assert watched.ended.wait(SECONDS)
