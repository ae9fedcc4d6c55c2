"""The serving table: Penstock on random weights of well-known shapes, beside peers and goals.

    bench/h200.sh 8b                 # everything for one shape, in one call
    bench/h200.sh 1b --rows c1 c32 sweep   # `sweep` draws latency against load
    bench/h200.sh 8b --tp 2
    bench/h200.sh 8b --rows c256 prefill --turns peer penstock peer penstock \\
        --peer 'vllm serve {model} --port {port} --served-model-name {name}'

Writes a checkpoint, measures the device's ceilings, starts a server twice (with nothing compiled,
then again), warms it up by 32 short requests and measures each row over HTTP. Prompts are text.

With --peer, rows of Penstock and of another server are measured in turns on one GPU, because GPUs
of one kind differ by some percent. The other server must answer `/health` with 200 once it can
serve, and `/v1/completions`. Each turn starts a server; the first of each finds nothing compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.measure import Client, Figures, failure, figures, gaps, quantile
from harness.processes import (
    cpu_seconds,
    cpu_seconds_of,
    descendants,
    free_port,
    running,
    wait_ready,
)
from harness.shapes import SHAPES
from harness.targets import TARGETS, Target
from harness.workload import Job, Shape, Source, arriving, random_jobs
from serve import Load, plot

HERE = Path(__file__).resolve().parent
BROOK = HERE.parent / "python/penstock/brook"
# Twice: the first time the clocks may still be those of an idle device.
CEILINGS = "from kernels import ceilings; ceilings(); print(*ceilings())"


@dataclass(frozen=True)
class Row:
    """A closed loop: streams at once, requests in all, tokens of prompt and answer. With a `rate`,
    arrivals per second (Poisson) instead, and no bound on the streams."""

    streams: int
    requests: int
    shape: Shape
    rate: float | None = None


ROWS = {
    "c1": Row(1, 6, Shape(128, 256)),
    "c32": Row(32, 128, Shape(512, 256)),
    "c256": Row(256, 768, Shape(1024, 256)),
    "prefill": Row(16, 128, Shape(4096, 1)),
    "c64": Row(64, 256, Shape(2048, 128)),
    "c128": Row(128, 384, Shape(512, 256)),
    "c512": Row(512, 1536, Shape(256, 256)),
    "decode128": Row(128, 128, Shape(16, 768)),  # nearly all steps decode only
}
# 30 seconds of arrivals; prompts of 140 to 1,260 tokens, answers of 40 to 360.
RATES = {
    f"rate{rate}": Row(4096, 30 * rate, Shape(700, 200, 0.8), rate) for rate in (8, 16, 24, 32, 40)
}
ROWS |= RATES
SWEEP = {streams: Row(streams, 4 * streams, Shape(512, 128)) for streams in (1, 4, 16, 64, 128)}
WARM_UP = Row(32, 32, Shape(128, 16))
STREAMS_BESIDE, SHAPE_BESIDE = 32, Shape(512, 4500)
LONG, LONGS, QUIET_SECONDS, EVERY_SECONDS = Shape(32_000, 1), 8, 4.0, 2.0
AFTER_SECONDS = 1.0


class Bench:
    """One shape on one machine: its checkpoint, its server's command, its client."""

    ready = "/ready"  # the path that answers 200 when the server can serve,
    ready_timeout = 120.0  # seconds

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder: Path = BROOK if args.shape == "brook" else args.folder / args.shape
        self.port = free_port()
        self.client = Client(args.load, f"127.0.0.1:{self.port}", args.shape)
        self.cache = args.out / "triton"
        self.seed = 0

    @property
    def name(self) -> str:
        """Of its result files."""
        return self.args.shape if self.args.tp == 1 else f"{self.args.shape}-tp{self.args.tp}"

    def prepare(self) -> None:
        """Writes the checkpoint, unless it is the model that ships."""
        if self.folder == BROOK:
            return
        command = [sys.executable, "-m", "harness.checkpoint", self.args.shape]
        subprocess.run([*command, str(self.folder.resolve())], cwd=HERE, check=True)

    def source(self) -> Source:
        """A new one for each row: no two rows share a prompt."""
        self.seed += 1
        return Source.of_tokenizer(str(self.folder / "tokenizer.json"), self.seed)

    def command(self) -> list[str]:
        """Of the server."""
        command = [*self.args.penstock, "serve", "--model", str(self.folder)]
        command += ["--port", str(self.port), *self.args.serve]
        return [*command, "--tp", str(self.args.tp)] if self.args.tp > 1 else command

    @contextmanager
    def server(self) -> Iterator[tuple[subprocess.Popen[bytes], Figures]]:
        """A server that has given its first token, and what the start took, in seconds."""
        (prompt,) = random_jobs(self.source(), Shape(16, 1), 1)
        environment = os.environ | {"TRITON_CACHE_DIR": str(self.cache)}
        began = time.perf_counter()
        with running(self.command(), self.args.out / "serve.log", environment) as process:
            self._wait("/health", process)
            listening = time.perf_counter() - began
            self._wait(self.ready, process)
            ready = time.perf_counter() - began
            checked(self.client.run([prompt]))
            token = time.perf_counter() - began
            yield process, {"health": listening, "ready": ready, "token": token}

    def _wait(self, path: str, process: subprocess.Popen[bytes]) -> None:
        wait_ready(f"http://{self.client.address}{path}", process, self.ready_timeout, pause=0.005)

    def row(self, row: Row, process: subprocess.Popen[bytes]) -> Figures:
        jobs = random_jobs(self.source(), row.shape, row.requests)
        if row.rate:
            jobs = arriving(jobs, row.rate)
        tokens = None if row.shape.spread else row.shape.output
        router, workers = cpu_seconds(process.pid), cpu_seconds_of(descendants(process.pid))
        result = figures(checked(self.client.run(jobs, row.streams), tokens))
        # Of what ended meanwhile, compilers of kernels, say, nothing counts.
        later = cpu_seconds_of(workers)
        took = cpu_seconds(process.pid) - router, sum(later[pid] - workers[pid] for pid in later)
        for name, seconds in zip(("router_cpu_us", "worker_cpu_us"), took, strict=True):
            result[name] = 1e6 * seconds / result["output_tokens"]
        return result

    def beside_long_prompts(self) -> Figures:
        """Gaps between tokens of running streams while long prompts keep arriving."""
        source = self.source()
        jobs = random_jobs(source, SHAPE_BESIDE, STREAMS_BESIDE)
        prompts = random_jobs(source, LONG, LONGS)
        times = [QUIET_SECONDS + EVERY_SECONDS * index for index in range(LONGS)]
        jobs += [Job(job.turns, at) for job, at in zip(prompts, times, strict=True)]
        records = checked(self.client.run(jobs))
        streams, longs = records[:STREAMS_BESIDE], records[STREAMS_BESIDE:]
        waits = [record["arrivals"][0] - record["sent"] for record in longs]
        begin, end = longs[0]["sent"], max(record["arrivals"][0] for record in longs)
        settled = max(record["arrivals"][0] for record in streams)
        quiet = [gap for record in streams for gap in gaps(record, settled, begin)]
        loaded = [gap for record in streams for gap in gaps(record, begin, end)]
        # Their contexts have grown: what they take undisturbed has, too.
        later = [gap for record in streams for gap in gaps(record, end, end + AFTER_SECONDS)]
        median = quantile(quiet, 0.5)
        result = {
            "quiet_p50": median,
            "quiet_p99": quantile(quiet, 0.99),
            "itl_p50": quantile(loaded, 0.5),
            "itl_p99": quantile(loaded, 0.99),
            "itl_max": max(loaded),
            "later_p50": quantile(later, 0.5),
            "slowdown": quantile(loaded, 0.99) / median,
            "slowdown_later": quantile(loaded, 0.99) / quantile(later, 0.5),
            "ttft_p50": quantile(waits, 0.5),
            "ttft_p99": quantile(waits, 0.99),
        }
        return result | {f"ttft_{index}": wait for index, wait in enumerate(waits)}

    def run(self) -> dict[str, Figures]:
        """All rows that are wanted; each is printed when it is there."""
        found: dict[str, Figures] = {}
        wanted = self.args.rows
        shutil.rmtree(self.cache, ignore_errors=True)
        if "start" in wanted:
            with self.server() as (_, cold):
                found["start"] = {f"cold_{name}": value for name, value in cold.items()}
        with self.server() as (process, warm):
            if "start" in wanted:
                found["start"] |= {f"warm_{name}": value for name, value in warm.items()}
                found["start"] |= {
                    kind: found["start"][f"{kind}_token"] for kind in ("cold", "warm")
                }
                show("start", found["start"])
            show("warm-up", self.row(WARM_UP, process))
            time.sleep(self.args.settle)
            for name in (name for name in ROWS if name in wanted):
                found[name] = self.row(ROWS[name], process)
                show(name, found[name])
            if "long" in wanted:
                found["long"] = self.beside_long_prompts()
                show("long", found["long"])
            if "sweep" in wanted:
                rows = {Load(streams): self.row(row, process) for streams, row in SWEEP.items()}
                found |= {load.name: row for load, row in rows.items()}
        return found


class Peer(Bench):
    """The other server."""

    ready = "/health"
    ready_timeout = 600.0  # some compile for minutes

    def command(self) -> list[str]:
        command: str = self.args.peer
        places = {"model": str(self.folder), "port": str(self.port), "name": self.args.shape}
        for place, value in places.items():
            command = command.replace("{" + place + "}", shlex.quote(value))
        return shlex.split(command)


def turn(bench: Bench, name: str) -> dict[str, Figures]:
    """The rows by one start of a server."""
    with bench.server() as (process, start):
        found = {"start": start}
        show(f"{name}: start", start)
        bench.row(WARM_UP, process)
        time.sleep(bench.args.settle)
        for row in bench.args.rows:
            found[row] = bench.row(ROWS[row], process)
            show(f"{name}: {row}", found[row])
    return found


def checked(records: list[dict[str, Any]], tokens: int | None = None) -> list[dict[str, Any]]:
    """The records, if no request failed and all answers have `tokens` tokens."""
    if error := failure(records):
        raise RuntimeError(f"a request failed: {error}")
    for record in records:
        if tokens not in (None, record["tokens"]):
            raise RuntimeError(f"an answer of {tokens} tokens has {record['tokens']}")
    return records


def show(name: str, row: Figures) -> None:
    print(name, json.dumps({key: float(f"{value:.5g}") for key, value in row.items()}), flush=True)


def ceilings() -> dict[str, float]:
    """Copy in TB/s and bf16 product in TFLOP/s, by a process that leaves the GPU again."""
    out = subprocess.run(
        [sys.executable, "-c", CEILINGS], cwd=HERE, check=True, capture_output=True, text=True
    ).stdout
    copy, product = map(float, out.split()[-2:])
    return {"copy_tb_s": copy, "bf16_tflop_s": product}


def table(targets: list[Target], found: dict[str, Figures]) -> str:
    """Markdown: what was measured, beside peers and goals."""
    lines = ["| case | vLLM | TurboMind | floor | must | aim | Penstock | |", "|" + "---|" * 8]
    for target in targets:
        if target.row not in found:
            continue
        value = found[target.row][target.figure]
        others = (target.vllm, target.turbomind, target.floor, target.must, target.aim)
        cells = ["-" if other is None else f"{other:,g}" for other in others]
        shown = f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
        cells += [f"**{shown}**", target.verdict(value)]
        lines.append(f"| {target.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def server_options(parser: argparse.ArgumentParser) -> None:
    """What a `Bench` reads, beside the shape."""
    option = parser.add_argument
    option("--tp", type=int, default=1, help="GPUs that share each layer")
    option("--load", type=Path, default=Path("target/release/penstock-load"), help="load client")
    option("--folder", type=Path, default=Path("/dev/shm"), help="where the checkpoint goes")
    option("--out", type=Path, default=Path("bench-out"), help="where results and logs go")
    option("--penstock", nargs="+", default=[sys.executable, "-m", "penstock"], help="command")
    option("--serve", nargs=argparse.REMAINDER, default=[], help="more flags of penstock serve")


def settle_option(parser: argparse.ArgumentParser) -> None:
    """Of benches in which no capture may fall into what they measure."""
    parser.add_argument(
        "--settle", type=float, default=5.0, help="seconds for captures, before what is measured"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    names = [*ROWS, "start", "long", "sweep"]
    option("shape", choices=["brook", *SHAPES])
    option("--rows", nargs="+", choices=names, metavar="ROW", help=f"of {', '.join(names)}")
    option("--peer", metavar="COMMAND", help="another server, in turns with Penstock")
    option("--turns", nargs="+", choices=["penstock", "peer"], default=["peer", "penstock"])
    server_options(parser)
    settle_option(parser)
    args = parser.parse_args()
    if args.peer is None and (args.shape, args.tp) not in TARGETS:
        parser.error(f"no targets for {args.shape} on {args.tp} GPUs")
    args.rows = args.rows or (list(ROWS) if args.peer else names[:-1])
    if args.peer and (unknown := set(args.rows) - set(ROWS)):
        parser.error(f"not a row of --peer: {', '.join(sorted(unknown))}")
    return args


def against_peer(args: argparse.Namespace) -> None:
    """Both servers in turns on one GPU."""
    benches = {"penstock": Bench(args), "peer": Peer(args)}
    benches["penstock"].prepare()
    shutil.rmtree(benches["penstock"].cache, ignore_errors=True)
    if args.shape != "brook":
        show("ceilings", ceilings())
    found = [(name, turn(benches[name], name)) for name in args.turns]
    (args.out / f"peer-{args.shape}.json").write_text(json.dumps(found, indent=1))


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.peer:
        against_peer(args)
        return
    bench = Bench(args)
    bench.prepare()
    limits = ceilings()
    show("ceilings", limits)
    found = bench.run()
    report = table(TARGETS[args.shape, args.tp], found)
    (args.out / f"{bench.name}.json").write_text(json.dumps(found | {"ceilings": limits}, indent=1))
    (args.out / f"{bench.name}.md").write_text(report + "\n")
    print(report)
    if "sweep" in args.rows:
        loads = map(Load, SWEEP)
        plot([(load, found[load.name]) for load in loads], args.out / f"{bench.name}.png")


if __name__ == "__main__":
    main()
