"""Measures a server that speaks OpenAI's `/v1/completions`, by the terms of `vllm bench serve`.

Prints a row for each load (streams at once, or arrivals per second), and on request writes all
figures as JSON and a plot of latency against load. Prompts are random tokens: text if a tokenizer
is given, else token ids. The server may be any; answers have exactly the wanted length where it
knows `ignore_eos`.

    cargo build --release -p penstock-load
    python bench/run.py serve --input 512 --output 128 --streams 1 8 32
    python bench/run.py serve --tokenizer tokenizer.json --rate 2 4 8 --requests 200 --plot load.png
    python bench/run.py serve --tokenizer tokenizer.json --turns 4
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from harness.measure import Client, Figures, failure, figures
from harness.workload import Job, Shape, Source, arriving, conversations, prefix_jobs, random_jobs

COLUMNS = (
    ("requests", "requests", "{:.0f}"),
    ("req/s", "request_rate", "{:.2f}"),
    ("out tok/s", "output_rate", "{:,.0f}"),
    ("tok/s", "total_rate", "{:,.0f}"),
    *(
        (f"{name.upper()} {kind}", f"{name}_{kind}", "{:.2f}")
        for name in ("ttft", "tpot", "itl", "e2el")
        for kind in ("mean", "p50", "p99")
    ),
)


@dataclass(frozen=True)
class Load:
    """One row: at most `streams` jobs at once, or `rate` arrivals per second if that is set."""

    streams: int
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.rate:g} req/s" if self.rate else f"{self.streams} at once"


def jobs_of(args: argparse.Namespace, source: Source, count: int) -> list[Job]:
    shape = Shape(args.input, args.output, args.spread)
    if args.turns > 1:
        return conversations(source, shape, count, args.turns)
    if args.prefix:
        return prefix_jobs(source, shape, count, args.prefix, args.groups)
    return random_jobs(source, shape, count)


def measure(args: argparse.Namespace, client: Client, source: Source, load: Load) -> Figures:
    """The figures of one load; the first error goes to stderr."""
    jobs = jobs_of(args, source, args.requests or max(8, 4 * load.streams))
    if load.rate:
        jobs = arriving(jobs, load.rate)
    records = client.run(jobs, load.streams)
    if error := failure(records):
        print(f"at {load.name} requests failed; the first: {error}", file=sys.stderr)
    return figures(records)


def table(rows: list[tuple[Load, Figures]]) -> str:
    """Markdown; times in milliseconds."""
    lines = ["| load | " + " | ".join(title for title, _, _ in COLUMNS) + " |"]
    lines.append("|" + "---|" * (len(COLUMNS) + 1))
    for load, row in rows:
        cells = [form.format(row[key]) if key in row else "-" for _, key, form in COLUMNS]
        lines.append(f"| {load.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[tuple[Load, Figures]], path: Path) -> None:
    """Latency against throughput: time to first token above, time per token below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    rates = [row["output_rate"] for _, row in rows]
    for axis, name, title in zip(axes, ("ttft", "tpot"), ("first token", "per token"), strict=True):
        for kind in ("p50", "p99"):
            values = [row.get(f"{name}_{kind}", 0.0) for _, row in rows]
            axis.plot(rates, values, marker="o", label=kind)
        for rate, (load, row) in zip(rates, rows, strict=True):
            # Above and left of the point: the lines rise to the right.
            axis.annotate(
                load.name,
                (rate, row.get(f"{name}_p99", 0.0)),
                xytext=(-4, 4),
                textcoords="offset points",
                ha="left" if rate < max(rates) / 4 else "right",
                fontsize=7,
            )
        axis.margins(y=0.12)
        axis.set_ylabel(f"{title}, ms")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    axes[-1].set_xlabel("output tokens per second")
    figure.savefig(path, dpi=120)


def served_model(address: str) -> str:
    """The name of the first model that the server offers."""
    with urllib.request.urlopen(f"http://{address}/v1/models", timeout=10) as reply:
        return str(json.load(reply)["data"][0]["id"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--address", default="127.0.0.1:3000", help="host and port of the server")
    option("--load", type=Path, default=Path("target/release/penstock-load"), help="load client")
    option("--model", help="the model's name on the server [default: its first]")
    option("--tokenizer", help="tokenizer.json: prompts are text made of its tokens")
    option("--vocab", type=int, default=1000, help="without a tokenizer, ids are below this")
    option("--input", type=int, default=512, help="tokens of a prompt")
    option("--output", type=int, default=128, help="tokens of an answer")
    option("--spread", type=float, default=0.0, help="lengths vary by this share")
    option("--prefix", type=int, default=0, help="tokens before --input that prompts share")
    option("--groups", type=int, default=1, help="different shared prefixes")
    option("--turns", type=int, default=1, help="requests of a conversation")
    option("--streams", type=int, nargs="+", help="jobs at once [default: 1 8 32]")
    option("--rate", type=float, nargs="+", help="arrivals per second (Poisson) instead")
    option("--requests", type=int, help="jobs of a row [default: 4 per stream, at least 8]")
    option("--warmup", type=int, default=32, help="short requests before the first row")
    option("--seed", type=int, default=0, help="of prompts")
    option("--json", type=Path, help="where to write all figures")
    option("--plot", type=Path, help="where to draw latency against load")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    client = Client(args.load, args.address, args.model or served_model(args.address))
    ids = range(args.vocab // 2, args.vocab)
    source = (
        Source.of_tokenizer(args.tokenizer, args.seed)
        if args.tokenizer
        else Source(ids, None, args.seed)
    )
    if args.rate:
        loads = [Load(streams, rate) for rate in args.rate for streams in args.streams or [0]]
    else:
        loads = [Load(streams) for streams in args.streams or [1, 8, 32]]
    if args.warmup:
        client.run(random_jobs(source, Shape(32, 8), args.warmup), streams=32)
    rows = [(load, measure(args, client, source, load)) for load in loads]
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([{"load": vars(a)} | b for a, b in rows], indent=1))
    if args.plot:
        plot(rows, args.plot)
    return 1 if any(row["failed"] for _, row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
