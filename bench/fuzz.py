"""Hostile request bodies, many of them: no status 5xx, no panic, no block left behind, and every
refusal names its field. What CI sends is a small part of this.

    python bench/fuzz.py                # 100,000 bodies at a mock worker, as many at brook
    python bench/fuzz.py --bodies 1000  # a try

Part one runs router/tests/http_fuzz.rs with more requests. In part two `schemathesis` (extra
`clients`) draws bodies from docs/openapi.json, such as keep to it and such as do not, which go to a
server with brook (`hostile.py`); afterwards no request is open and no block belongs to nobody.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from hostile import Findings, send_all
from processes import free_port, running, wait_ready

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = 6  # of router/tests/http_fuzz.rs, each of whose two tests sends as many
SETTLED = ("penstock_requests_open", "penstock_kv_blocks_dead", "penstock_http_body_bytes")


def at_mock_worker(bodies: int) -> None:
    environment = {**os.environ, "FUZZ_REQUESTS": str(bodies // CLIENTS // 2)}
    command = ["cargo", "test", "--quiet", "-p", "penstock-router"]
    began = time.monotonic()
    subprocess.run([*command, "--test", "http_fuzz"], cwd=ROOT, env=environment, check=True)
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


def at_brook(bodies: int, clients: int, seed: int) -> Findings:
    port = free_port()
    serve = [sys.executable, "-m", "penstock", "serve", "--port", str(port), "--device", "cpu"]
    with tempfile.TemporaryDirectory() as temp:
        log = Path(temp) / "log"
        with running(serve, log) as server:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url + "/ready", server)
            began = time.monotonic()
            found = send_all(url, bodies, clients, seed)
            settle(url)
        assert "panicked" not in log.read_text(errors="replace")
    print(f"brook: {found.sent} bodies in {time.monotonic() - began:.0f} s")
    print(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", type=int, default=100_000, help="at the mock worker")
    parser.add_argument("--brook-bodies", type=int, default=None, help="default: as many")
    parser.add_argument("--clients", type=int, default=2, help="processes that draw bodies")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other bodies")
    arguments = parser.parse_args()
    brook = arguments.bodies if arguments.brook_bodies is None else arguments.brook_bodies
    if arguments.bodies:
        at_mock_worker(arguments.bodies)
    if brook and at_brook(brook, arguments.clients, arguments.seed).wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
