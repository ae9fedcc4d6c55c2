"""Hostile request bodies, many of them: no status 5xx, no panic, no block left behind, and every
refusal names its field. What CI sends is a small part of this.

    export PYTHONPATH=bench
    python tests/fuzz/bodies.py                # 100,000 bodies of ours, as many of schemathesis
    python tests/fuzz/bodies.py --bodies 1000  # a try
    python tests/fuzz/bodies.py --penstock BIN/penstock --shard BIN/penstock-mock-shard

Part one runs router/http/tests/fuzz with more requests. In part two `schemathesis` (extra
`bench`) draws bodies from docs/openapi.json, valid and invalid ones, which go to a
server (`hostile.py`). Afterwards no request is open and no block is leased. The server's worker
runs brook, or is the mock shard, with which more bodies are tried per second.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.processes import free_port, running, wait_ready
from hostile import Findings, send_all

ROOT = Path(__file__).resolve().parents[2]
BROOK = ROOT / "python/penstock/brook"
BROOK_VOCABULARY = "4096"
LONGEST = "128"  # tokens of a prompt and its answer, or the fuzzing takes days
CLIENTS = 6  # of router/http/tests/fuzz, each of whose two tests sends as many
SETTLED = ("penstock_requests_open", "penstock_kv_blocks_dead", "penstock_http_body_bytes")


def at_mock_worker(bodies: int) -> None:
    environment = {**os.environ, "FUZZ_REQUESTS": str(bodies // CLIENTS // 2)}
    command = ["cargo", "test", "--quiet", "-p", "penstock-http"]
    began = time.monotonic()
    subprocess.run([*command, "--test", "fuzz"], cwd=ROOT, env=environment, check=True)
    print(f"mock worker: {bodies} bodies in {time.monotonic() - began:.0f} s (compiling included)")


def gauge(url: str, name: str) -> float:
    with urllib.request.urlopen(url + "/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(name + " ")))


def settle(url: str) -> None:
    """Fails if something of a request stays."""
    for name in SETTLED:
        until = time.monotonic() + 30
        while gauge(url, name) and time.monotonic() < until:
            time.sleep(0.1)
        assert gauge(url, name) == 0, f"{name} is {gauge(url, name)}"


@contextmanager
def serving(penstock: Path | None, shard: Path | None) -> Iterator[str]:
    """The URL of a server; fails if it, or its worker, panicked."""
    port = free_port()
    serve = [str(penstock)] if penstock else [sys.executable, "-m", "penstock"]
    serve += ["serve", "--port", str(port), "--device", "cpu", "--max-len", LONGEST]
    with tempfile.TemporaryDirectory() as temp, ExitStack() as stack:
        log = Path(temp) / "log"
        if shard is not None:
            address = f"unix:{temp}/shard.sock"
            worker = [str(shard), "--listen", address, "--vocab", BROOK_VOCABULARY, "--check-all"]
            stack.enter_context(running(worker, log))
            serve += ["--model", str(BROOK), "--worker", address]
        server = stack.enter_context(running(serve, log))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url + "/ready", server)
        yield url
        stack.close()
        assert "panicked" not in log.read_text(errors="replace")


def at_server(url: str, bodies: int, clients: int, seed: int) -> Findings:
    began = time.monotonic()
    found = send_all(url, bodies, clients, seed)
    settle(url)
    print(f"schemathesis: {found.sent} bodies in {time.monotonic() - began:.0f} s")
    print(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", type=int, default=100_000, help="of each part")
    parser.add_argument("--part", choices=("ours", "schemathesis"), help="only one of them")
    parser.add_argument("--clients", type=int, default=2, help="processes that draw bodies")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other bodies")
    parser.add_argument("--penstock", type=Path, help="the launcher; default: the package's")
    parser.add_argument("--shard", type=Path, help="a mock shard, which needs --penstock")
    arguments = parser.parse_args()
    if arguments.part != "schemathesis":
        at_mock_worker(arguments.bodies)
    if arguments.part != "ours":
        with serving(arguments.penstock, arguments.shard) as url:
            found = at_server(url, arguments.bodies, arguments.clients, arguments.seed)
        sys.exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
