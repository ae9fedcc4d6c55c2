"""The small set that `make bench` runs: the scheduler, the router, brook on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
BINARIES = ("penstock", "penstock-mock-shard", "penstock-load")


def run(*command: object) -> None:
    print("$", *command, flush=True)
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)


def target() -> Path:
    """The release folder of cargo's target directory, wherever the user keeps it."""
    command = ["cargo", "build", "--release", "--message-format=json", "--quiet"]
    for name in BINARIES:
        command += ["-p", name]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    executable = next(line for line in out.splitlines() if '"executable":"' in line)
    return Path(executable.split('"executable":"')[1].split('"')[0]).parent


def main() -> None:
    folder = target()
    run("cargo", "bench", "--quiet", "-p", "penstock-scheduler")
    router = ["--penstock", folder / "penstock", "--shard", folder / "penstock-mock-shard"]
    run(sys.executable, HERE / "router.py", *router, "--load", folder / "penstock-load")
    run(sys.executable, HERE / "cpu.py", "--load", folder / "penstock-load")


if __name__ == "__main__":
    main()
