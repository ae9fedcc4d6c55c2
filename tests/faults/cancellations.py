"""`python -m tests.faults.cancellations`: 64 clients per second disconnect, at every stage.

Afterwards nothing of their requests is left. Beside them, steady clients compare their answers.
Ends with code 1 if something is left, an answer was broken or changed, or a stage was not reached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any

from .client import connect, send
from .compare import difference
from .leaks import Held, gauges, leaked
from .load import PERSON, chat, completion, drawn, long_prompt, native
from .reference import record
from .server import FaultyServer
from .storm import Known

CHUNK = 1 << 16
LAST_CHUNK = b"\r\n0\r\n\r\n"
# 429 and 503: more requests wait than may.
EXPECTED = {200, 429, 503}
GONE_SECONDS = 30
TOGETHER = 32
Draw = Callable[[random.Random], tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Stage:
    """Where a request is when its client leaves."""

    name: str
    draw: Draw  # path and body
    events: int = 0  # that arrive before
    seconds: float = 0.0  # at most, from the last event


NUMBERS = count()


def new_regex(choose: random.Random) -> tuple[str, dict[str, Any]]:
    """A grammar that no cache has: it is compiled."""
    grammar = {"type": "regex", "value": f"[a-z]{{2,9}} {next(NUMBERS)} [a-z]{{20,200}}"}
    return "/generate_stream", native(choose, max_new_tokens=200, grammar=grammar)


def guided(choose: random.Random) -> tuple[str, dict[str, Any]]:
    """A grammar that is in the cache."""
    grammar = {"type": "json", "value": PERSON}
    return "/generate_stream", native(choose, max_new_tokens=200, grammar=grammar)


def lengthy(choose: random.Random) -> tuple[str, dict[str, Any]]:
    """A prompt that takes several steps and has no cached prefix."""
    text = f"{next(NUMBERS)} {long_prompt(choose)}"
    return "/v1/completions", {**completion(choose, max_tokens=64, stream=True), "prompt": text}


def plain(choose: random.Random) -> tuple[str, dict[str, Any]]:
    return "/generate_stream", native(choose, max_new_tokens=400)


def three(choose: random.Random) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", chat(choose, n=3, max_tokens=200, temperature=1, stream=True)


def beams(choose: random.Random) -> tuple[str, dict[str, Any]]:
    fields = {"n": 2, "use_beam_search": True, "beam_width": 3, "temperature": 0}
    return "/v1/completions", completion(choose, max_tokens=200, **fields)


# More requests wait than run: each stage without an event is reached in the queue, too.
STAGES = [
    Stage("sent", plain),
    Stage("tokenizing", lengthy, seconds=0.003),
    Stage("queued", plain, seconds=0.1),
    Stage("prefilling", lengthy, seconds=0.3),
    Stage("compiling a grammar", new_regex, seconds=0.05),
    Stage("decoding", plain, events=3, seconds=0.05),
    Stage("guided", guided, events=2, seconds=0.05),
    Stage("n=3", three, events=4, seconds=0.05),
    Stage("beam search", beams, seconds=0.4),
]


@dataclass
class Counts:
    """What the clients that leave saw."""

    left: Counter[str] = field(default_factory=Counter)  # stage -> disconnects in it
    ended: Counter[str] = field(default_factory=Counter)  # stage -> answers that ended earlier
    statuses: Counter[int] = field(default_factory=Counter)
    steady: int = 0  # answers of the clients that stay
    wrong: list[str] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=dict)  # process -> bytes, in time


async def leave(port: int, stage: Stage, choose: random.Random, counts: Counts) -> None:
    """Sends a request, waits until it is in its stage, and disconnects."""
    path, body = stage.draw(choose)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        text = await _reach(reader, stage, choose)
        (counts.ended if _over(text) else counts.left)[stage.name] += 1
        if (status := _status(text)) is not None:
            counts.statuses[status] += 1
        if choose.random() < 0.5:  # a reset instead of a FIN
            linger = struct.pack("ii", 1, 0)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    finally:
        writer.close()


async def _reach(reader: asyncio.StreamReader, stage: Stage, choose: random.Random) -> bytes:
    """Waits until a request is in its stage; returns what has arrived of its answer."""
    text = b""
    while text.count(b"\ndata:") < stage.events and not _over(text):
        if not (part := await reader.read(CHUNK)):
            return text
        text += part
    until = time.monotonic() + choose.uniform(0, stage.seconds)
    while not _over(text):
        left = max(until - time.monotonic(), 1e-6)
        try:
            part = await asyncio.wait_for(reader.read(CHUNK), left)
        except (TimeoutError, asyncio.TimeoutError):
            break
        if not part:
            break
        text += part
    return text


def _status(text: bytes) -> int | None:
    """The status of an answer, once it has arrived."""
    return int(text[9:12]) if len(text) >= 12 else None


def _over(text: bytes) -> bool:
    """Whether an answer has ended: a stream by its last chunk, another one by being there."""
    head, _, body = text.partition(b"\r\n\r\n")
    streams = b"\r\ntransfer-encoding: chunked" in head
    return (body.endswith(LAST_CHUNK) or body == LAST_CHUNK[2:]) if streams else bool(body)


async def stay(url: str, known: list[Known], counts: Counts, until: float) -> None:
    """A client that compares all of its answers."""
    choose = random.Random(len(known))
    async with connect(url, 1) as client:
        while time.monotonic() < until:
            one = choose.choice(known)
            answer = await send(client, one.request)
            if answer.status in (429, 503):
                await asyncio.sleep(min(answer.retry_after or 1, 5))
                continue
            counts.steady += 1
            found = difference(answer, one.reference) if answer.complete else str(answer.error)
            if found is not None:
                counts.wrong.append(f"{one.request.kind}: {found}")


async def storm(server: FaultyServer, known: list[Known], given: argparse.Namespace) -> Counts:
    """Disconnects at an even rate until the time is over."""
    counts, choose = Counts(), random.Random(given.seed)
    began = time.monotonic()
    until = began + given.minutes * 60
    steady = [asyncio.create_task(stay(server.url, known, counts, until)) for _ in range(2)]
    leaving: set[asyncio.Task[None]] = set()
    for number in count():
        due = began + number / given.rate
        if due > until:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        stage = STAGES[number % len(STAGES)]
        own = random.Random(choose.randrange(1 << 31))
        task = asyncio.create_task(leave(server.port, stage, own, counts))
        leaving.add(task)
        task.add_done_callback(leaving.discard)
        if number % (10 * given.rate) == 0:
            for name, pid in (("server", server.process.pid), ("worker", server.worker(0))):
                counts.resident.setdefault(name, []).append(Held.of(pid).resident)
    await asyncio.gather(*steady, *leaving)
    return counts


async def leave_together(server: FaultyServer, known: list[Known]) -> None:
    """Many streams, whose clients leave at the same moment."""
    async with connect(server.url, TOGETHER) as client:
        tasks = [
            asyncio.create_task(send(client, choose.request))
            for _, choose in zip(range(TOGETHER), cycle(known), strict=False)
        ]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def steps_until_gone(url: str) -> int:
    """The steps, at most, that run until no request is open, after all clients have left."""
    before = gauges(url)
    until = time.monotonic() + GONE_SECONDS
    while (now := gauges(url))["penstock_requests_open"] and time.monotonic() < until:
        time.sleep(0.001)
    return int(now["penstock_steps"] - before["penstock_steps"])


def main() -> int:
    """Runs the storm and prints what it left."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cancellations")
    option = parser.add_argument
    option("--minutes", type=float, default=10.0)
    option("--rate", type=int, default=64, help="disconnects per second")
    option("--seed", type=int, default=1)
    option("--slots", type=int, default=8, help="running sequences; more requests wait")
    given = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="cancellations-")) / "serve.log"
    options = ["--dtype", "float64", "--max-slots", str(given.slots)]
    with FaultyServer(log, options) as server:
        requests = drawn(given.seed, 18)
        answers = asyncio.run(record(server.url, requests))
        known = [Known(*pair) for pair in zip(requests, answers, strict=True)]
        before, steps = Held.of(server.process.pid), gauges(server.url)["penstock_steps"]
        counts = asyncio.run(storm(server, known, given))
        asyncio.run(leave_together(server, known))
        late = steps_until_gone(server.url)
        left = leaked(server, before)
        steps = gauges(server.url)["penstock_steps"] - steps
    print(f"{sum(counts.left.values())} disconnects in {given.minutes:g} min, {steps:.0f} steps")
    print(f"  in the stage: {dict(counts.left)}")
    print(f"  the answer had ended before: {dict(counts.ended)}; statuses: {dict(counts.statuses)}")
    print(f"  {TOGETHER} streams, left at once, were gone after {late} steps")
    print(f"  left behind: {left or 'nothing'}")
    print(f"  answers of clients that stayed: {counts.steady}, wrong: {counts.wrong or 'none'}")
    for name, sizes in counts.resident.items():
        moments = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
        print(f"  memory of the {name}, first, half-way, last: {[s >> 20 for s in moments]} MiB")
    unexpected = set(counts.statuses) - EXPECTED
    missed = {stage.name for stage in STAGES} - set(counts.left)
    if missed:
        print(f"  nobody left in these stages: {missed}")
    if unexpected:
        print(f"  unexpected statuses: {unexpected}")
    return 1 if left or counts.wrong or unexpected or missed else 0


if __name__ == "__main__":
    sys.exit(main())
