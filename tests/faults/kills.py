"""`python -m tests.faults.kills`: kills the workers of any model on any device, under load.

Starts `penstock serve` with the options after --, runs greedy streams undisturbed, then the same
ones again while workers are killed. Prints each pause, and the share of streams with the same text:
where a batch changes rounding, near ties fall either way, with and without losses.

    python -m tests.faults.kills --kills 5 -- --model FOLDER --standby
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path

import httpx

from ..serving import PYTHON
from .client import connect, send
from .load import GREEDY_STREAM, Request
from .server import FaultyServer

POLL_SECONDS = 0.01


@dataclass
class AnyServer(FaultyServer):
    """`penstock serve` on the device that it chooses."""

    options: list[str] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        return [PYTHON, "-m", "penstock", "serve", "--port", str(self.port), *self.options]


@dataclass
class Stream:
    """What arrived of one answer."""

    text: str
    times: list[float]
    error: str | None

    def pause(self, moment: float, until: float) -> float | None:
        """The longest time between two tokens from a moment on; None if it had ended or not begun.

        Tokens that the server has received come out for some time after their worker was killed.
        """
        gaps = [b - a for a, b in pairwise(self.times) if b > moment and a < until]
        return max(gaps, default=None) if self.times[0] < moment else None


@dataclass
class Progress:
    """The events of all streams that have arrived."""

    events: int = 0

    def add(self) -> None:
        self.events += 1


async def stream(client: httpx.AsyncClient, number: int, tokens: int, progress: Progress) -> Stream:
    """A greedy answer of `tokens` tokens, whatever they are."""
    prompt = f"Story {number}: once upon a time"
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    request = Request("greedy", "/v1/completions", body | GREEDY_STREAM)
    answer = await send(client, request, progress.add)
    text = answer.choice(0).text
    return Stream(text, answer.times, None if answer.complete else answer.error or "incomplete")


async def streams(url: str, count: int, tokens: int, progress: Progress) -> list[Stream]:
    async with connect(url, count) as client:
        every = (stream(client, number, tokens, progress) for number in range(count))
        return list(await asyncio.gather(*every))


async def kill(server: AnyServer, kills: int, events: int, progress: Progress) -> list[float]:
    """Kills the worker of rank 0 at equal distances in the `events` of all streams.

    Returns when.
    """
    moments: list[float] = []
    for number in range(1, kills + 1):
        while progress.events < events * number / (kills + 1):
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(server.wait_ready)
        pid = await asyncio.to_thread(server.worker, 0)
        moments.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
    return moments


async def undisturbed(server: AnyServer, given: argparse.Namespace) -> tuple[list[Stream], int]:
    """The streams without a kill, and how many events they had."""
    progress = Progress()
    found = await streams(server.url, given.streams, given.tokens, progress)
    return found, progress.events


async def disturbed(
    server: AnyServer, given: argparse.Namespace, events: int
) -> tuple[list[Stream], list[float]]:
    progress = Progress()
    running = streams(server.url, given.streams, given.tokens, progress)
    found, moments = await asyncio.gather(running, kill(server, given.kills, events, progress))
    return found, moments


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--kills", type=int, default=5, help="at equal distances in the streams")
    option("--streams", type=int, default=32, help="at once")
    option("--tokens", type=int, default=2048, help="of each answer")
    option("options", nargs="*", help="of `penstock serve`, after --")
    given = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="kills-")) / "log"
    server = AnyServer(log, [*given.options, "--served-model-name", "model"])
    with server:
        expected, events = asyncio.run(undisturbed(server, given))
        again, _ = asyncio.run(undisturbed(server, given))
        found, moments = asyncio.run(disturbed(server, given, events))
    show(expected, again, found, moments)
    return int(any(one.error for one in found))


def equal_start(left: str, right: str) -> int:
    """Characters before the first difference."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )


def show(
    expected: list[Stream], again: list[Stream], found: list[Stream], moments: list[float]
) -> None:
    write = sys.stdout.write
    for number, (moment, until) in enumerate(pairwise([*moments, math.inf])):
        pauses = sorted(p for one in found if (p := one.pause(moment, until)) is not None)
        if pauses:
            middle, longest = pauses[len(pauses) // 2], pauses[-1]
            write(f"kill {number + 1}: {len(pauses)} streams paused {middle:.2f} s, at most ")
            write(f"{longest:.2f} s\n")
        else:
            write(f"kill {number + 1}: no stream ran\n")
    broken = [one.error for one in found if one.error]
    write(f"broken: {len(broken)} of {len(found)} {broken[:3]}\n")
    for name, others in (("without a kill", again), ("with kills", found)):
        pairs = [(a.text, b.text) for a, b in zip(expected, others, strict=True)]
        same = sum(a == b for a, b in pairs)
        before = sum(equal_start(a, b) for a, b in pairs) / sum(len(a) for a, _ in pairs)
        write(f"same text as in the first run, {name}: {same} of {len(pairs)}; ")
        write(f"{before:.1%} of it comes before the first difference of its stream\n")


if __name__ == "__main__":
    sys.exit(main())
