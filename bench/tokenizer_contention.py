"""How long tokenizing a sentence takes while another client sends texts of 8 MiB without a pause.

The texts come with `truncate`: one that is merely too long is refused by its length alone. The
workers are a mock shard that answers at once, the vocabulary has 128,000 entries. Measured is
`POST /tokenize` of a sentence, one request after the other.

    python bench/tokenizer_contention.py --penstock target/release/penstock \
        --shard target/release/penstock-mock-shard
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import statistics
import tempfile
import threading
import time
from pathlib import Path

from processes import free_port, resident_mib, running, wait_ready
from vocabulary import write_model

WORDS = " babebi bobu cade fogi hiju kalemo"
HEADERS = {"content-type": "application/json"}
BODY_BYTES = (8 << 20) - 4096


class Flood:
    """Clients that send large texts without a pause, until `stop`."""

    def __init__(self, port: int, clients: int) -> None:
        self.port = port
        self.over = threading.Event()
        self.statuses: list[int] = []
        text = WORDS * (BODY_BYTES // len(WORDS))
        parameters = {"truncate": 8, "max_new_tokens": 1}
        self.body = json.dumps({"inputs": text, "parameters": parameters}).encode()
        self.threads = [threading.Thread(target=self._send) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _send(self) -> None:
        while not self.over.is_set():
            self.statuses.append(post(self.port, "/generate", self.body))

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def post(port: int, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", path, body, HEADERS)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def measure(port: int, seconds: float) -> list[float]:
    """Milliseconds of each small request."""
    body = json.dumps({"inputs": WORDS}).encode()
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        status = post(port, "/tokenize", body)
        times.append((time.perf_counter() - begin) * 1e3)
        if status != 200:
            raise RuntimeError(f"a small request got status {status}")
        time.sleep(0.005)
    return times


def row(name: str, times: list[float], server: int) -> str:
    p99 = sorted(times)[math.ceil(0.99 * len(times)) - 1]
    return (
        f"| {name} | {len(times)} | {statistics.median(times):.2f} | {p99:.2f} "
        f"| {max(times):.1f} | {resident_mib(server):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--shard", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20, help="of each row")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        write_model(folder / "model")
        socket = f"unix:{folder / 'shard.sock'}"
        shard = [args.shard, "--listen", socket, "--vocab", "128000"]
        serve = [args.penstock, "serve", "--model", folder / "model", "--worker", socket]
        with (
            running(list(map(str, shard)), folder / "shard.log"),
            running([*map(str, serve), "--port", str(port)], folder / "serve.log") as server,
        ):
            wait_ready(f"http://127.0.0.1:{port}/ready", server)
            measure(port, 1)
            print(
                "| clients that send 8 MiB | small requests | p50 ms | p99 ms | max ms | RSS MiB |"
            )
            print("|---|---|---|---|---|---|")
            for clients in (0, 1, 4):
                flood = Flood(port, clients)
                time.sleep(1)
                times = measure(port, args.seconds)
                flood.stop()
                answered = f"{clients} ({len(flood.statuses)} answered)" if clients else "0"
                print(row(answered, times, server.pid), flush=True)


if __name__ == "__main__":
    main()
