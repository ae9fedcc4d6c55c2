"""How compilation of grammars delays running streams: the gaps between their tokens while requests
with new, large schemas arrive, against gaps while nothing else arrives, on the same server.

    bench/h200.sh structured_output 8b                     # a server of random weights
    bench/h200.sh structured_output brook --output 256     # of the model that ships

Each phase is the same closed loop of streams. Beside it: nothing, plain requests, requests that
each bring a schema nobody has sent before, those together with texts that take seconds to
compile, which are refused, and `masks`: long answers of schemas whose masks take long (open names,
patterns, formats). Nothing is compiled before the first schema arrives, so the first phase
of schemas holds what a server does once.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from features import server
from h200 import Bench, checked, server_options
from harness.measure import Client, Figures, Record, figures, gaps, quantile
from harness.shapes import SHAPES
from harness.workload import Job, Shape, Source, random_jobs, with_fields

Schema = dict[str, Any]
BESIDE = Shape(32, 64)  # a request that arrives
SETTLE = 2.0  # seconds of a phase before the first arrives
MOST_RATIO = 1.2
HOSTILE = "(a|b)*a(a|b){{22}}c{{{0}}}"  # a table of 4 million states
PHASES = (
    *("nothing", "plain", "nothing", "schemas", "nothing", "schemas", "nothing", "hostile"),
    *("nothing", "masks", "nothing"),
)
BOUNDED = ("schemas", "masks")  # phases that may not be slower than MOST_RATIO
STRING: Schema = {"type": "string"}
OPEN_NAMES: Schema = {"type": "object", "patternProperties": {".*": STRING}}
COSTLY_MASKS: list[Schema] = [
    OPEN_NAMES,
    {"type": "object", "patternProperties": {".*": OPEN_NAMES}},
    *(
        {"type": "object", "properties": {"text": {**STRING, **rule}}, "required": ["text"]}
        for rule in ({"format": "uri"}, {"pattern": "a.c"}, {"maxLength": 2000})
    ),
]


def large_schema(seed: int) -> Schema:
    """About 10 KB that no other seed gives. Even seeds: for outlines; odd ones: for llguidance."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def name() -> str:
        return "".join(draw.choices(letters, k=12))

    def leaf() -> Schema:
        bounds = {"minimum": 0, "maximum": draw.randint(5, 9999)} if seed % 2 else {}
        return draw.choice(
            [
                {"type": "integer", **bounds},
                {"enum": [name() for _ in range(6)]},
                {"type": "string", "maxLength": draw.randint(4, 12)},
                {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
            ]
        )

    def record(members: Callable[[], Schema], count: int) -> Schema:
        properties = {name(): {**members(), "description": name() * 4} for _ in range(count)}
        required = list(properties)[:1]
        return {"type": "object", "properties": properties, "required": required}

    return record(lambda: record(leaf, 6), 6 + 6 * (seed % 2))


class Phases:
    """Phases of one length on one server; no two of their prompts or schemas are alike."""

    def __init__(self, args: argparse.Namespace, client: Client, source: Source) -> None:
        self.args, self.client, self.source = args, client, source
        self.schemas = 0
        streams = random_jobs(source, Shape(args.input, args.output), 2 * args.streams)
        rate = figures(checked(client.run(streams, args.streams)))["request_rate"]
        # As many as last for the phase, and somewhat longer.
        self.requests = round(1.2 * rate * (args.seconds + 2 * SETTLE)) + args.streams

    def __call__(self, kind: str) -> Figures:
        """One phase. Raises RuntimeError if a request fails that should not."""
        args = self.args
        shape = Shape(args.input, args.output)
        streams = random_jobs(self.source, shape, self.requests)
        with ThreadPoolExecutor(3) as pool:
            others = pool.submit(self._run, self._arrivals(kind))
            refused = pool.submit(self._run, self._hostile() if kind == "hostile" else [])
            records = checked(self.client.run(streams, args.streams))
        until = SETTLE + args.seconds
        found = [gap for record in records for gap in gaps(record, SETTLE, until)]
        row = {f"itl_p{q}": quantile(found, q / 100) for q in (50, 99)}
        row |= {"itl_p999": quantile(found, 0.999), "itl_max": max(found)}
        waits = [1e3 * (r["arrivals"][0] - r["sent"]) for r in checked(others.result())]
        if waits:
            row |= {"ttft_p50": quantile(waits, 0.5), "ttft_max": max(waits)}
        row["arrivals"], row["refused"] = len(waits), len(refused.result())
        taken = [record for record in refused.result() if not record["error"]]
        if taken:
            raise RuntimeError(f"{len(taken)} hostile texts were taken")
        return row

    def _run(self, jobs: list[Job]) -> list[Record]:
        return self.client.run(jobs) if jobs else []

    def _arrivals(self, kind: str) -> list[Job]:
        """One every 60 / `--rate` seconds."""
        if kind == "nothing":
            return []
        args, jobs = self.args, list[Job]()
        if kind == "masks":
            return self._costly_masks()
        for index in range(round(args.rate * args.seconds / 60)):
            (job,) = random_jobs(self.source, BESIDE, 1)
            job = replace(job, at=SETTLE + 60 * index / args.rate)
            if kind != "plain":
                self.schemas += 1
                fields = {"guided_json": large_schema(self.schemas), "ignore_eos": False}
                (job,) = with_fields([job], fields)
            jobs.append(job)
        return jobs

    def _costly_masks(self) -> list[Job]:
        """As long as the streams: near the end of an answer, masks take longest."""
        args, jobs = self.args, list[Job]()
        shape = Shape(args.input, args.output)
        for index in range(round(args.rate * args.seconds / 60)):
            schema = COSTLY_MASKS[index % len(COSTLY_MASKS)]
            fields = {"guided_json": schema, "ignore_eos": False}
            (job,) = with_fields(random_jobs(self.source, shape, 1), fields)
            jobs.append(replace(job, at=SETTLE + 60 * index / args.rate))
        return jobs

    def _hostile(self) -> list[Job]:
        """One each second."""
        jobs = random_jobs(self.source, BESIDE, round(self.args.seconds))
        each = ({"guided_regex": HOSTILE.format(n), "ignore_eos": False} for n in range(len(jobs)))
        asked = [with_fields([job], fields)[0] for job, fields in zip(jobs, each, strict=True)]
        return [replace(job, at=SETTLE + second) for second, job in enumerate(asked)]


def table(rows: list[tuple[str, Figures]]) -> str:
    """Markdown; milliseconds. Ratios are to the phases of nothing on both sides."""
    titles = ["beside the streams", "ITL p50", "p99", "p99.9", "longest", "p99 / undisturbed"]
    lines = ["| " + " | ".join([*titles, "arrived", "refused", "their TTFT p50", "longest"]) + " |"]
    lines.append("|" + "---|" * 10)
    for index, (kind, row) in enumerate(rows):
        sides = [r for k, r in rows[max(0, index - 1) : index + 2] if k == "nothing"]
        undisturbed = statistics.fmean(side["itl_p99"] for side in sides) if sides else math.nan
        ratio = row["ratio"] = row["itl_p99"] / undisturbed
        cells = [f"{row[key]:.1f}" for key in ("itl_p50", "itl_p99", "itl_p999", "itl_max")]
        late = f": above {MOST_RATIO}" if kind in BOUNDED and ratio > MOST_RATIO else ""
        cells += [f"**{ratio:.2f}**{late}" if kind != "nothing" else ""]
        cells += [f"{row['arrivals']:.0f}", f"{row['refused']:.0f}"]
        cells += [f"{row[key]:.0f}" if key in row else "" for key in ("ttft_p50", "ttft_max")]
        lines.append("| " + " | ".join([kind, *cells]) + " |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("shape", choices=["brook", *SHAPES])
    option("--address", help="host and port of a server that runs, with the shape")
    option("--phases", nargs="+", choices=sorted(set(PHASES)), default=PHASES, metavar="PHASE")
    option("--seconds", type=float, default=20.0, help="of arrivals in a phase")
    option("--rate", type=float, default=100.0, help="schemas per minute")
    option("--streams", type=int, default=32)
    option("--input", type=int, default=128, help="tokens of a stream's prompt")
    option("--output", type=int, default=512, help="tokens of a stream's answer")
    option("--seed", type=int, default=0, help="of prompts")
    server_options(parser)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    with server(args, bench) as client:
        source = Source.of_tokenizer(str(bench.folder / "tokenizer.json"), args.seed)
        phases = Phases(args, client, source)
        rows = []
        for kind in args.phases:
            rows.append((kind, phases(kind)))
            print(kind, json.dumps({k: round(v, 2) for k, v in rows[-1][1].items()}), flush=True)
    report = table(rows)
    (args.out / f"structured_output-{args.shape}.json").write_text(json.dumps(rows, indent=1))
    (args.out / f"structured_output-{args.shape}.md").write_text(report + "\n")
    print(report)


if __name__ == "__main__":
    main()
