"""Whether a greedy answer depends on who shares its batch: the same prompts alone and together.

    bench/h200.sh invariance 8b                     # starts a server of random weights, bfloat16
    bench/h200.sh invariance brook --serve --dtype float32 --device cpu
    python bench/run.py invariance brook --address 127.0.0.1:3000   # one that runs, with that model

All prompts are answered at each number of streams of --streams; answers at the first one, by
default 1, are what the others are held against. A server must run with --no-prefix-cache (one
that is started here does): a cached prefix would be computed once, in one batch, for all. In
bfloat16 a batch of another size sums in another order, and a near tie of two tokens may fall the
other way; everything after it then differs too, which is no further difference.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from h200 import BROOK, Bench, server_options
from harness.measure import quantile
from harness.shapes import SHAPES
from harness.workload import Ids, Shape, Source, random_jobs

PARTS = 8  # of an answer, in which first differences are counted


@dataclass(frozen=True)
class Comparison:
    """Answers at one number of streams against those at another."""

    answers: int
    tokens: int
    """Of all answers, as they were at first."""
    firsts: list[int]
    """Place of the first other token, of each answer that has one."""
    agreed: int
    """Tokens before those places, and of answers without one."""

    def figures(self) -> dict[str, Any]:
        longest = max(self.tokens // self.answers, 1)
        parts = [0] * PARTS
        for first in self.firsts:
            parts[min(first * PARTS // longest, PARTS - 1)] += 1
        quartiles = [quantile(self.firsts, q) for q in (0, 0.25, 0.5, 0.75, 1)]
        return {
            "answers": self.answers,
            "identical": self.answers - len(self.firsts),
            "tokens": self.tokens,
            "agreed": self.agreed,
            "first_difference": dict(zip(("min", "p25", "p50", "p75", "max"), quartiles,
                                         strict=True)) if self.firsts else None,
            "first_differences_by_eighth": parts,
        }  # fmt: skip


def compare(before: list[Ids], after: list[Ids]) -> Comparison:
    """Answers to the same prompts, in the same order."""
    firsts, agreed = [], 0
    for a, b in zip(before, after, strict=True):
        first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if first is None and len(a) != len(b):
            first = min(len(a), len(b))
        agreed += len(a) if first is None else first
        firsts += [] if first is None else [first]
    return Comparison(len(before), sum(map(len, before)), firsts, agreed)


def ask(address: str, tokens: int, prompt: str) -> Ids:
    """Token ids of one greedy answer."""
    connection = http.client.HTTPConnection(address, timeout=600)
    parameters = {"max_new_tokens": tokens, "details": True}
    body = json.dumps({"inputs": prompt, "parameters": parameters})
    connection.request("POST", "/generate", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    answer = json.load(reply)
    connection.close()
    if reply.status != 200:
        raise SystemExit(f"the server refused a prompt ({reply.status}): {answer}")
    return [token["id"] for token in answer["details"]["tokens"]]


def answers(address: str, prompts: list[str], tokens: int, streams: int) -> list[Ids]:
    """Of all prompts in order, `streams` at once."""
    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(partial(ask, address, tokens), prompts))


def line(streams: int, base: int, figures: dict[str, Any]) -> str:
    count, same = figures["answers"], figures["identical"]
    text = (
        f"{streams:4} streams against {base}: {same} of {count} answers identical "
        f"({same / count:.1%}), {figures['agreed'] / figures['tokens']:.1%} of tokens before "
        "the first difference"
    )
    if firsts := figures["first_difference"]:
        places = ", ".join(f"{name} {value:.0f}" for name, value in firsts.items())
        text += f"; its place: {places}; by eighth of the answer: "
        text += " ".join(map(str, figures["first_differences_by_eighth"]))
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("shape", choices=["brook", *SHAPES])
    option("--address", help="host and port of a server that runs, with the shape")
    option("--streams", type=int, nargs="+", default=[1, 32, 256], help="the first is held to")
    option("--prompts", type=int, default=256)
    option("--input", type=int, default=128, help="tokens of a prompt")
    option("--output", type=int, default=128, help="tokens of an answer, at most")
    option("--seed", type=int, default=0, help="of prompts")
    server_options(parser)
    return parser.parse_args()


@contextmanager
def server(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The address of the server at --address, or of one that runs meanwhile."""
    if args.address:
        yield args.address
        return
    args.serve = ["--no-prefix-cache", *args.serve]
    bench = Bench(args)
    bench.prepare()
    with bench.server():
        yield bench.client.address


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = BROOK if args.shape == "brook" else args.folder / args.shape
    found: dict[str, Any] = {}
    with server(args, folder) as address:
        source = Source.of_tokenizer(str(folder / "tokenizer.json"), args.seed)
        jobs = random_jobs(source, Shape(args.input, args.output), args.prompts)
        prompts = [str(job.turns[0].prompt) for job in jobs]
        base = args.streams[0]
        before: list[Ids] = []
        for streams in args.streams:
            began = time.perf_counter()
            after = answers(address, prompts, args.output, streams)
            print(f"{streams} streams: {time.perf_counter() - began:.1f} s", flush=True)
            if before:
                found[str(streams)] = row = compare(before, after).figures()
                print(line(streams, base, row), flush=True)
            before = before or after
    (args.out / f"invariance-{args.shape}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
