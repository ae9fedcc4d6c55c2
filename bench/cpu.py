"""Brook on the CPU: against `transformers.generate`, or beside busy loops.

    python bench/run.py cpu --load target/release/penstock-load
    python bench/run.py cpu --load target/release/penstock-load --loops 2 --threads 2 1

The first prints tokens per second over HTTP at one stream and at 16, beside `generate` called one
request at a time with the same dtype and all cores.

The second starts a server for each number of threads and measures one stream alone, then beside
busy loops (processes that compute and never sleep), round after round. It prints medians: tokens
per second, the share that is left beside the loops, and the CPU time of the worker per token.
With --other FOLDER, another build of the package is measured in turn.
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

from harness.processes import cpu_seconds, descendants, free_port, running, wait_ready

TOKENS = 128
PEER = """
import sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, tokens = sys.argv[1], int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer("0 river gate opens and water runs down the river gate opens and water runs down",
                return_tensors="pt")
options = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
with torch.inference_mode():
    model.generate(**ids, **options | {"max_new_tokens": 8, "min_new_tokens": 8})
    began = time.perf_counter()
    for _ in range(4):
        model.generate(**ids, **options)
print(4 * tokens / (time.perf_counter() - began))
"""


def transformers_rate(folder: Path) -> float:
    """Tokens per second of `generate`, one request at a time."""
    command = [sys.executable, "-c", PEER, str(folder), str(TOKENS)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])


def penstock_rates(
    launcher: list[str], folder: Path, load: Path, streams: list[int]
) -> dict[int, float]:
    """Tokens per second over HTTP at each number of streams."""
    port = free_port()
    serve = [*launcher, "serve", "--model", str(folder)]
    serve += ["--device", "cpu", "--dtype", "float32", "--port", str(port)]
    client = [str(load), "--address", f"127.0.0.1:{port}", "--api", "completions"]
    client += ["--tokens", str(TOKENS), "--words", "14"]
    rates = {}
    with tempfile.TemporaryDirectory() as temp, running(serve, Path(temp) / "log") as server:
        wait_ready(f"http://127.0.0.1:{port}/ready", server)
        for count in [1, *streams]:  # the first is the warm-up
            requests = str(max(4, count))
            command = [*client, "--streams", str(count), "--requests", requests]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rates[count] = float(json.loads(out)["tokens_per_second"])
            time.sleep(0.2)
    return rates


@dataclass
class Rounds:
    """What was measured of one server under one load of the machine, round after round."""

    rates: list[float] = field(default_factory=list)  # tokens per second
    costs: list[float] = field(default_factory=list)  # CPU ms of the worker per token


@dataclass
class Server:
    """One build with one number of threads, and what was measured of it."""

    build: str
    threads: int
    port: int
    pid: int
    alone: Rounds = field(default_factory=Rounds)
    beside: Rounds = field(default_factory=Rounds)  # beside the loops

    def row(self) -> str:
        alone, beside = median(self.alone.rates), median(self.beside.rates)
        costs = f"{median(self.alone.costs):.2f} | {median(self.beside.costs):.2f}"
        speeds = f"{alone:,.0f} | {beside:,.0f} | {beside / alone:.0%}"
        return f"| {self.build} | {self.threads} | {speeds} | {costs} |"


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


def measure_round(args: argparse.Namespace, server: Server, rounds: Rounds) -> None:
    before = worker_seconds(server)
    rounds.rates.append(rate(args, server, args.tokens))
    took = worker_seconds(server) - before
    rounds.costs.append(1000 * took / (args.tokens * args.streams))


def measure(args: argparse.Namespace, servers: list[Server]) -> None:
    for server in servers:
        rate(args, server, 64)  # warm-up
    time.sleep(3)
    for _ in range(args.rounds):
        for server in servers:
            measure_round(args, server, server.alone)
        with busy_loops(args.loops):
            for server in servers:
                measure_round(args, server, server.beside)


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


def against_transformers(args: argparse.Namespace) -> None:
    """Prints the rates of both, in one run."""
    launcher = [args.launcher] if args.launcher else [sys.executable, "-m", "penstock"]
    peer = transformers_rate(args.model)
    rates = penstock_rates(launcher, args.model, args.load, [1, 16])
    print("| streams | penstock tok/s | transformers tok/s | ratio |\n|---|---|---|---|")
    for count, rate in rates.items():
        print(f"| {count} | {rate:,.0f} | {peer:,.0f} | {rate / peer:.1f} |")


def beside_loops(args: argparse.Namespace) -> None:
    """Prints the rates and the CPU time per token, alone and beside busy loops."""
    with tempfile.TemporaryDirectory() as temp, ExitStack() as stack:
        servers = start(args, stack, Path(temp))
        measure(args, servers)
    print(f"{args.loops} busy loops, {args.streams} stream(s) of {args.tokens} tokens.")
    print("CPU ms: of the worker, per token.")
    print("| build | threads | alone tok/s | beside tok/s | left | alone CPU ms | beside CPU ms |")
    print("|---|---|---|---|---|---|---|")
    for server in servers:
        print(server.row())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--load", type=Path, required=True, help="the load client")
    brook = Path(__file__).resolve().parents[1] / "python/penstock/brook"
    option("--model", type=Path, default=brook, help="the model, without --loops")
    option("--launcher", help="the native one; without it, `python -m penstock`")
    option("--loops", type=int, default=0, help="busy loops; 0: against transformers")
    option("--threads", type=int, nargs="+", default=[os.cpu_count(), 1], help="with --loops")
    option("--streams", type=int, default=1, help="with --loops")
    option("--tokens", type=int, default=512, help="of an answer, with --loops")
    option("--rounds", type=int, default=5, help="with --loops")
    option("--other", type=Path, help="a folder that holds another build of penstock")
    args = parser.parse_args()
    (beside_loops if args.loops else against_transformers)(args)


if __name__ == "__main__":
    main()
