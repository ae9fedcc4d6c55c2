"""Hostile request bodies, many of them: no status 5xx, no panic, no block left behind, and every
refusal names its field. What CI sends is a small part of this.

    python bench/fuzz.py                # 100,000 bodies at a mock worker, then at brook
    python bench/fuzz.py --bodies 1000  # a try

Part one runs router/tests/http_fuzz.rs with more requests. Part two lets `schemathesis` (extra
`clients`) make requests from docs/openapi.json and sends them to a server with brook; afterwards no
request is open and no block belongs to nobody.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

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


def send_all(url: str, bodies: int) -> Counter[int]:
    """Requests by the description, good and bad; returns how many had each status."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    schema = schemathesis.openapi.from_path(ROOT / "docs/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    statuses: Counter[int] = Counter()
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    each = max(1, bodies // len(posts) // len(modes))
    for operation in posts:
        for mode in modes:

            @settings(
                max_examples=each,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                case.path_parameters = {name: "penstock" for name in case.path_parameters or {}}
                bound(case.body)
                reply = case.call(base_url=url)
                statuses[reply.status_code] += 1
                assert reply.status_code < 500, (case.body, reply.text)
                if reply.status_code >= 400:
                    assert reply.json()["error"], reply.text

            send()
            print(operation.label, mode.value, dict(statuses), flush=True)
    return statuses


def bound(body: Any) -> None:
    """Accepted answers shall be short, or the fuzzing takes days."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is None and ("prompt" in body or "messages" in body):
            body[name] = 2
    parameters = body.get("parameters")
    if "inputs" in body and not isinstance(body["inputs"], list):
        if parameters is None:
            parameters = body["parameters"] = {}
        if isinstance(parameters, dict) and parameters.get("max_new_tokens") is None:
            parameters["max_new_tokens"] = 2


def at_brook(bodies: int) -> None:
    port = free_port()
    serve = [sys.executable, "-m", "penstock", "serve", "--port", str(port), "--device", "cpu"]
    with tempfile.TemporaryDirectory() as temp:
        log = Path(temp) / "log"
        with running(serve, log) as server:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url + "/ready", server)
            began = time.monotonic()
            statuses = send_all(url, bodies)
            for name in SETTLED:
                until = time.monotonic() + 30
                while gauge(url, name) and time.monotonic() < until:
                    time.sleep(0.1)
                assert gauge(url, name) == 0, f"{name} is {gauge(url, name)}"
        assert "panicked" not in log.read_text(errors="replace")
    took = time.monotonic() - began
    print(f"brook: {sum(statuses.values())} bodies in {took:.0f} s: {dict(statuses)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", type=int, default=100_000, help="at the mock worker")
    parser.add_argument("--brook-bodies", type=int, default=None, help="default: a tenth of it")
    arguments = parser.parse_args()
    brook = arguments.brook_bodies
    at_mock_worker(arguments.bodies)
    at_brook(arguments.bodies // 10 if brook is None else brook)


if __name__ == "__main__":
    main()
