"""Runs jobs through the load client, and says what was seen in the terms of `vllm bench serve`.

TTFT is from sending a request to its first token, E2EL to its last, TPOT = (E2EL - TTFT) divided
by its tokens but one, ITL every gap between two arrivals. All are milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.workload import Job

Record = dict[str, Any]
Figures = dict[str, float]
TIMES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class Client:
    """The load client's binary, the server's host and port, and the model's name there."""

    binary: Path
    address: str
    model: str
    api: str = "completions"

    def __post_init__(self) -> None:
        if not self.binary.is_file():
            build = "cargo build --release -p penstock-load"
            sys.exit(f"{self.binary} is missing; build it by `{build}`, or say --load PATH")

    def run(self, jobs: list[Job], streams: int = 0) -> list[Record]:
        """A record of each request; at most `streams` jobs at once, 0 = no bound."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.writelines(json.dumps(job.line()) + "\n" for job in jobs)
            file.flush()
            command = [self.binary, "--address", self.address, "--api", self.api]
            command += ["--model", self.model, "--streams", streams, "--jobs", file.name]
            out = subprocess.run(
                list(map(str, command)), check=True, capture_output=True, text=True
            ).stdout
        return [json.loads(line) for line in out.splitlines()]


def gaps(record: Record, since: float = 0.0, until: float = float("inf")) -> list[float]:
    """Milliseconds between arrivals that both lie between two times of the run, in seconds."""
    pairs = pairwise(record["arrivals"])
    return [1e3 * (b - a) for a, b in pairs if since <= a and b <= until]


def times(record: Record) -> dict[str, list[float]]:
    """What one request adds to each kind of time."""
    sent, arrivals, tokens = record["sent"], record["arrivals"], record["tokens"]
    first, last = 1e3 * (arrivals[0] - sent), 1e3 * (arrivals[-1] - sent)
    tpot = [(last - first) / (tokens - 1)] if tokens > 1 else []
    return {"ttft": [first], "e2el": [last], "tpot": tpot, "itl": gaps(record)}


def quantile(values: Iterable[float], q: float) -> float:
    """Linear between the two nearest values, as numpy's percentile; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    place = q * (len(ordered) - 1)
    low, share = int(place), place % 1
    return ordered[low] + share * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def figures(records: list[Record]) -> Figures:
    """Rates per second and milliseconds of all requests that succeeded."""
    good = [record for record in records if not record["error"]]
    if not good:
        raise RuntimeError(f"no request succeeded; the first error: {records[0]['error']}")
    seconds = max(r["arrivals"][-1] for r in good) - min(r["sent"] for r in good)
    output = sum(r["tokens"] for r in good)
    prompts = sum(r["prompt_tokens"] for r in good)
    result: Figures = {
        "requests": len(good),
        "failed": len(records) - len(good),
        "seconds": seconds,
        "request_rate": len(good) / seconds,
        "input_tokens": prompts,
        "output_tokens": output,
        "output_rate": output / seconds,
        "input_rate": prompts / seconds,
        "total_rate": (prompts + output) / seconds,
    }
    each = [times(record) for record in good]
    for name in TIMES:
        values = [value for one in each for value in one[name]]
        if not values:  # answers of one token have no gaps
            continue
        result[f"{name}_mean"] = sum(values) / len(values)
        result[f"{name}_p50"] = quantile(values, 0.5)
        result[f"{name}_p99"] = quantile(values, 0.99)
    return result


def failure(records: list[Record]) -> str | None:
    """The first error of a request, if any failed."""
    return next((record["error"] for record in records if record["error"]), None)
