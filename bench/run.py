"""The small set that `make bench` runs: the scheduler, the router, brook here, latency and load."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from processes import free_port, running, wait_ready

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


def serving_brook(load: Path) -> None:
    """The serving benchmark against the model that ships with Penstock, on this machine."""
    port = free_port()
    serve = [sys.executable, "-m", "penstock", "serve", "--port", str(port)]
    tokenizer = ROOT / "python/penstock/brook/tokenizer.json"
    client = ["--load", load, "--address", f"127.0.0.1:{port}", "--tokenizer", tokenizer]
    with tempfile.TemporaryDirectory() as temp, running(serve, Path(temp) / "log") as server:
        wait_ready(f"http://127.0.0.1:{port}/ready", server)
        sizes = ["--input", 64, "--output", 64, "--streams", 1, 4, 16]
        run(sys.executable, HERE / "serve.py", *client, *sizes)


def main() -> None:
    folder = target()
    run("cargo", "bench", "--quiet", "-p", "penstock-scheduler", "--bench", "step")
    router = ["--penstock", folder / "penstock", "--shard", folder / "penstock-mock-shard"]
    run(sys.executable, HERE / "router.py", *router, "--load", folder / "penstock-load")
    run(sys.executable, HERE / "cpu.py", "--load", folder / "penstock-load")
    serving_brook(folder / "penstock-load")


if __name__ == "__main__":
    main()
