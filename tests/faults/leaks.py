"""What an idle server still holds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from ..serving import children, worker_sockets
from .server import FaultyServer

IDLE_SECONDS = 30
# Zero while no request is open.
SETTLED = (
    "penstock_requests_open",
    "penstock_kv_blocks_dead",
    'penstock_kv_blocks{state="leased"}',
    "penstock_http_body_bytes",
    "penstock_waiting_tokens",
    "tgi_queue_size",
    "tgi_batch_current_size",
)
SPARE = 8  # descriptors and threads that come and go: of the runtime's pool, of connections


@dataclass(frozen=True)
class Held:
    """What the server's process holds."""

    files: int
    threads: int
    resident: int  # bytes
    processes: int  # children and workers

    @classmethod
    def of(cls, pid: int) -> Held:
        """What the process `pid` holds now."""
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in status)
        return cls(
            files=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(fields["Threads"]),
            resident=int(fields["VmRSS"].split()[0]) << 10,
            processes=len({*children(pid), *worker_sockets(pid)}),
        )


def gauges(url: str) -> dict[str, float]:
    """Every metric without buckets, by its name and labels."""
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "_bucket" not in name}


def leaked(server: FaultyServer, before: Held) -> dict[str, float]:
    """What a server without requests still holds after some time; empty if nothing.

    `before`: what it held while it was idle earlier.
    """
    until = time.monotonic() + IDLE_SECONDS
    while (found := _leaked(server, before)) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def _leaked(server: FaultyServer, before: Held) -> dict[str, float]:
    values = gauges(server.url)
    found = {name: values[name] for name in SETTLED if values[name]}
    held = Held.of(server.process.pid)
    if held.files > before.files + SPARE:
        found["descriptors"] = held.files - before.files
    if held.threads > before.threads + SPARE:
        found["threads"] = held.threads - before.threads
    if held.processes > before.processes:
        found["processes"] = held.processes - before.processes
    return found
