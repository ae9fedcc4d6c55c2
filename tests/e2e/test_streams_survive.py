"""Streams survive the loss of a worker: each goes on exactly as without it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from serving import Server, children, metric_value
from small_model import write_llama

SECONDS = 120
TOKENS = 160
PROMPT = "Once upon a time there was a"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "pages": {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 8},
    },
    "required": ["name", "pages"],
    "additionalProperties": False,
}
SAMPLED = {"temperature": 1.0, "seed": 7}
# Name -> fields of a request to /v1/completions.
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": SAMPLED,
    "penalties": {
        **SAMPLED,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "min_tokens": TOKENS,
    },
    "logprobs": {**SAMPLED, "logprobs": 3},
    "prompt": {**SAMPLED, "logprobs": 3, "prompt_logprobs": 2, "stream": False},
    "stop": {"temperature": 0, "stop": ["never in this text"]},
    "three": {**SAMPLED, "n": 3, "logprobs": 1},
    "json": {**SAMPLED, "guided_json": SCHEMA},
    "beams": {"temperature": 0, "use_beam_search": True, "n": 2, "best_of": 2, "stream": False},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("survive")
    model = write_llama(folder / "brook")
    options = ["--model", str(model), "--dtype", "float64", "--max-slots", "12"]
    with Server(folder / "serve.log", options) as server:
        yield server


Choices = dict[int, list[Any]]


def run(server: Server, fields: dict[str, Any], on_event: threading.Semaphore) -> Choices:
    """Returns all that a client receives, by choice: texts, logprobs and the reason of the end."""
    body = {"model": "brook", "prompt": PROMPT, "max_tokens": TOKENS, "stream": True, **fields}
    found: Choices = {}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=SECONDS) as reply:
        if not body["stream"]:
            reply.read()
            assert reply.status_code == 200, reply.text
            return {choice["index"]: [choice] for choice in reply.json()["choices"]}
        lines = reply.iter_lines()
        assert reply.status_code == 200, reply.read()
        for line in lines:
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            on_event.release()
            for choice in event["choices"]:
                found.setdefault(choice["index"], []).append(choice)
    return found


def merged(choices: Choices) -> dict[int, tuple[str, list[Any], str | None]]:
    """Returns text, logprobs and end of each choice, however its tokens were spread over events."""
    result = {}
    for index, parts in choices.items():
        logprobs = [
            entry
            for part in parts
            for entry in zip(
                (part.get("logprobs") or {}).get("tokens", []),
                (part.get("logprobs") or {}).get("token_logprobs", []),
                (part.get("logprobs") or {}).get("top_logprobs") or [],
                strict=False,
            )
        ]
        text = "".join(part["text"] for part in parts)
        result[index] = text, logprobs, parts[-1]["finish_reason"]
    return result


def kill_worker(server: Server) -> None:
    (worker,) = children(server.process.pid)
    os.kill(worker, signal.SIGKILL)


def test_streams_go_on_exactly_after_the_worker_is_killed(server: Server) -> None:
    quiet = threading.Semaphore(0)
    expected = {name: merged(run(server, fields, quiet)) for name, fields in REQUESTS.items()}
    losses = metric_value(server, "penstock_worker_losses")
    for kills in (1, 2):
        events = threading.Semaphore(0)
        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            runs = {n: pool.submit(run, server, f, events) for n, f in REQUESTS.items()}
            for _ in range(kills):
                for _ in range(8 * len(REQUESTS)):
                    assert events.acquire(timeout=SECONDS)
                kill_worker(server)
            got = {name: merged(future.result()) for name, future in runs.items()}
        assert got == expected
        losses += kills
        assert metric_value(server, "penstock_worker_losses") == losses


def test_a_request_that_comes_during_a_restart_is_answered(server: Server) -> None:
    kill_worker(server)
    deadline = time.monotonic() + SECONDS
    while httpx.get(f"{server.url}/ready").status_code == 200:
        assert time.monotonic() < deadline
    body = {"model": "brook", "prompt": PROMPT, "max_tokens": 4}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=SECONDS)
    assert reply.status_code == 200, reply.text
