"""The small set that `make bench` runs: the scheduler, the router, brook here, latency and load."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import free_port, running, wait_ready

HERE = Path(__file__).parent
ROOT = HERE.parent
BINARIES = ("penstock", "penstock-mock-shard", "penstock-load")


def title(name: str, about: str) -> None:
    print(f"\n## {name}\n\n{about}\n", flush=True)


def run(script: str, *options: object) -> None:
    command = [sys.executable, str(HERE / script), *map(str, options)]
    subprocess.run(command, cwd=ROOT, check=True)


def target() -> Path:
    """The release folder of cargo's target directory, wherever the user keeps it."""
    command = ["cargo", "build", "--release", "--message-format=json", "--quiet"]
    for name in BINARIES:
        command += ["-p", name]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    executable = next(line for line in out.splitlines() if '"executable":"' in line)
    return Path(executable.split('"executable":"')[1].split('"')[0]).parent


def scheduler() -> None:
    """Criterion's medians; what it says of itself is left out."""
    title("Scheduler", "Microseconds to plan a step of 1,024 sequences and to take its outcome.")
    command = ["cargo", "bench", "--quiet", "-p", "penstock-scheduler", "--bench", "step"]
    out = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.findall(r"^([\w/ ,]+?)\s+time:\s+\[\S+ \S+ (\S+) (\S+) ", out, re.MULTILINE)
    print("| steps | median |\n|---|---|")
    for name, value, unit in found:
        print(f"| {name} | {float(value):.1f} {unit} |")


def serving_brook(load: Path) -> None:
    """The serving benchmark against the model that ships with Penstock, on this machine."""
    title(
        "Serving brook",
        "Prompts and answers of 64 tokens. Milliseconds: TTFT until the first token, TPOT for\n"
        "each after it, ITL between two of them, E2EL for the whole answer.",
    )
    port = free_port()
    serve = [sys.executable, "-m", "penstock", "serve", "--port", str(port)]
    tokenizer = ROOT / "python/penstock/brook/tokenizer.json"
    client = ["--load", load, "--address", f"127.0.0.1:{port}", "--tokenizer", tokenizer]
    with tempfile.TemporaryDirectory() as temp, running(serve, Path(temp) / "log") as server:
        wait_ready(f"http://127.0.0.1:{port}/ready", server)
        sizes = ["--input", 64, "--output", 64, "--streams", 1, 4, 16]
        run("serve.py", *client, *sizes)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("Building the native binaries ...", flush=True)
    folder = target()
    load = folder / "penstock-load"
    scheduler()
    title(
        "Router",
        "Its own CPU per streamed token, with workers that compute nothing, beside TGI's router\n"
        "on 2 cores of another machine.",
    )
    router = ["--penstock", folder / "penstock", "--shard", folder / "penstock-mock-shard"]
    run("router.py", *router, "--load", load)
    title("brook on this CPU", "Tokens per second, beside `transformers.generate` in the same run.")
    run("cpu.py", "--load", load)
    serving_brook(load)


if __name__ == "__main__":
    main()
