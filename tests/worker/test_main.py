"""How a worker's process begins; its end is tested with its lease."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from penstock.worker import __main__ as program
from penstock.worker.service import Shard


def test_a_socket_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        program.serve(str(tmp_path / "nowhere/shard.sock"), Shard(0, lambda: None))
    assert "cannot serve on" in str(ended.value) and "nowhere" in str(ended.value)


def test_the_lease_ends_with_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_import_that_fails_is_told_and_met_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program.warm_imports()
    assert not caplog.records

    def fail(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(program.importlib, "import_module", fail)
    program.warm_imports()
    assert "import failed: no penstock.worker.loader" in caplog.text
