"""One run: a server, the reference, the storm, and what is left behind."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .inject import Durations, Injector
from .leaks import Held, leaked
from .load import drawn
from .reference import record
from .report import Report, summary
from .schedule import LOSSES, Fault, Kind, faults
from .server import FaultyServer
from .storm import Known, Storm


@dataclass(frozen=True)
class Plan:
    """What a run does; equal plans send equal requests and inject equal faults in equal order."""

    seed: int
    kinds: list[Kind]
    world_size: int = 1
    requests: int = 36  # different ones
    clients: int = 8
    minutes: float = 60 * 24.0  # at most
    most: int | None = None  # faults
    losses: int | None = None  # of workers
    every: float = 0.0  # seconds between two faults, at least
    patient: bool = False  # no fault comes before each request has gone on after the last one
    durations: Durations = field(default_factory=Durations)

    def faults(self) -> Iterator[Fault]:
        """The faults of this run, in order."""
        found = faults(self.seed, self.kinds, self.world_size)
        if self.losses is not None:
            found = _until(found, self.losses)
        return itertools.islice(found, self.most)


def _until(found: Iterator[Fault], losses: int) -> Iterator[Fault]:
    for fault in found:
        if losses <= 0:
            return
        yield fault
        if fault.kind in LOSSES:
            losses -= 2 if fault.kind is Kind.TWICE else 1


def run(plan: Plan, log: Path, options: list[str]) -> Report:
    """Runs a plan on a server of its own. Raises UnstableReference."""
    exact = [] if "--dtype" in options else ["--dtype", "float64"]
    words = [*exact, "--tp", str(plan.world_size), *options]
    with FaultyServer(log, words) as server:
        requests = drawn(plan.seed, plan.requests)
        answers = asyncio.run(record(server.url, requests))
        known = [Known(*pair) for pair in zip(requests, answers, strict=True)]
        before = Held.of(server.process.pid)
        injector = Injector(server, plan.durations)
        storm = Storm(known, injector, plan.clients, plan.seed, plan.patient, plan.every)
        began = time.monotonic()
        asyncio.run(storm.run(plan.faults(), began + plan.minutes * 60))
        name = f"{plan.world_size} workers" if plan.world_size > 1 else "1 worker"
        report = summary(name, storm, time.monotonic() - began)
        if storm.ended is None:
            report.leaks = leaked(server, before)
            report.losses = storm.injector.all_losses()
    return report
