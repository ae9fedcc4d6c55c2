"""How a worker's process begins; its end is tested with its lease."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from penstock.worker import __main__ as program
from penstock.worker.service import ShardService


def test_unusable_socket_path_ends_the_worker(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        program.serve(str(tmp_path / "nowhere/shard.sock"), ShardService(0, lambda: None))
    assert "cannot serve on" in str(ended.value) and "nowhere" in str(ended.value)


def test_worker_ends_when_standard_input_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came by it before."""
    read, write = os.pipe()
    real = os.read
    monkeypatch.setattr(os, "read", lambda _, size: real(read, size))
    ended = threading.Event()
    thread = threading.Thread(target=program.watch_lease, args=(ended,), daemon=True)
    thread.start()
    os.write(write, b"still here")
    assert not ended.wait(0.1)
    os.close(write)
    assert ended.wait(60)
    thread.join(60)
    os.close(read)


def test_failed_warm_import_is_logged_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program.warm_imports()
    assert not caplog.records

    def fail(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(program.importlib, "import_module", fail)
    program.warm_imports()
    assert "import failed: no penstock.worker.startup.loader" in caplog.text
