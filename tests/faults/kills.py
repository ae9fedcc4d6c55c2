"""`python -m tests.faults.kills`: kills the workers of any model on any device, under load.

Starts `penstock serve` with the options after --, runs greedy streams undisturbed, then the same
ones again while workers are killed. Prints each pause, and the share of streams with the same text:
where a batch changes rounding, near ties fall either way, with and without losses.

    python -m tests.faults.kills --kills 5 -- --model FOLDER --standby
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from ..serving import PYTHON
from .client import connect, send
from .load import GREEDY_STREAM, Request
from .server import FaultyServer


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

    def pause_around(self, moment: float) -> float | None:
        """The time between the tokens before and after a moment; None if it is not between any."""
        for before, after in pairwise(self.times):
            if before <= moment < after:
                return after - before
        return None


async def stream(client: httpx.AsyncClient, number: int, tokens: int) -> Stream:
    """A greedy answer of `tokens` tokens, whatever they are."""
    prompt = f"Story {number}: once upon a time"
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    answer = await send(client, Request("greedy", "/v1/completions", body | GREEDY_STREAM))
    text = answer.choice(0).text
    return Stream(text, answer.times, None if answer.complete else answer.error or "incomplete")


async def streams(url: str, count: int, tokens: int) -> list[Stream]:
    async with connect(url, count) as client:
        return list(await asyncio.gather(*(stream(client, n, tokens) for n in range(count))))


async def kill(server: AnyServer, kills: int, every: float) -> list[float]:
    """Kills the worker of rank 0 again and again while it serves; returns when."""
    moments: list[float] = []
    for _ in range(kills):
        await asyncio.sleep(every)
        await asyncio.to_thread(server.wait_ready)
        pid = await asyncio.to_thread(server.worker, 0)
        moments.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
    return moments


async def disturbed(
    server: AnyServer, given: argparse.Namespace
) -> tuple[list[Stream], list[float]]:
    running = asyncio.ensure_future(streams(server.url, given.streams, given.tokens))
    moments = await kill(server, given.kills, given.every)
    return await running, moments


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--kills", type=int, default=5)
    option("--every", type=float, default=10.0, metavar="SECONDS", help="between two kills")
    option("--streams", type=int, default=32, help="at once")
    option("--tokens", type=int, default=2048, help="of each answer")
    option("options", nargs="*", help="of `penstock serve`, after --")
    given = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="kills-")) / "log"
    server = AnyServer(log, [*given.options, "--served-model-name", "model"])
    with server:
        expected, again = (
            asyncio.run(streams(server.url, given.streams, given.tokens)) for _ in range(2)
        )
        found, moments = asyncio.run(disturbed(server, given))
    show(expected, again, found, moments)
    return int(any(one.error for one in found))


def show(
    expected: list[Stream], again: list[Stream], found: list[Stream], moments: list[float]
) -> None:
    write = sys.stdout.write
    for number, moment in enumerate(moments):
        pauses = sorted(p for one in found if (p := one.pause_around(moment)) is not None)
        if pauses:
            middle, longest = pauses[len(pauses) // 2], pauses[-1]
            write(f"kill {number + 1}: {len(pauses)} streams paused {middle:.2f} s, at most ")
            write(f"{longest:.2f} s\n")
        else:
            write(f"kill {number + 1}: no stream ran\n")
    broken = [one.error for one in found if one.error]
    write(f"broken: {len(broken)} of {len(found)} {broken[:3]}\n")
    for name, others in (("without a kill", again), ("with kills", found)):
        same = sum(a.text == b.text for a, b in zip(expected, others, strict=True))
        write(f"same text as in the first run, {name}: {same} of {len(expected)}\n")


if __name__ == "__main__":
    sys.exit(main())
