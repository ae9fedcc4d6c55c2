"""`python -m tests.faults.overload`: requests come at four times the rate that the server sustains.

First and last, as many clients as there are slots send one request after the other: their rate is
what the server sustains. In between, requests come at a multiple of it, whatever the server
answers. Most clients that get a 429 leave; some wait as long as `Retry-After` says and try again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import httpx

from .answers import Answer
from .client import connect, send
from .leaks import Held, leaked
from .load import Request, native
from .report import quantile
from .server import FaultyServer

TOKENS = 256  # long enough that the clients, which share the cores, cost little
STREAMED = 8  # one request in 8 streams, for the times between its tokens
PROBE_SECONDS = 1.0
PROBES = ("/health", "/ready", "/metrics")
MOST_TRIES = 10


def request(number: int) -> Request:
    """A request with a new prompt and at most `TOKENS` tokens of answer."""
    body = native(random.Random(number), max_new_tokens=TOKENS)
    path = "/generate_stream" if number % STREAMED == 0 else "/generate"
    return Request("load", path, body)


@dataclass
class Counts:
    """What the clients of a phase saw."""

    began: float = field(default_factory=time.monotonic)
    done: list[float] = field(default_factory=list)  # times of complete answers
    statuses: Counter[int] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)  # seconds between tokens of a stream
    tries: list[int] = field(default_factory=list)  # until an obeying client was served
    asked: list[float] = field(default_factory=list)  # seconds of Retry-After
    given_up: int = 0
    probes: dict[str, list[float]] = field(default_factory=dict)  # route -> seconds
    probe_statuses: Counter[str] = field(default_factory=Counter)
    resident: list[int] = field(default_factory=list)  # bytes
    tokens: int = 0

    def add(self, answer: Answer) -> None:
        """Counts an answer, complete or refused."""
        self.statuses[answer.status] += 1
        if answer.retry_after is not None:
            self.asked.append(answer.retry_after)
        if answer.complete:
            self.done.append(time.monotonic())
            self.tokens += len(answer.choices[0].tokens)
            self.gaps += [later - earlier for earlier, later in pairwise(answer.times)]


async def sustained(url: str, clients: int, seconds: float) -> Counts:
    """One request after the other from each client."""
    counts, numbers = Counts(), count()
    until = counts.began + seconds

    async def client(pool: httpx.AsyncClient) -> None:
        while time.monotonic() < until:
            counts.add(await send(pool, request(next(numbers))))

    async with connect(url, clients) as pool:
        await asyncio.gather(*(client(pool) for _ in range(clients)))
    return counts


async def arrive(pool: httpx.AsyncClient, one: Request, obeys: bool, counts: Counts) -> None:
    """A client that leaves when it is refused, or waits as it is asked to."""
    for number in range(1, MOST_TRIES + 1):
        answer = await send(pool, one)
        counts.add(answer)
        if answer.complete and obeys:
            counts.tries.append(number)
        if answer.status != 429 or not obeys:
            return
        await asyncio.sleep(answer.retry_after or 1.0)
    counts.given_up += 1


async def probe(server: FaultyServer, counts: Counts, until: float) -> None:
    """Asks for the health of the server once per second."""
    async with connect(server.url, 1) as pool:
        while time.monotonic() < until:
            for route in PROBES:
                began = time.monotonic()
                reply = await pool.get(route)
                counts.probes.setdefault(route, []).append(time.monotonic() - began)
                counts.probe_statuses[f"{route} {reply.status_code}"] += 1
            counts.resident.append(Held.of(server.process.pid).resident)
            await asyncio.sleep(PROBE_SECONDS)


async def overloaded(server: FaultyServer, rate: float, seconds: float, share: float) -> Counts:
    """Requests at `rate` per second; `share` of their clients obey Retry-After."""
    counts, choose = Counts(), random.Random(1)
    until = counts.began + seconds
    probing = asyncio.create_task(probe(server, counts, until))
    tasks: set[asyncio.Task[None]] = set()
    async with connect(server.url, 4096) as pool:
        for number in count():
            due = counts.began + number / rate
            if due > until:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            obeys = choose.random() < share
            task = asyncio.create_task(arrive(pool, request(number), obeys, counts))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await probing
        await asyncio.gather(*tasks)
    return counts


def rate_of(counts: Counts, seconds: float) -> float:
    """Complete tokens per second, without the first fifth of the time and what came after it."""
    skip, last = counts.began + seconds / 5, counts.began + seconds
    done = sum(skip < moment <= last for moment in counts.done)
    per_answer = counts.tokens / max(len(counts.done), 1)
    return done * per_answer / (last - skip)


def shown(seconds: list[float]) -> str:
    """Median, 99th percentile and maximum in milliseconds."""
    if not seconds:
        return "none"
    values = [quantile(seconds, 0.5), quantile(seconds, 0.99), max(seconds)]
    return "median {:.1f} ms, p99 {:.1f} ms, longest {:.1f} ms".format(*(1e3 * v for v in values))


def main() -> int:
    """Runs both phases and prints what the clients saw."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.overload")
    option = parser.add_argument
    option("--minutes", type=float, default=10.0, help="of overload")
    option("--calm", type=float, default=30.0, help="seconds of the sustained rate")
    option("--factor", type=float, default=4.0, help="of the sustained rate")
    option("--slots", type=int, default=16)
    option("--waiting", type=int, default=64, help="--max-waiting of the server")
    option("--obeying", type=float, default=0.1, help="share of clients that obey Retry-After")
    given = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="overload-")) / "serve.log"
    limits = ["--max-slots", str(given.slots), "--max-waiting", str(given.waiting)]
    with FaultyServer(log, ["--dtype", "float32", *limits]) as server:
        asyncio.run(sustained(server.url, given.slots, 3))  # the cost model learns
        before = Held.of(server.process.pid)
        calm = asyncio.run(sustained(server.url, given.slots, given.calm))
        per_second = len(calm.done) / given.calm
        seconds = given.minutes * 60
        storm = asyncio.run(overloaded(server, given.factor * per_second, seconds, given.obeying))
        after = asyncio.run(sustained(server.url, given.slots, given.calm))
        left = leaked(server, before)
    rates = [rate_of(calm, given.calm), rate_of(after, given.calm)]
    peak, held = max(rates), rate_of(storm, seconds)
    first, last = rates
    print(f"sustained: {per_second:.1f} requests/s, {first:.0f} tokens/s before, {last:.0f} after")
    print(f"  between tokens: {shown(calm.gaps)} before, {shown(after.gaps)} after")
    print(f"{given.factor:g} times that for {given.minutes:g} min: {held:.0f} tokens/s")
    print(f"  {100 * held / peak:.1f} % of the sustained rate; statuses {dict(storm.statuses)}")
    print(f"  between tokens: {shown(storm.gaps)}")
    asked = storm.asked or [0.0]
    print(f"  Retry-After: median {quantile(asked, 0.5):.0f} s, longest {max(asked):.0f} s")
    tries = dict(sorted(Counter(storm.tries).items()))
    print(f"  clients that obeyed were served at try {tries}; {storm.given_up} gave up")
    for route, times in storm.probes.items():
        print(f"  {route}: {shown(times)}")
    memory = [size >> 20 for size in storm.resident]
    print(f"  probes: {dict(storm.probe_statuses)}")
    print(f"  memory: {memory[0]} MiB first, {max(memory)} MiB most, {memory[-1]} MiB last")
    print(f"  left behind: {left or 'nothing'}")
    return 1 if left or held < 0.95 * peak else 0


if __name__ == "__main__":
    sys.exit(main())
