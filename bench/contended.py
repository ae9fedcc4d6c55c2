"""Decoding on a CPU whose cores are busy with something else.

Starts a server for each number of threads and measures one stream alone, then beside busy loops
(processes that compute and never sleep), round after round. Prints the median tokens per second,
the share that is left beside the loops, and the CPU time of the worker per token there.

    python bench/contended.py --load target/release/penstock-load --loops 2 --threads 2 1
    python bench/contended.py --load ... --other FOLDER   # another build of the package, in turn
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from processes import cpu_seconds, descendants, free_port, running, wait_ready


@dataclass
class Server:
    """One build with one number of threads, and what was measured of it."""

    build: str
    threads: int
    port: int
    pid: int
    alone: list[float] = field(default_factory=list)  # tokens per second
    beside: list[float] = field(default_factory=list)  # the same beside the loops
    cost: list[float] = field(default_factory=list)  # beside them: worker's CPU ms per token

    def row(self) -> str:
        alone, beside = median(self.alone), median(self.beside)
        share, cost = beside / alone, median(self.cost)
        speeds = f"{alone:,.0f} | {beside:,.0f} | {share:.0%} | {cost:.2f}"
        return f"| {self.build} | {self.threads} | {speeds} |"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def rate(args: argparse.Namespace, server: Server, tokens: int) -> float:
    """Tokens per second of `--streams` streams."""
    client = [str(args.load), "--address", f"127.0.0.1:{server.port}", "--api", "completions"]
    client += ["--streams", str(args.streams), "--requests", str(args.streams)]
    client += ["--tokens", str(tokens), "--words", "14"]
    out = subprocess.run(client, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out)["tokens_per_second"])


def worker_seconds(server: Server) -> float:
    return sum(cpu_seconds(pid) for pid in descendants(server.pid))


def measure(args: argparse.Namespace, servers: list[Server]) -> None:
    for server in servers:
        rate(args, server, 64)  # warm-up
    time.sleep(3)
    for _ in range(args.rounds):
        for server in servers:
            server.alone.append(rate(args, server, args.tokens))
        with busy_loops(args.loops):
            for server in servers:
                before = worker_seconds(server)
                server.beside.append(rate(args, server, args.tokens))
                took = worker_seconds(server) - before
                server.cost.append(1000 * took / (args.tokens * args.streams))


def start(args: argparse.Namespace, stack: ExitStack, temp: Path) -> list[Server]:
    servers = []
    for build, folder in [("this", None), *([("other", args.other)] if args.other else [])]:
        environment = dict(os.environ)
        if folder is not None:
            environment["PYTHONPATH"] = f"{folder}:{environment.get('PYTHONPATH', '')}"
        for threads in args.threads:
            port = free_port()
            command = [sys.executable, "-m", "penstock", "serve", "--device", "cpu"]
            command += ["--port", str(port), "--threads", str(threads)]
            process = stack.enter_context(running(command, temp / f"{port}.log", environment))
            wait_ready(f"http://127.0.0.1:{port}/ready", process)
            servers.append(Server(build, threads, port, process.pid))
    return servers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--loops", type=int, default=os.cpu_count())
    parser.add_argument("--threads", type=int, nargs="+", default=[os.cpu_count(), 1])
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="a folder that holds another build of penstock")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp, ExitStack() as stack:
        servers = start(args, stack, Path(temp))
        measure(args, servers)
    print(f"{args.loops} busy loops, {args.streams} stream(s) of {args.tokens} tokens")
    print("| build | threads | alone tok/s | beside tok/s | left | worker's CPU ms per token |")
    print("|---|---|---|---|---|---|")
    for server in servers:
        print(server.row())


if __name__ == "__main__":
    main()
