"""How each kind of fault is injected into a server that runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from .leaks import gauges
from .schedule import Fault, Kind
from .server import POISON, FaultyServer, NoWorker

GARBAGE_BYTES = 4096
DISK_SECONDS = 2.0
FIRE_SECONDS = 20.0
POISON_SECONDS = 60
DAYS = 40  # that the clock jumps at most


@dataclass(frozen=True)
class Durations:
    """Seconds that some faults last."""

    stop: float = 30.0
    stall: float = 5.0


class Injector:
    """Injects faults into one server. `inject` blocks until the fault has happened."""

    def __init__(self, server: FaultyServer, durations: Durations) -> None:
        self.server = server
        self.durations = durations
        self.orphans: list[int] = []  # workers that outlived their launcher
        self.poisoned: list[str] = []  # what senders of poison saw
        self.losses = 0  # of workers, counted by the processes of the server that have ended
        self.kinds: dict[Kind, Callable[[Fault], object]] = {
            Kind.KILL: lambda fault: self._signal(fault, signal.SIGKILL),
            Kind.SEGV: lambda fault: self._signal(fault, signal.SIGSEGV),
            Kind.STOP: self._stop,
            Kind.RAISE: lambda fault: self._in_op(fault, "raise"),
            Kind.OOM: lambda fault: self._in_op(fault, "oom"),
            Kind.STALL: lambda fault: self._in_op(fault, "stall"),
            Kind.CLOSE: lambda fault: self._order(fault, {"do": "close"}),
            Kind.GARBAGE: lambda fault: self._order(fault, {"do": "garbage", "seed": fault.seed}),
            Kind.STRANGER: self._stranger,
            Kind.DISK: self._disk,
            Kind.CLOCK: self._clock,
            Kind.TWICE: self._twice,
            Kind.POISON: lambda fault: self._poison("raise"),
            Kind.KILLER: lambda fault: self._poison("kill"),
            Kind.LAUNCHER: self._launcher,
        }

    def inject(self, fault: Fault) -> None:
        """Raises NoWorker if there is none that the fault could happen to."""
        self.kinds[fault.kind](fault)

    def all_losses(self) -> int:
        """Losses of workers that the server has counted."""
        return self.losses + self._counted()

    def _counted(self) -> int:
        return int(gauges(self.server.url)["penstock_worker_losses"])

    def _signal(self, fault: Fault, number: signal.Signals) -> int:
        pid = self.server.worker(fault.rank)
        with contextlib.suppress(ProcessLookupError):  # it ends at this moment by itself
            os.kill(pid, number)
        return pid

    def _stop(self, fault: Fault) -> None:
        pid = self._signal(fault, signal.SIGSTOP)

        def go_on() -> None:
            if self.server.workers().get(fault.rank) == pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        timer = threading.Timer(self.durations.stop, go_on)
        timer.daemon = True
        timer.start()

    def _order(self, fault: Fault, order: dict[str, object]) -> int:
        return self.server.order(fault.rank, order)

    def _in_op(self, fault: Fault, effect: str) -> None:
        order: dict[str, object] = {"do": effect, "op": fault.op, "seconds": self.durations.stall}
        pid = self._order(fault, order)
        until = time.monotonic() + FIRE_SECONDS
        while not self.server.fired(pid):
            if self.server.workers().get(fault.rank) != pid:
                raise NoWorker(f"the worker ended before it called {fault.op}")
            if time.monotonic() > until:
                raise NoWorker(f"no step calls {fault.op}")
            time.sleep(0.01)

    def _stranger(self, fault: Fault) -> None:
        self.server.worker(fault.rank)
        noise = random.Random(fault.seed)
        for path in self.server.worker_sockets():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(noise.randbytes(GARBAGE_BYTES))

    def _disk(self, fault: Fault) -> None:
        self.server.fill_disk()
        try:
            self._signal(fault, signal.SIGKILL)
            time.sleep(DISK_SECONDS)
        finally:
            self.server.free_disk()

    def _clock(self, fault: Fault) -> None:
        self.server.jump(random.Random(fault.seed).randrange(-DAYS, DAYS) * 86_400)

    def _twice(self, fault: Fault) -> None:
        first = self._signal(fault, signal.SIGKILL)
        until = time.monotonic() + FIRE_SECONDS
        while self.server.workers().get(fault.rank) in (None, first):
            if time.monotonic() > until:
                raise NoWorker("the worker is not replaced")
            time.sleep(0.01)
        time.sleep(random.Random(fault.seed).uniform(0, 4))
        self._signal(fault, signal.SIGKILL)

    def _poison(self, effect: str) -> None:
        """Sends a request that fails each step with it, and waits until it is refused."""
        before, began = self._counted(), time.monotonic()
        body = {"inputs": POISON[effect], "parameters": {"max_new_tokens": 8}}
        try:
            reply = httpx.post(f"{self.server.url}/generate", json=body, timeout=POISON_SECONDS)
        except httpx.HTTPError as error:
            losses = self._counted() - before
            raise NoWorker(f"no answer to poison after {losses} losses: {error}") from error
        seconds = time.monotonic() - began
        note = f"{reply.status_code} after {seconds:.1f} s and {self._counted() - before} losses"
        self.poisoned.append(f"{effect}: {note}: {reply.text[:200]}")
        if reply.status_code == 200:
            raise NoWorker("the poisoned request was served")

    def _launcher(self, fault: Fault) -> None:
        self.losses += self._counted()
        self.orphans += self.server.kill_launcher()
        self.server.start().wait_ready()
