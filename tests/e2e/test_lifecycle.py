"""A server's life: answering before it is ready, draining, losing its worker, leaving no orphan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from serving import SECONDS, Server, children, wait_gone

BROOK = Path(__file__).resolve().parents[2] / "python/penstock/brook"


def generate(server: Server, tokens: int) -> httpx.Response:
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": tokens}}
    return httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS)


def stream(server: Server, tokens: int, events: list[dict[str, object]]) -> None:
    parameters = {"max_new_tokens": tokens, "seed": 1, "do_sample": True}
    body = {"inputs": "Once upon a time", "parameters": parameters}
    with httpx.stream("POST", f"{server.url}/generate_stream", json=body, timeout=SECONDS) as reply:
        for line in reply.iter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line[5:]))


def wait_draining(server: Server) -> None:
    """Returns when new requests are refused because the server shuts down."""
    deadline = time.monotonic() + SECONDS
    while httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
        assert time.monotonic() < deadline, server.output()
        time.sleep(0.02)


def wait_alive(server: Server) -> None:
    """Returns when the process answers."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            assert httpx.get(f"{server.url}/live", timeout=5).status_code == 200
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.02)


def test_a_loading_server_is_alive_and_neither_healthy_nor_ready(tmp_path: Path) -> None:
    server = Server(tmp_path / "serve.log").start()
    try:
        wait_alive(server)
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert httpx.get(f"{server.url}/ready").status_code == 503
        early = generate(server, 4)
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) > 0
        server.wait_ready()
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert generate(server, 4).status_code == 200
        output = server.output()
        assert f"serving brook at {server.url} on " in output
        assert "KV tokens" in output and "curl -N" in output
    finally:
        code = server.stop()
    assert code == 0


def test_a_drain_lets_answers_finish(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log") as server:
        workers = children(server.process.pid)
        events: list[dict[str, object]] = []
        streaming = threading.Thread(target=stream, args=(server, 200, events))
        streaming.start()
        while len(events) < 3:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        wait_draining(server)
        assert httpx.get(f"{server.url}/live").status_code == 200
        late = generate(server, 4)
        assert late.status_code == 503 and int(late.headers["retry-after"]) > 0
        streaming.join(SECONDS)
        assert server.process.wait(SECONDS) == 0
        assert events[-1]["generated_text"] is not None
        wait_gone(workers)


def test_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log") as server:
        workers = children(server.process.pid)
        events: list[dict[str, object]] = []

        streaming = threading.Thread(target=stream, args=(server, 2000, events))
        streaming.start()
        while len(events) < 3:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        wait_draining(server)  # or the two signals might count as one
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(SECONDS) == 1, "it has waited for the answer"
        streaming.join(SECONDS)
        assert "the server has shut down" in str(events[-1]["error"])
        wait_gone(workers)


def test_a_drain_ends_with_an_error_that_says_so(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log", ["--grace", "0"]) as server:
        events: list[dict[str, object]] = []
        streaming = threading.Thread(target=stream, args=(server, 2000, events))
        streaming.start()
        while len(events) < 3:
            time.sleep(0.01)
        assert server.stop() == 0
        streaming.join(SECONDS)
        assert len(events) < 2000
        assert "the server has shut down" in str(events[-1]["error"])


def test_stopped_worker_makes_the_server_unready_before_it_is_given_up(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log") as server:
        (worker,) = children(server.process.pid)
        generate(server, 100)  # the first steps may take long
        events: list[dict[str, object]] = []
        streaming = threading.Thread(target=stream, args=(server, 500, events))
        streaming.start()
        while len(events) < 3:
            time.sleep(0.01)
        os.kill(worker, signal.SIGSTOP)
        deadline = time.monotonic() + SECONDS
        while (ready := httpx.get(f"{server.url}/ready")).status_code == 200:
            assert time.monotonic() < deadline, "a hung worker is not noticed"
            time.sleep(0.05)
        assert "longer than expected" in ready.json()["error"]
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/live").status_code == 200
        os.kill(worker, signal.SIGCONT)
        streaming.join(SECONDS)
        assert events[-1]["generated_text"]
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert children(server.process.pid) == [worker]


def test_a_deadline_ends_answers_and_streams(server: Server) -> None:
    parameters = {"max_new_tokens": 2000, "timeout": 0.3}
    body = {"inputs": "Once upon a time", "parameters": parameters}
    whole = httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS)
    assert whole.status_code == 504
    assert "deadline of 0.3 s has passed" in whole.json()["error"]
    with httpx.stream("POST", f"{server.url}/generate_stream", json=body, timeout=SECONDS) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data:")]
    assert len(lines) > 1
    assert "deadline of 0.3 s has passed" in json.loads(lines[-1][5:])["error"]


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    with Server(tmp_path / "serve.log") as server:
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while (reply := generate(server, 4)).status_code != 200:
            assert time.monotonic() < deadline, server.output()
            assert "error" in reply.json()
            time.sleep(0.1)
        (replacement,) = children(server.process.pid)
        assert replacement != worker


@pytest.mark.parametrize("options", [[], ["--tp", "2"]], ids=["one", "two"])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, options: list[str]) -> None:
    with Server(tmp_path / "serve.log", options) as server:
        workers = children(server.process.pid)
        assert len(workers) == (2 if options else 1)
        server.process.kill()
        server.process.wait()
        wait_gone(workers)


def test_a_signal_while_loading_ends_cleanly(tmp_path: Path) -> None:
    server = Server(tmp_path / "serve.log").start()
    deadline = time.monotonic() + SECONDS
    while not (workers := children(server.process.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    assert server.stop() == 0, server.output()
    wait_gone(workers)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_a_command_in_python_ends_with_the_launcher(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "penstock", "quantize", str(BROOK), str(out), "--cpu"]
    command += ["--method", "rtn", "--samples", "8", "--length", "64"]
    with (tmp_path / "log").open("w") as log:
        launcher = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS
    while not (lock := out / ".partial/lock").exists() or not lock.read_text():
        assert launcher.poll() is None and time.monotonic() < deadline
        time.sleep(0.001)
    [child] = children(launcher.pid)
    os.kill(child, signal.SIGSTOP)
    assert lock.read_text() == str(child)
    second = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert second.returncode == 1
    assert f"error: another run is writing to {out} (process {child})" in second.stderr
    launcher.send_signal(number)
    if number != signal.SIGKILL:
        time.sleep(0.5)
        assert launcher.poll() is None, "it waits for the end of the command"
    os.kill(child, signal.SIGCONT)
    assert launcher.wait(SECONDS) == code
    wait_gone([child])
    assert not (out / "config.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert again.returncode == 0, again.stderr
    assert (out / "config.json").exists() and not (out / ".partial").exists()


def test_chat_reads_a_pipe(server: Server) -> None:
    lines = "What is 2 + 3?\n/reset\n/nonsense\nWhat is 4 + 4?\n/exit\nnever read\n"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "chat", "--url", server.url, "--temperature", "0"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == 2 and all(answers), done.stdout
    assert "/nonsense is not a command" in done.stderr


def test_chat_starts_an_engine_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "chat", "--device", "cpu", "--max-tokens", "8"],
        input="Hello\n",
        capture_output=True,
        text=True,
        timeout=SECONDS * 2,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_chat_without_a_server_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "chat", "--url", "http://127.0.0.1:9"],
        input="Hello\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr and "penstock serve" in done.stderr
