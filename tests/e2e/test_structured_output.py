"""Structured outputs are the same with one worker or two, preempted, and after a restart."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Server, children, metric_value
from small_model import write_llama
from trees import PERSON, TREE

GRAMMARS: list[dict[str, Any]] = [
    {"guided_json": PERSON},
    {"guided_json": TREE},
    {"guided_regex": "[0-9]{3}-[0-9]{4}( x[0-9]+)?"},
    {"guided_grammar": 'start: "select " column ("," column)*\ncolumn: "a" | "b" column'},
]
BODIES = [
    {
        "prompt": f"Once upon a time there was number {seed}",
        "max_tokens": 40 + 30 * (seed % 3),
        "temperature": 2.0,
        "seed": seed,
        "n": 1 + seed % 2,
        **GRAMMARS[seed % len(GRAMMARS)],
    }
    for seed in range(12)
]


def answers(server: Server) -> list[list[tuple[str, str]]]:
    """Text and finish reason of every choice of every body, all sent at once."""

    def ask(body: dict[str, Any]) -> list[tuple[str, str]]:
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)
        assert reply.status_code == 200, reply.text
        choices = reply.json()["choices"]
        return [(each["text"], each["finish_reason"]) for each in choices]

    with ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(ask, BODIES))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of each server."""
    path = write_llama(tmp_path_factory.mktemp("model") / "brook")
    return ["--model", str(path), "--dtype", "float64"]


@pytest.fixture(scope="module")
def expected(
    model: list[str], tmp_path_factory: pytest.TempPathFactory
) -> list[list[tuple[str, str]]]:
    log = tmp_path_factory.mktemp("grammars") / "serve.log"
    with Server(log, model) as server:
        return answers(server)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_structured_output_is_equal_under_preemption_and_restart(
    model: list[str], expected: list[list[tuple[str, str]]], tmp_path: Path, workers: str
) -> None:
    """With too little memory for all at once, and again after a worker was killed."""
    memory = f"{192 // int(workers)}KiB"  # of each worker: room for 192 tokens
    options = ["--tp", workers, "--kv-memory", memory, "--max-len", "160"]
    with Server(tmp_path / "serve.log", [*model, *options]) as server:
        for _ in range(4):  # a first answer may be over before another's grammar is compiled
            assert answers(server) == expected
            if metric_value(server, "penstock_preemptions") > 0:
                break
        else:
            pytest.fail("nothing was preempted")
        killed = children(server.process.pid)
        os.kill(killed[-1], signal.SIGKILL)
        while len(set(children(server.process.pid)) - set(killed)) < len(killed):
            time.sleep(0.05)
        server.wait_ready()
        assert answers(server) == expected
