"""Runs a benchmark, or a small set of them.

    python bench/run.py                      # what `make bench` runs, on this machine
    python bench/run.py --help               # the benchmarks
    python bench/run.py serve --input 512    # one of them, with its options

Benchmarks print Markdown or lines of figures. `harness/` has what they share.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.processes import free_port, running, wait_ready

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPTS = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem != "run"}
BINARIES = ("penstock", "penstock-mock-shard", "penstock-load")


def title(name: str, about: str) -> None:
    print(f"\n## {name}\n\n{about}\n", flush=True)


def run(script: str, *options: object) -> None:
    """Runs a benchmark from the root, with the packages of this tree."""
    command = [sys.executable, str(SCRIPTS[script]), *map(str, options)]
    paths = [str(ROOT / "python"), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def about(script: Path) -> str:
    """The first line of a benchmark's docstring."""
    return (ast.get_docstring(ast.parse(script.read_text())) or "").splitlines()[0]


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
        run("serve", *client, *sizes)


def small_set() -> None:
    """The scheduler, the router, brook on this CPU, latency and load."""
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
    run("router", *router, "--load", load)
    title("brook on this CPU", "Tokens per second, beside `transformers.generate` in the same run.")
    run("cpu", "--load", load)
    serving_brook(load)


def main() -> int:
    listed = "\n".join(f"  {name:18} {about(path)}" for name, path in SCRIPTS.items())
    parser = argparse.ArgumentParser(
        description="Runs a benchmark; without a name, a small set of them.",
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=SCRIPTS, metavar="NAME")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the benchmark")
    args = parser.parse_args()
    if args.name is None:
        small_set()
        return 0
    try:
        run(args.name, *args.options)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
