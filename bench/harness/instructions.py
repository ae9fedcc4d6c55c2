"""What the router does per streamed token, without noise: instructions and cold cache lines.

The router runs under valgrind's callgrind with a last-level cache of 256 KiB, a core's own share.
With 256 streams the lines of a stream are evicted when its next token comes, so misses count what a
token touches first. Steps are long enough that each token is written by itself. Two loads that
differ only in the length of answers separate the cost of tokens from that of requests. The kernel's
work is not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from harness.processes import free_port, running, wait_ready
from harness.vocabulary import write_model

STREAMS = 256
SHORT, LONG = 8, 72
CACHES = ["--D1=49152,12,64", "--I1=65536,8,64", "--LL=262144,16,64"]


def totals(dump: Path) -> tuple[int, int]:
    """Instructions, and misses of data in the last cache."""
    lines = dump.read_text().splitlines()
    names = next(line for line in lines if line.startswith("events:")).split()[1:]
    counts = next(line for line in lines if line.startswith(("totals:", "summary:"))).split()[1:]
    found = dict(zip(names, map(int, counts), strict=False))
    return found["Ir"], found["DLmr"] + found["DLmw"]


def measure(arguments: argparse.Namespace, folder: Path) -> list[tuple[int, int]]:
    """Totals of a load of short answers and of one of long answers."""
    model, socket, port = folder / "model", folder / "shard.sock", free_port()
    write_model(model)
    shard: list[object] = [arguments.shard, "--listen", f"unix:{socket}", "--step-ms", 150]
    shard += ["--vocab", 128_000, "--slots", 512, "--blocks", 40_000]
    router: list[object] = ["valgrind", "--tool=callgrind", "--cache-sim=yes", *CACHES]
    router += [f"--callgrind-out-file={folder / 'dump'}", arguments.penstock, "serve"]
    router += ["--model", model, "--worker", f"unix:{socket}", "--port", port]
    router += ["--max-slots", 512, "--max-step-tokens", 8192]
    load = [arguments.load, "--address", f"127.0.0.1:{port}", "--api", arguments.api]
    load += ["--streams", STREAMS, "--requests", STREAMS]
    with (
        running(list(map(str, shard)), folder / "shard.log"),
        running(list(map(str, router)), folder / "router.log") as server,
    ):
        wait_ready(f"http://127.0.0.1:{port}/ready", server, seconds=600)
        for tokens, control in [(SHORT, "--zero"), (SHORT, "--dump"), (LONG, "--dump")]:
            control_command = ["callgrind_control", control, server.pid]
            for command in [*load, "--tokens", tokens], control_command:
                subprocess.run(list(map(str, command)), check=True, capture_output=True)
        # The last load may still be written out when callgrind_control returns.
        server.terminate()
        server.wait()
    return [totals(folder / f"dump.{number}") for number in (1, 2)]


def report(arguments: argparse.Namespace) -> None:
    """Prints the table. arguments: paths `penstock`, `shard` and `load`; `api` of the load."""
    with tempfile.TemporaryDirectory() as folder:
        short, long = measure(arguments, Path(folder))
    print("| | per token | per request, without its tokens |\n|---|---|---|")
    for what, few, many in zip(("instructions", "cold lines"), short, long, strict=True):
        token = (many - few) / STREAMS / (LONG - SHORT)
        print(f"| {what} | {token:,.1f} | {few / STREAMS - SHORT * token:,.0f} |")
