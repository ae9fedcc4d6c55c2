"""Clients that send the load, and faults that come between their tokens."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import httpx

from .answers import Answer
from .client import connect, send
from .compare import Verdict, difference
from .inject import Injector
from .load import Request
from .schedule import Fault, Kind
from .server import NoWorker

SETTLE_SECONDS = 120  # for each stream to go on after a fault
POLL_SECONDS = 0.02
MOST_WAIT = 5.0  # of a client that was refused
LEAVING = 0.1  # share of requests whose clients leave
LEAVING_SECONDS = 4.0
REFUSALS = (429, 503)


class ServerEnded(RuntimeError):
    """The server's process ended, though nothing killed it."""


@dataclass
class Outcome:
    """One request of a client, with its answer."""

    request: Request
    answer: Answer
    began: float  # time.monotonic(), as all times here
    ended: float
    verdict: Verdict = Verdict.SAME
    detail: str = ""


@dataclass
class Injection:
    """One fault that happened, or why it could not."""

    fault: Fault
    began: float
    ended: float = 0.0
    settled: float = 0.0  # every stream that was running went on or ended
    failure: str | None = None


@dataclass
class Live:
    """A request under way."""

    streams: bool
    events: int = 0


@dataclass
class Known:
    """A request and its answer without faults."""

    request: Request
    reference: Answer


@dataclass
class Storm:
    """Runs clients and faults, and keeps what happened."""

    known: list[Known]
    injector: Injector
    clients: int
    seed: int
    patient: bool = False
    every: float = 0.0  # seconds from one fault to the next, at least
    outcomes: list[Outcome] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    live: dict[int, Live] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    events: int = 0
    ending: bool = False
    ended: str | None = None  # why, if the server ended by itself

    async def run(self, faults: Iterator[Fault], last: float) -> None:
        """Injects `faults` until they end or the time `last` comes; then lets all streams end."""
        url = self.injector.server.url
        async with connect(url, self.clients + 1) as client:
            tasks = [asyncio.create_task(self._client(client, i)) for i in range(self.clients)]
            try:
                for fault in faults:
                    await self._progress(fault.events)
                    await self._pass(self.every)
                    if time.monotonic() > last:
                        break
                    await self._fault(fault)
                await self._progress(self.clients)
            except ServerEnded as error:
                self.ended = str(error)
            finally:
                self.ending = True
                await asyncio.gather(*tasks)

    async def _client(self, client: httpx.AsyncClient, index: int) -> None:
        choose = random.Random(self.seed * 1000 + index)
        while not self.ending:
            known = choose.choice(self.known)
            if choose.random() < LEAVING:
                await self._leave(client, known, choose.uniform(0, LEAVING_SECONDS))
            else:
                await self._served(client, known)

    async def _leave(self, client: httpx.AsyncClient, known: Known, seconds: float) -> None:
        """Sends a request and disconnects, also while the workers are down."""
        began = time.monotonic()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(send(client, known.request), seconds)
        left = Outcome(known.request, Answer(), began, time.monotonic(), Verdict.LEFT)
        self.outcomes.append(left)

    async def _served(self, client: httpx.AsyncClient, known: Known) -> None:
        """Sends a request again while it is refused, as the server asks for."""
        while True:
            outcome = await self._send(client, known)
            self.outcomes.append(outcome)
            if outcome.answer.status in (200, 400) or self.ending:
                return
            await asyncio.sleep(min(outcome.answer.retry_after or 0.2, MOST_WAIT))

    async def _send(self, client: httpx.AsyncClient, known: Known) -> Outcome:
        began = time.monotonic()
        with self._alive(known.request) as live:

            def on_event() -> None:
                live.events += 1
                self.events += 1

            answer = await send(client, known.request, on_event)
        outcome = Outcome(known.request, answer, began, time.monotonic())
        self._judge(outcome, known.reference)
        return outcome

    @contextmanager
    def _alive(self, request: Request) -> Iterator[Live]:
        number, live = next(self.numbers), Live(request.streams)
        self.live[number] = live
        try:
            yield live
        finally:
            del self.live[number]

    def _judge(self, outcome: Outcome, reference: Answer) -> None:
        answer = outcome.answer
        if answer.complete:
            found = difference(answer, reference)
            outcome.verdict = Verdict.SAME if found is None else Verdict.DIFFERENT
            outcome.detail = found or ""
            return
        outcome.detail = f"status {answer.status}: {answer.error or 'the stream ended early'}"
        if self._at_launchers_end(outcome):
            outcome.verdict = Verdict.CUT
        elif answer.status in REFUSALS and not self._hit(outcome):
            outcome.verdict = Verdict.REFUSED
        else:
            outcome.verdict = Verdict.BROKEN

    def _at_launchers_end(self, outcome: Outcome) -> bool:
        return any(
            injection.fault.kind is Kind.LAUNCHER
            and injection.began <= outcome.ended
            and (not injection.ended or outcome.began <= injection.ended)
            for injection in self.injections
        )

    def _hit(self, outcome: Outcome) -> bool:
        """Whether a fault came while the server had the request: it was accepted by then."""
        return any(outcome.began < i.began < outcome.ended for i in self.injections)

    async def _progress(self, events: int) -> None:
        """Waits until this many events have arrived."""
        until = time.monotonic() + SETTLE_SECONDS
        goal = self.events + events
        while self.events < goal and time.monotonic() < until:
            await self._wait()

    async def _pass(self, seconds: float) -> None:
        """Waits until so much time has passed since the last fault."""
        last = self.injections[-1].began if self.injections else -math.inf
        while time.monotonic() < last + seconds:
            await self._wait()

    async def _wait(self) -> None:
        if (code := self.injector.server.process.poll()) is not None:
            raise ServerEnded(f"the server ended with code {code}")
        await asyncio.sleep(POLL_SECONDS)

    async def _fault(self, fault: Fault) -> None:
        injection = Injection(fault, time.monotonic())
        self.injections.append(injection)
        try:
            await asyncio.to_thread(self.injector.inject, fault)
        except NoWorker as error:
            injection.failure = str(error)
        injection.ended = time.monotonic()
        await self._settle(injection)
        self._narrate(injection)

    def _narrate(self, injection: Injection) -> None:
        """Writes a line about a fault to stderr, for people who wait."""
        took = time.monotonic() - injection.began
        wrong = Counter(outcome.verdict.value for outcome in self.outcomes)
        number, fault = len(self.injections) - 1, injection.fault
        line = f"{number} {fault.kind.value} of rank {fault.rank}: {took:.1f} s, {dict(wrong)}"
        print(line, injection.failure or "", file=sys.stderr, flush=True)

    async def _settle(self, injection: Injection) -> None:
        """Waits until each stream that runs has got a token since the fault, or has ended; if
        `patient`, also until whole answers have come."""
        waits = {key: live for key, live in self.live.items() if live.streams or self.patient}
        before = {key: live.events for key, live in waits.items()}
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            live = self.live
            if all(key not in live or live[key].events > n for key, n in before.items()):
                injection.settled = time.monotonic()
                return
            await self._wait()
        injection.failure = f"a stream did not go on within {SETTLE_SECONDS} s"
